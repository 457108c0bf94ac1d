"""Turns the ledger into entries of the staging log and back (docs/formats.md). Every value is under its name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any

from pyspark.sql import SparkSession

from spark_purgatory.errors import START_OVER, ForeignWriterError, StagingError
from spark_purgatory.spark.sink.staging.ledger import DrainState, Ledger
from spark_purgatory.spark.sink.staging.pieces import Contents, EmptyRun, Intent, Piece, StagedBatch
from spark_purgatory.spark.sink.staging.staging_folder import Body, LogEntry, StagingFolder

PIECE_FIELDS = tuple(field.name for field in fields(Piece))
_EPOCH = re.compile(r"/epoch=(\d+)/")
NewEntry = tuple[str, Body, bool]  # Name, body, and True for a note: the arguments of `StagingFolder.write_entry`.


def schema_entry(batch_id: int, schema: str | None) -> NewEntry:
    """Return a note that rows have another schema from this micro-batch."""
    return f"schema={batch_id}", {"batch_id": batch_id, "schema": schema}, True


def record_entry(staged: StagedBatch) -> NewEntry:
    return staged.path.rpartition("/")[2], {"path": staged.path, **asdict(staged.contents)}, False


def empty_entry(run: EmptyRun) -> NewEntry:
    """Return a note of micro-batches without rows. A run writes two notes in turn, so that one is always whole."""
    return f"empty={run.first}-{run.run}-{run.last % 2}", run._asdict(), True


def intent_entry(intent: Intent) -> NewEntry:
    packed = {"taken": _columns(intent.taken), "left": _columns(intent.left)}
    packed["last_contents"] = asdict(intent.last_contents)
    body = {field.name: getattr(intent, field.name) for field in fields(Intent)} | packed
    return f"intent={intent.number}", body, False


def done_entry(ledger: Ledger) -> NewEntry:
    """Return the entry for a last intent whose commit was read back."""
    number = ledger.next_drain - 1
    body = {"number": number, "table_version": ledger.table_version, "table_id": ledger.table_id}
    return f"done={number}", body, False


def read_ledger(spark: SparkSession, folder: StagingFolder, others_write: bool = False) -> Ledger:
    """Return the ledger that a staging folder's log describes. Raises as `replay` and `read_entries`."""
    return replay(folder.read_entries(spark, others_write), folder.uri)


def check_alone(spark: SparkSession, folder: StagingFolder, intent: Intent) -> None:
    """Raise ForeignWriterError if someone else made an intent of this number, or has ended it."""
    ledger = read_ledger(spark, folder)
    if ledger.intent is None or ledger.intent.uuid != intent.uuid or (ledger.is_done and intent.taken):
        found = "none" if ledger.intent is None else f"number {ledger.intent.number} of another run"
        raise ForeignWriterError(
            f"{folder} should hold intent {intent.number} of this run but holds {found}: two runs write at once. "
            "This run committed nothing. Stop one of them and start again"
        )


def replay(entries: Iterable[LogEntry], folder: str) -> Ledger:
    """Return the ledger that a log's entries describe. StagingError, ForeignWriterError if two have the same name."""
    known: dict[str, LogEntry] = {}
    for entry in entries:
        other = known.setdefault(entry.name, entry)
        if other.body != entry.body:
            raise ForeignWriterError(
                f"{folder}/log holds two different entries {entry.name!r}, {other.path} and {entry.path}: two runs of "
                "the query write at once. Stop both; `spark-purgatory repair CHECKPOINT` shows which entry is the true "
                "one, asks, and removes the other. Staged rows were not touched"
            )
    try:
        ledger = _replayed({name: entry.body for name, entry in known.items()})
        _check_last_intent(ledger, [entry.body for entry in known.values()], folder)
        return ledger
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise StagingError(f"{folder}/log is of another release: run the one that wrote the checkpoint") from error


def _replayed(bodies: dict[str, Body]) -> Ledger:
    ledger = Ledger()
    of = {
        kind: {name: body for name, body in bodies.items() if name.startswith(f"{kind}=")}
        for kind in ("intent", "done", "schema", "empty", "batch")
    }
    if intents := [_intent(body) for body in of["intent"].values()]:
        last = max(intents, key=lambda intent: intent.number)
        ledger.take(last)
        done = of["done"].get(f"done={last.number}")
        ledger.drain = DrainState.UNSURE if done is None and last.taken else DrainState.DONE
        ledger.table_version = last.table_version if done is None else done["table_version"]
        ledger.table_id = last.table_id if done is None else done["table_id"]
    for body in sorted(of["schema"].values(), key=lambda body: body["batch_id"]):
        if body["batch_id"] > ledger.last_batch:
            ledger.schema = body["schema"]
    empty = [EmptyRun(body["first"], body["last"], body["run"]) for body in of["empty"].values()]
    ledger.empty = sorted(run for run in empty if run.last > ledger.last_batch)
    ledger.records = {body["path"]: Contents(body["rows"], body["checksum"]) for body in of["batch"].values()}
    ledger.epochs.add(ledger.next_drain)
    return ledger


def _check_last_intent(ledger: Ledger, bodies: Iterable[Body], folder: str) -> None:
    """Raise StagingError if entries were written after an intent that is missing."""
    done = (body["number"] + 1 for body in bodies if "table_version" in body and "uuid" not in body)
    staged = (int(epoch[1]) for path in ledger.records if (epoch := _EPOCH.search(path)))
    if (following := max([*done, *staged], default=0)) > ledger.next_drain:
        raise StagingError(
            f"the entry intent={following - 1} of {folder}/log is missing, but later ones are there: it was removed. "
            f"Nothing was written. Bring the file back from a copy, or {START_OVER}"
        )


def _intent(body: Body) -> Intent:
    packed = {"taken": _pieces(body["taken"]), "left": _pieces(body["left"]), "epochs": tuple(body["epochs"])}
    given = {name: value for name, value in body.items() if name != "format"}
    return Intent(**{**given, **packed, "last_contents": Contents(**body["last_contents"])})


def _columns(pieces: Sequence[Piece]) -> dict[str, list[Any]]:
    return {name: [getattr(piece, name) for piece in pieces] for name in PIECE_FIELDS}


def _pieces(packed: dict[str, list[Any]]) -> tuple[Piece, ...]:
    return tuple(Piece(*values) for values in zip(*(packed[name] for name in PIECE_FIELDS), strict=True))
