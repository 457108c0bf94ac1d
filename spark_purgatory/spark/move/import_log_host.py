"""The import under ``transformWithState``. It is a module of its own because it needs protobuf."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, GroupedData, Row

from spark_purgatory.core.state.engine_snapshot import gauges_of, save, tally_of
from spark_purgatory.core.state.shard_head import write_head
from spark_purgatory.spark.host.calls import nothing, timer_of
from spark_purgatory.spark.host.log_host import LogHost, LogHostOptions, PandasLogHost, log_hosted
from spark_purgatory.spark.host.worker import prepare_worker
from spark_purgatory.spark.move.tables import Importing


class ImportingHost(LogHost):
    """Writes a shard's snapshot and head, as a step of the query would have."""

    def __init__(self, importing: Importing, options: LogHostOptions) -> None:
        super().__init__(importing.spec, options)
        self._importing = importing

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        prepare_worker()
        engine = self._importing.engine(key, ((row["side"], row["blob"]) for row in rows))
        blob = save(engine, self._options.shards)
        timer_ms = timer_of(engine.next_due_ms(), 0, self._spec.clock_delay_ms)
        self._snapshot.update((blob,))
        head = replace(
            self._new_head(),
            token=secrets.token_hex(16),
            snapshot_bytes=len(blob),
            timer_ms=timer_ms,
            gauges=gauges_of(engine),
            tally=tally_of(engine),
        )
        self._head.update((write_head(head),))
        self._set_timer(None, timer_ms, None)
        yield Row(**nothing(len(blob)))


class PandasImportingHost(PandasLogHost, ImportingHost):
    """The same host with pandas frames in place of rows."""


def log_host_imports(groups: GroupedData, importing: Importing) -> DataFrame:
    options = LogHostOptions(importing.shards, 0)
    return log_hosted(groups, ImportingHost(importing, options), PandasImportingHost(importing, options))
