"""A stopped query's checkpoint, moved: other shards, another host, other state partitions, another need or tick.

The new checkpoint keeps the old one's micro-batches, sources, staged rows and query id; the folder ``state`` alone is
made anew. So the next micro-batch is the one after the last, nothing is read twice, and nothing has to be drained.

The steps, in this order. Until the last one the new checkpoint's ``metadata`` is no metadata but `UNFINISHED`, at which
Spark stops with an error that quotes it; so a query cannot start from half of a checkpoint.

1. Write `UNFINISHED`. Export the tables (`tables`).
2. Import them: one micro-batch of the query's own operator, in a checkpoint of its own below the new one.
3. Put its state files where the old query's next micro-batch looks for them, under its number.
4. Copy the old query's sources, staged rows, commits and offsets. The last of them have the settings of the new state
   store and the names of its states.
5. Copy the old query's ``metadata``: the new checkpoint is whole.

The old checkpoint is only read. A step that fails leaves `UNFINISHED`, and the next move begins again.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_purgatory.config.declared import refuses_wrong_calls
from spark_purgatory.core.state.engine_snapshot import refuse
from spark_purgatory.errors import BugError
from spark_purgatory.spark.move.check_tables import check_arguments, check_tables
from spark_purgatory.spark.move.files import Files, reaching
from spark_purgatory.spark.move.import_state import import_tables
from spark_purgatory.spark.move.old_checkpoint import OldCheckpoint, check_target, conf_of
from spark_purgatory.spark.move.survey import Survey, survey
from spark_purgatory.spark.move.tables import write_tables
from spark_purgatory.spark.operator.stream_plan import Query, queries_of
from spark_purgatory.spark.placement import PARTITIONS
from spark_purgatory.spark.storage.checkpoint_files import STATE_IDS, UNFINISHED
from spark_purgatory.spark.storage.storage_access import absolute

LOG = logging.getLogger(__name__)
WORK = "_moving"
"""Folder of the tables and of the import, below the new checkpoint."""
MADE = "checkpoint"
"""Folder below that of the checkpoint in which the state is made."""
METADATA = "/_metadata/v2/"
OF_STATE_STORES = ("spark.sql.streaming.stateStore.", "spark.sql.streaming.flatMapGroupsWithState.")
FAILPOINTS = ("marked", "exported", "imported", "state placed", "copied", "offsets written")
"""Where a crash could matter: names that `reached` is called with."""


def reached(failpoint: str) -> None:
    """Called with each of `FAILPOINTS` in its turn; tests make something happen there."""


@dataclass(frozen=True)
class Move:
    """What `move_checkpoint` has done, or with ``dry_run`` would do."""

    source: str
    target: str
    batch_id: int
    """The last micro-batch of the old checkpoint: the new one goes on behind it."""
    operations: int
    """Operations that wait."""
    events: int
    """Events that are kept."""
    state_bytes: int
    shards_before: int | None
    """None where every key was a group of its own."""
    shards: int | None
    host_before: str
    """Of the old checkpoint, as `Purgatory.host` has it."""
    host: str
    partitions_before: int
    """State partitions of the old checkpoint."""
    partitions: int
    changes: tuple[str, ...]
    """Settings and columns that differ, as texts."""
    is_done: bool
    seconds: float
    """What the move took; of a dry run, what looking took."""

    def __str__(self) -> str:
        """What people are told."""
        per_shard = self.state_bytes / (self.shards or max(self.operations, 1))
        lines = [
            f"{'moved' if self.is_done else 'would move'} {self.operations:,} operations that wait and {self.events:,} "
            f"events, {self.state_bytes:,} bytes of state, from {self.source} to {self.target}",
            f"shards: {_shards(self.shards_before)} before, {_shards(self.shards)} after, some {per_shard:,.0f} bytes "
            "each",
            f"host: {self.host_before} before, {self.host} after",
            f"state partitions: {self.partitions_before} before, {self.partitions} after",
            *(f"changed: {text}" for text in self.changes),
            f"the next micro-batch is {self.batch_id + 1}; "
            + (f"it took {self.seconds:.0f} s" if self.is_done else f"looking took {self.seconds:.0f} s"),
        ]
        return "\n".join(lines)


def _shards(shards: int | None) -> str:
    return "one a key" if shards is None else str(shards)


@refuses_wrong_calls
def move_checkpoint(
    spark: SparkSession,
    outcomes: DataFrame,
    *,
    source: str,
    target: str,
    partitions: int | None = None,
    tables: str | None = None,
    removed: Mapping[str, int] | None = None,
    dry_run: bool = False,
    progress: Callable[[str], None] = LOG.info,
) -> Move:
    """Move what waits to a new checkpoint, for a query with other shards, another host or other settings.

    Stop the query, move, and start the new one with the new checkpoint: it goes on where the old one stopped, with the
    same sources and the same sink. Nothing is decided twice, and nothing is lost. The old checkpoint is not changed.
    Do not start it again: two queries would write one table.

    Args:
        spark: A session with a JVM, not one of Spark Connect.
        outcomes: What `Purgatory.resolve` of the new query returned, or a stream made of it.
        source: The old query's ``checkpointLocation``.
        target: The new query's; nothing is there yet.
        partitions: State partitions, a setting that a checkpoint fixes (``spark.sql.shuffle.partitions``); by default
            as before. As many as cores, at most as many as shards.
        tables: What waits is taken from these tables of `export_state`, which you may have edited, in place of the old
            checkpoint's state.
        removed: How many rows you removed from ``operations``, ``events`` or ``ids`` among the tables, by name. The
            move refuses tables from which rows are missing that you do not state here.
        dry_run: Look at all shards and say what would be moved; write nothing.
        progress: Called with a line after each step; by default they go to the log.

    Returns:
        What was moved, or would be; as a text, lines for people.

    Raises:
        ConfigError: It cannot be moved, or not now; the message says what to do. Nothing was written.
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
    tables = None if tables is None else absolute(spark, tables.rstrip("/"))
    check_arguments(partitions, removed := removed or {}, tables)
    query = queries_of(outcomes, needed=True)[0]
    with reaching("source", source):
        old = OldCheckpoint.read(files, source)
    with reaching("target", target):
        check_target(spark, files, source, target, tables)
    old.check_can_move(spark)
    found = survey(spark, source, query.spec)
    progress(f"looked at {len(found.found)} shards, in which {found.operations:,} operations wait")
    refuse(text for each in found.found for text in each.differences)
    old.check_rests(files)
    partitions = partitions or old.partitions

    waits = found.operations
    if tables is not None:
        waits = check_tables(spark, tables, query=query, old=old, found=found, removed=removed)
    if not dry_run:
        files.delete(target)
        files.write(f"{target}/metadata", UNFINISHED)
        reached("marked")
        work = f"{target}/{WORK}"
        if tables is None:
            tables = f"{work}/tables"
            write_tables(found, old.query_id, tables)
            progress(f"exported {waits:,} operations")
        reached("exported")
        imported = import_tables(spark, tables, old, query=query, partitions=partitions, at=f"{work}/{MADE}")
        if imported != waits:
            raise BugError(
                f"conservation: {waits:,} operations waited and {imported:,} do after the move; the old checkpoint is "
                "as it was, and its query can go on"
            )
        reached("imported")
        progress(f"imported {imported:,} operations")
        graft(files, old, f"{work}/{MADE}", target)
        files.delete(work)
        progress(f"moved to {target}")
    return Move(
        source=source,
        target=target,
        batch_id=old.batch_id,
        operations=found.operations,
        events=sum(each.events for each in found.found),
        state_bytes=found.state_bytes,
        shards_before=found.found[0].shards,
        shards=query.shards,
        host_before=found.states.host,
        host=query.host,
        partitions_before=old.partitions,
        partitions=partitions,
        changes=tuple(_changes(found, query)),
        is_done=not dry_run,
        seconds=time.monotonic() - began,
    )


