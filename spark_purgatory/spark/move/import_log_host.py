"""The import under ``transformWithState``: apart, because its module needs protobuf."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, GroupedData, Row

from spark_purgatory.core.state.engine_snapshot import gauges_of, save, tally_of
from spark_purgatory.core.state.shard_head import write_head
from spark_purgatory.spark.host.calls import RESULT_DDL, timer_of
from spark_purgatory.spark.host.log_host import LogHost, LogHostOptions
from spark_purgatory.spark.host.worker import prepare_worker
from spark_purgatory.spark.move.importing import Importing, nothing


class ImportingHost(LogHost):
    """Writes a shard's snapshot and head, as a step of the query would have."""

    def __init__(self, importing: Importing, options: LogHostOptions) -> None:
        super().__init__(importing.spec, options)
        self._importing = importing

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        """A shard's rows of an export."""
        yield Row(**self._import(key, ((row["side"], row["blob"]) for row in rows)))

    def _import(self, key: Any, rows: Any) -> dict[str, Any]:
        prepare_worker()
        engine = self._importing.engine(key, rows)
        blob = save(engine, self._options.shards)
        timer_ms = timer_of(engine.next_due_ms(), 0, self._options.clock_delay_ms)
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
        return nothing(len(blob))


class PandasImportingHost(ImportingHost):
    """The same where rows come and go as pandas frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """A shard's rows of an export."""
        sent = (row for frame in rows for row in zip(frame["side"], frame["blob"], strict=True))
        yield pd.DataFrame({name: [value] for name, value in self._import(key, sent).items()})


def log_host_imports(groups: GroupedData, importing: Importing) -> DataFrame:
    """The calls' rows, by the operator that `log_hosted` would take."""
    options = LogHostOptions(importing.shards or 0, 0)
    if hasattr(groups, "transformWithState"):
        return groups.transformWithState(ImportingHost(importing, options), RESULT_DDL, "append", "EventTime")
    return groups.transformWithStateInPandas(PandasImportingHost(importing, options), RESULT_DDL, "append", "EventTime")
