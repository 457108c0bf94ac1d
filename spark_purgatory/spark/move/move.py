"""Moves a stopped query's checkpoint to other shards, another host, other state partitions, another need or tick.

The new checkpoint keeps the old one's micro-batches, sources, staged rows and query id. Only the folder ``state`` is
new. So the query continues with the next micro-batch, reads nothing twice, and does not have to drain before the move.

The steps are below. Until the last one, the file ``metadata`` contains only `UNFINISHED`. Spark stops there with an
error that quotes it, so a query cannot start from half of a checkpoint.

1. Write `UNFINISHED`. Export the tables (`tables`).
2. Import them: a streaming query with a noop sink and the query's own operator reads them in one micro-batch, with a
   checkpoint of its own below the new one.
3. Put its state files where the old query's next micro-batch looks for them, under its number.
4. Copy the old query's sources, staged rows, commits and offsets. The last of them get the settings of the new state
   store and the names of its states.
5. Copy the old query's ``metadata``: the new checkpoint is complete.

The old checkpoint is only read. A step that fails leaves `UNFINISHED`, and the next move begins again.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_purgatory.config.declared import refuses_wrong_calls
from spark_purgatory.config.options import LOG_HOST
from spark_purgatory.core.state.engine_snapshot import refuse, save
from spark_purgatory.errors import BugError, ConfigError
from spark_purgatory.spark.checkpoint.pending import gauges
from spark_purgatory.spark.checkpoint.start_check import store_settings
from spark_purgatory.spark.host.blob_host import StreamFunction, blob_hosted, set_timeout
from spark_purgatory.spark.host.calls import frame_of, nothing, rows_in
from spark_purgatory.spark.host.exchange import by_shard, exchanged
from spark_purgatory.spark.host.requirements import PROVIDER, ROCKSDB, check_log_host
from spark_purgatory.spark.host.worker import prepare_worker
from spark_purgatory.spark.move.old_checkpoint import Files, OldCheckpoint, check_target, conf_of, reaching
from spark_purgatory.spark.move.tables import (
    COUNTS,
    SIDES,
    Importing,
    Survey,
    kept_operations,
    survey,
    with_hashes,
    write_tables,
)
from spark_purgatory.spark.operator.stream_plan import Query, queries_of
from spark_purgatory.spark.placement import PARTITIONS
from spark_purgatory.spark.storage.checkpoint_files import MOVED, STATE_IDS, UNFINISHED, body_of, with_body
from spark_purgatory.spark.storage.query_start import started
from spark_purgatory.spark.storage.spark_access import FORMAT_VERSION, setting_of
from spark_purgatory.spark.storage.storage_access import absolute, literal

ONE_BATCH: Mapping[str, str] = {  # Settings of the micro-batch that imports
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # One file has a partition's state, and the moved checkpoint gives it the number of its own micro-batch.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}


def import_tables(
    spark: SparkSession,
    folder: str,
    found: Survey,
    old: OldCheckpoint,
    *,
    query: Query,
    partitions: int,
    at: str,
) -> int:
    """Make a query's state of an export's tables, in a checkpoint ``at`` a path, and return the waiting operations.

    `RecordAccumulator.write_stream` can start a query on any state. Another start has the session's format, so the
    states keep that of the old checkpoint unless the session has a newer one.
    """
    kept = {} if old.has_staging else _as_before(spark, old, query.host)
    importing = Importing(query.spec, query.shards, found.watermark_ms, vars(found.tally))
    groups = by_shard(reduce(DataFrame.unionByName, [_packed(spark, folder, name, query) for name in SIDES]))
    if query.host == LOG_HOST:
        check_log_host(spark)
        from spark_purgatory.spark.move.import_log_host import log_host_imports

        results = log_host_imports(groups, importing)
    else:
        results = blob_hosted(groups, _blob_function(importing))
    writer = results.writeStream.format("noop").trigger(availableNow=True)
    forced = {**ONE_BATCH, PARTITIONS: str(partitions)}
    started(writer, spark, at, decide=lambda: store_settings(spark, kept), forced=forced).awaitTermination()
    return int(gauges(spark, checkpoint=at)["pending"])


def _as_before(spark: SparkSession, old: OldCheckpoint, host: str) -> dict[str, str]:
    if "RocksDB" in old.provider or host == LOG_HOST:
        version = max(old.state_format, setting_of(spark, FORMAT_VERSION) or "1")
        return {FORMAT_VERSION: version, PROVIDER: old.provider if "RocksDB" in old.provider else ROCKSDB}
    return {FORMAT_VERSION: "1", PROVIDER: old.provider}


def _packed(spark: SparkSession, folder: str, name: str, query: Query) -> DataFrame:
    path = f"{folder}/{name}"
    schema = spark.read.parquet(literal(path)).schema
    rows = spark.readStream.schema(schema).parquet(literal(path))
    if name == COUNTS:
        # The first shard is made even if nothing waits in it, because it remembers the counts.
        hashed = rows.select(F.lit(0).cast("bigint").alias("route"), F.lit(0).cast("timestamp").alias("guarded"))
    else:
        hashed = with_hashes(name, rows, query.route, query.spec.key_prefix, query.spec.id_prefix)
    to_all = name == "events" and query.route == "id"
    return exchanged(hashed, SIDES[name], query.shards, to_all)


def _blob_function(importing: Importing) -> StreamFunction:
    def on_group(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        prepare_worker()
        engine = importing.engine(key, rows_in(frames))
        blob = save(engine, importing.shards)
        state.update((blob,))
        set_timeout(state, engine.next_due_ms(), engine.spec.clock_delay_ms)
        yield frame_of(nothing(len(blob)))

    return on_group


LOG = logging.getLogger(__name__)
WORK = "_moving"  # The folder of the tables and of the import, below the new checkpoint
MADE = "checkpoint"  # The folder of the import's own checkpoint, below `WORK`
METADATA = "/_metadata/v2/"
OF_STATE_STORES = ("spark.sql.streaming.stateStore.", "spark.sql.streaming.flatMapGroupsWithState.")
FAILPOINTS = ("marked", "exported", "imported", "state placed", "copied", "offsets written")  # Where a crash matters


def reached(failpoint: str) -> None:
    """Do nothing. Tests replace it to act at a point of `FAILPOINTS`."""


class Layout(NamedTuple):
    host: str
    shards: int
    partitions: int


@dataclass(frozen=True)
class Move:
    """The work of `move_checkpoint`, done or (``dry_run``) planned."""

    source: str
    target: str
    batch_id: int
    """The last micro-batch of the old checkpoint. The new one continues after it."""
    operations: int
    """The operations that the new checkpoint has."""
    dropped: int
    """The operations for which ``where`` is not true."""
    events: int
    state_bytes: int
    """Bytes of all shards' states in the old checkpoint."""
    before: Layout
    after: Layout
    changes: tuple[str, ...]
    """Settings and columns that differ, as texts."""
    is_done: bool
    seconds: float

    def __str__(self) -> str:
        before, after = self.before, self.after
        lines = [
            f"{'moved' if self.is_done else 'would move'} {self.operations:,} operations that wait and {self.events:,} "
            f"events, {self.state_bytes:,} bytes of state, from {self.source} to {self.target}",
            *([f"dropped: {self.dropped:,} operations that wait"] if self.dropped else []),
            f"shards: {before.shards} before, {after.shards} after, of {self.state_bytes // after.shards:,} bytes each",
            f"host: {before.host} before, {after.host} after",
            f"state partitions: {before.partitions} before, {after.partitions} after",
            *(f"changed: {text}" for text in self.changes),
            f"the next micro-batch is {self.batch_id + 1}; {'it' if self.is_done else 'looking'} took "
            f"{self.seconds:.0f} s",
        ]
        return "\n".join(lines)