def _changes(found: Survey, query: Query) -> list[str]:
    then, now = found.found[0].facts["spec"], query.spec.fingerprint()
    settings = [f"{name} {then[name]!r} to {now[name]!r}" for name in ("need", "tick_ms") if then[name] != now[name]]
    columns = found.found[0].facts["columns"]
    wanted = [] if query.spec.columns is None else query.spec.columns.names
    added, gone = [name for name in wanted if name not in columns], [name for name in columns if name not in wanted]
    return settings + [f"column {name} added" for name in added] + [f"column {name} given up" for name in gone]


def graft(files: Files, old: OldCheckpoint, made: str, target: str) -> None:
    """Make the new checkpoint of the old one and of a state; the last step makes it whole."""
    conf = conf_of(files.read(f"{made}/offsets/0"))
    version = old.batch_id + 1
    _place(files, f"{made}/state", f"{target}/state", version)
    reached("state placed")
    for name in ("sources", "staging", "commits"):
        if files.exists(f"{old.path}/{name}"):
            files.copy(f"{old.path}/{name}", f"{target}/{name}")
    last = f"{target}/commits/{old.batch_id}"
    head, imported = files.read(f"{made}/commits/0").split("\n")[:2]
    commit = json.loads(files.read(last).split("\n")[1]) | {STATE_IDS: json.loads(imported).get(STATE_IDS, {})}
    files.write(last, f"{head}\n{json.dumps(commit)}")
    reached("copied")
    for number in sorted(old.offsets, reverse=True):
        files.write(f"{target}/offsets/{number}", _with_conf(old.offsets[number], conf))
    reached("offsets written")
    old.check_rests(files)
    files.write(f"{target}/metadata", files.read(f"{old.path}/metadata"))


def _place(files: Files, made: str, target: str, version: int) -> None:
    """Give the files of a state at version 1 the names of the version that the next micro-batch looks for."""
    folders = files.names(made, folders_only=True)
    for name in files.names(made):
        if name in folders:
            _place(files, f"{made}/{name}", f"{target}/{name}", version)
        elif name.endswith(".crc"):
            continue
        elif METADATA in f"{made}/":
            # It names files of schemas by their whole path.
            files.write(f"{target}/{name}", files.read(f"{made}/{name}").replace(f"/{WORK}/{MADE}/", "/"))
        else:
            state = re.fullmatch(r"1(_.+)?\.(delta|zip)", name)
            kind = {"delta": "snapshot", "zip": "zip"}
            named = name if state is None else f"{version}{state[1] or ''}.{kind[state[2]]}"
            files.copy(f"{made}/{name}", f"{target}/{named}")


def _with_conf(offsets: str, conf: dict[str, str]) -> str:
    """A micro-batch's offsets with the settings of another state store."""
    lines = offsets.split("\n")
    said: dict[str, Any] = json.loads(lines[1])
    kept = {name: value for name, value in said["conf"].items() if not _is_of_state(name)}
    said["conf"] = {**kept, **{name: value for name, value in conf.items() if _is_of_state(name)}}
    lines[1] = json.dumps(said, separators=(",", ":"))
    return "\n".join(lines)


def _is_of_state(name: str) -> bool:
    return name == PARTITIONS or name.startswith(OF_STATE_STORES)