@refuses_wrong_calls
def move_checkpoint(
    spark: SparkSession,
    outcomes: DataFrame,
    *,
    source: str,
    target: str,
    partitions: int | None = None,
    where: str = "true",
    dry_run: bool = False,
    progress: Callable[[str], None] = LOG.info,
) -> Move:
    """Move waiting operations to a new checkpoint, for a query with other shards, another host or other settings.

    Stop the query, move, and start the new one with the new checkpoint. It continues where the old one stopped, with
    the same sources and the same sink. Nothing is decided twice, and nothing is lost. The old checkpoint is not
    changed. Do not start it again, because two queries would write one table.

    Args:
        spark: A session with a JVM, not one of Spark Connect.
        outcomes: The stream that `Purgatory.resolve` of the new query returned, or one made of it.
        source: The old query's ``checkpointLocation``.
        target: The new query's ``checkpointLocation``, a new folder.
        partitions: State partitions, a setting that a checkpoint fixes (``spark.sql.shuffle.partitions``); by default
            as before. Choose the number of cores, but at most the number of shards.
        where: A condition in SQL on the columns of an export's table ``operations`` (docs/formats.md), such as
            "operation.country <> 'XX'". Operations for which it is not true are dropped: they get no outcome, and
            their ids are forgotten.
        dry_run: Look at all shards and return what would be moved, without writing anything.
        progress: Called with a line after each step. By default the lines are logged.

    Returns:
        A description of the move, done or planned. As a text it has lines for people.

    Raises:
        ConfigError: It cannot be moved, or not now. The message has the remedy. Nothing was written.
        StateMismatchError: The new query differs in something that a move cannot change. Nothing was written.
        StorageError: A folder cannot be reached, or the old checkpoint is damaged. Nothing was written.

    Example::

        outcomes = Purgatory(shards=64, ...).resolve(orders, payments)
        folder = "/lake/_checkpoints"
        print(move_checkpoint(spark, outcomes, source=f"{folder}/a", target=f"{folder}/b"))
    """
    began = time.monotonic()
    files = Files(spark)
    source, target = (absolute(spark, path.rstrip("/")) for path in (source, target))
    if partitions is not None and (isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 1):
        raise ConfigError(f"partitions={partitions!r} must be a whole number from 1")
    query = queries_of(outcomes, needed=True)[0]
    with reaching("source", source):
        old = OldCheckpoint.read(files, source)
        old.check_alone(files)
    with reaching("target", target):
        check_target(spark, files, source, target)
    old.check_can_move(spark)
    found = survey(spark, source, query.spec)
    progress(f"looked at {len(found.found)} shards, in which {found.operations:,} operations wait")
    refuse(text for each in found.found for text in each.differences)
    old.check_rests(files)
    partitions = partitions or old.partitions

    kept = kept_operations(found, where)
    if dry_run:
        waits = kept.count()
    else:
        waits = _move(
            files, old, found, query=query, partitions=partitions, where=where, target=target, progress=progress
        )
    return Move(
        source=source,
        target=target,
        batch_id=old.batch_id,
        operations=waits,
        dropped=found.operations - waits,
        events=sum(each.events for each in found.found),
        state_bytes=sum(each.state_bytes for each in found.found),
        before=Layout(found.states.host, found.found[0].shards, old.partitions),
        after=Layout(query.host, query.shards, partitions),
        changes=tuple(_changes(found, query)),
        is_done=not dry_run,
        seconds=time.monotonic() - began,
    )


def _move(
    files: Files,
    old: OldCheckpoint,
    found: Survey,
    *,
    query: Query,
    partitions: int,
    where: str,
    target: str,
    progress: Callable[[str], None],
) -> int:
    spark = found.states.whole.sparkSession
    files.delete(target)
    files.write(f"{target}/metadata", UNFINISHED)
    reached("marked")
    work = f"{target}/{WORK}"
    waits = write_tables(found, old.query_id, f"{work}/tables", where)["operations"]
    progress(f"exported {waits:,} operations")
    reached("exported")
    at = f"{work}/{MADE}"
    imported = import_tables(spark, f"{work}/tables", found, old, query=query, partitions=partitions, at=at)
    if imported != waits:
        raise BugError(
            f"{waits:,} operations waited before the move, but {imported:,} after it. The old checkpoint is "
            "unchanged, so its query can continue"
        )
    reached("imported")
    progress(f"imported {imported:,} operations")
    assemble_checkpoint(files, old, at, target)
    files.delete(work)
    progress(f"moved to {target}")
    return waits


def _changes(found: Survey, query: Query) -> list[str]:
    then, now = found.found[0].facts["spec"], query.spec.fingerprint()
    settings = [f"{name} {then[name]!r} to {now[name]!r}" for name in ("need", "tick_ms") if then[name] != now[name]]
    columns = found.found[0].facts["columns"]
    wanted = [] if query.spec.columns is None else query.spec.columns.names
    added, gone = [name for name in wanted if name not in columns], [name for name in columns if name not in wanted]
    return settings + [f"column {name} added" for name in added] + [f"column {name} given up" for name in gone]


def assemble_checkpoint(files: Files, old: OldCheckpoint, made: str, target: str) -> None:
    """Make the new checkpoint from the old one and a new state. The last step completes it."""
    conf = conf_of(files.read(f"{made}/offsets/0"))
    version = old.batch_id + 1
    _place(files, f"{made}/state", f"{target}/state", version)
    reached("state placed")
    for name in ("sources", "staging"):
        if files.exists(f"{old.path}/{name}"):
            files.copy(f"{old.path}/{name}", f"{target}/{name}")
    # The states of earlier micro-batches stay in the old checkpoint, and so do their commits.
    last = f"commits/{old.batch_id}"
    imported = files.read(f"{made}/commits/0")
    commit = body_of(files.read(f"{old.path}/{last}")) | {STATE_IDS: body_of(imported).get(STATE_IDS, {})}
    files.write(f"{target}/{last}", with_body(imported, commit))
    reached("copied")
    for number in sorted(old.offsets, reverse=True):
        files.write(f"{target}/offsets/{number}", _with_conf(old.offsets[number], conf))
    reached("offsets written")
    old.check_rests(files)
    earlier = old.check_alone(files)
    files.write(f"{target}/metadata", files.read(f"{old.path}/metadata"))
    for path in (*earlier[-1:], old.path):  # The target of an earlier move has not run, and now must not.
        files.write(f"{path}/{MOVED}", target)


def _place(files: Files, made: str, target: str, version: int) -> None:
    """Copy the files of a state at version 1 to the names that the next micro-batch looks for."""
    folders = files.names(made, folders_only=True)
    for name in files.names(made):
        if name in folders:
            _place(files, f"{made}/{name}", f"{target}/{name}", version)
        elif name.endswith(".crc"):
            continue
        elif METADATA in f"{made}/":
            # It has the whole paths of files of schemas.
            files.write(f"{target}/{name}", files.read(f"{made}/{name}").replace(f"/{WORK}/{MADE}/", "/"))
        else:
            state = re.fullmatch(r"1(_.+)?\.(delta|zip)", name)
            kind = {"delta": "snapshot", "zip": "zip"}
            named = name if state is None else f"{version}{state[1] or ''}.{kind[state[2]]}"
            files.copy(f"{made}/{name}", f"{target}/{named}")


def _with_conf(offsets: str, conf: dict[str, str]) -> str:
    body = body_of(offsets)
    kept = {name: value for name, value in body["conf"].items() if not _is_of_state(name)}
    body["conf"] = {**kept, **{name: value for name, value in conf.items() if _is_of_state(name)}}
    return with_body(offsets, body)


def _is_of_state(name: str) -> bool:
    return name == PARTITIONS or name.startswith(OF_STATE_STORES)
