"""The staging folder of a checkpoint, and its log of entries, from which the ledger is read (docs/formats.md).

If this process can open the folder, it writes an entry as a file, which takes about a millisecond. Otherwise a Spark
job of one row does it, which takes as long as a small job. Both are read alike.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple, Self
from uuid import uuid4

from pyspark.sql import SparkSession

from spark_purgatory.config.places import split_uri
from spark_purgatory.errors import START_OVER, ForeignWriterError, StagingError
from spark_purgatory.spark.sink.staging.ledger import (
    Contents,
    DrainState,
    EmptyRun,
    Intent,
    Ledger,
    Piece,
    StagedBatch,
    epoch_path,
)
from spark_purgatory.spark.storage.spark_access import SMALL_QUERY, STRICT_FILES, settings
from spark_purgatory.spark.storage.storage_access import in_checkpoint, literal, write_line, write_nothing
from spark_purgatory.spark.storage.storage_errors import writing

FORMAT = 1  # Of an entry.
REMOVE_TRIES = 5
Body = dict[str, Any]
PIECE_FIELDS = tuple(field.name for field in fields(Piece))
NewEntry = tuple[str, Body, bool]  # Name, body, and True for a note: the arguments of `StagingFolder.write_entry`.
_OF_EPOCH = re.compile(r"/epoch=(\d+)/")
_ENTRY = re.compile(r"log/generation=\d+/epoch=\d+/[^/]+")


class LogEntry(NamedTuple):
    name: str
    body: Body
    path: str = ""  # Below the staging folder.


class StagingFolder:
    def __init__(self, checkpoint: str, local: Path | None = None) -> None:
        self.uri = f"{checkpoint.rstrip('/')}/staging"
        self.local = local / "staging" if local is not None else None
        """The same folder for Python's own file operations; None where only Spark reaches it."""

    @classmethod
    def of(cls, spark: SparkSession, checkpoint: str) -> Self:
        return cls(checkpoint, local_folder(spark, checkpoint))

    def __str__(self) -> str:
        return self.uri

    def write_entry(
        self, spark: SparkSession, epoch: int, name: str, body: Mapping[str, object], is_note: bool = False
    ) -> None:
        """Make an entry durable; a note replaces the one of its name. StagingError where the storage fails."""
        if is_note:
            # Each way of writing replaces its own notes alone.
            name = f"{name}{'' if self.local is None else 'f'}"
        text = json.dumps(body, separators=(",", ":"))
        line = json.dumps({"format": FORMAT, "crc32": zlib.crc32(text.encode()), "entry": name, "body": text})
        place = f"{epoch_path(epoch, 'log')}/{name}-{0 if is_note else uuid4()}"
        with writing(f"entry {name}", self.uri):
            if self.local is not None:
                _write_file(self.local / place, line)
                return
            write_line(spark, f"{self.uri}/{place}", line, "overwrite" if is_note else "error")

    def read_entries(self, spark: SparkSession, others_write: bool = False) -> list[LogEntry]:
        """Return the entries, with ``others_write`` but those removed meanwhile. StagingError if one is damaged."""
        lines = self._spark_lines(spark, others_write) if self.local is None else self._local_lines()
        return [_parse(path, line, self.uri) for path, line in lines]

    def _spark_lines(self, spark: SparkSession, others_write: bool) -> list[tuple[str, str]]:
        reader = spark.read.options(**{**STRICT_FILES, "ignoreMissingFiles": str(others_write).lower()})
        reader = reader.options(recursiveFileLookup="true", wholetext="true", pathGlobFilter="part-*")
        checkpoint, _, name = self.uri.rpartition("/")
        with settings(spark, SMALL_QUERY):
            frame = reader.text(in_checkpoint(literal(checkpoint), f"{name}/log"))
            rows = frame.select("_metadata.file_path", "value").collect()
            # A file of no bytes has no row.
            paths = set() if others_write else set(frame.inputFiles())
        lines = [(row["file_path"], row["value"]) for row in rows]
        found = {_tail(path) for path, _ in lines}
        return lines + [(path, "") for path in sorted(paths) if _tail(path) not in found]

    def _local_lines(self) -> Iterator[tuple[str, str]]:
        for folder, folders, names in os.walk(f"{self.local}/log"):
            folders[:] = sorted(name for name in folders if not name.startswith(("_", ".")))
            for path in (Path(folder, name) for name in sorted(names) if not name.startswith(("_", "."))):
                with suppress(FileNotFoundError):
                    yield str(path), path.read_text(encoding="utf-8", errors="replace")

    def synchronise(self) -> None:
        """Make the log outlive a power loss: a run may have been killed before it did so, or a move copied files."""
        if self.local is not None:
            walked = [(Path(top), names) for top, _, names in os.walk(self.local / "log")]
            files = [top / name for top, names in walked for name in names]
            with writing("the log", self.uri):
                for path in filter(Path.exists, (*files, self.local.parent, self.local, *(top for top, _ in walked))):
                    _synchronise(path)
            with suppress(OSError):  # A process may not be allowed to read the folder that the checkpoint is in.
                _synchronise(self.local.parent.parent)

    def remove(self, spark: SparkSession, path: str) -> None:
        with writing(f"the removal of {path}", self.uri):
            if self.local is not None:
                if (self.local / path).is_file():
                    (self.local / path).unlink(missing_ok=True)
                _remove_tree(self.local / path)
                return
            write_nothing(spark, f"{self.uri}/{path}", "overwrite")


def local_folder(spark: SparkSession, checkpoint: str) -> Path | None:
    """The checkpoint's folder as a path of this process; None if it cannot be opened, or is not the same folder.

    Proof: its file ``metadata``, in which Spark keeps the query's random id, has here what it has for Spark.
    """
    scheme, authority, name = split_uri(checkpoint)
    if scheme not in (None, "file") or authority:
        return None
    path = Path(name).absolute()
    try:
        here = (path / "metadata").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    there = [row["value"] for row in spark.read.text(f"{literal(checkpoint)}/metadata").collect()]
    return path if here and "\n".join(there).strip() == here else None


def _write_file(path: Path, line: str) -> None:
    """All of it or nothing, also after a power loss."""
    folders = [path.parent, *(folder.parent for folder in path.parents[:4] if not folder.exists())]
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{uuid4()}")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        for folder in folders:
            _synchronise(folder)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _synchronise(path: Path) -> None:
    """Have a file's bytes, or the names in a folder, outlive a power loss."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _remove_tree(path: Path) -> None:
    """Remove a folder; another process may do so at the same time."""
    for _ in range(REMOVE_TRIES):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            if path.exists():
                continue
        return


def _tail(path: str) -> str:
    """An entry's folder and file: unique, however Spark writes what is before them."""
    return "/".join(path.rsplit("/", 2)[1:])


def _parse(path: str, line: str, folder: str) -> LogEntry:
    try:
        entry = json.loads(line)
        text = entry["body"]
        version = entry["format"]
        is_whole = zlib.crc32(text.encode()) == entry["crc32"] and str(entry["entry"]) == entry["entry"]
        if is_whole and isinstance(version, int):
            if version > FORMAT:
                raise StagingError(
                    f"{path} has format {version}, but this release of spark_purgatory reads formats up to {FORMAT}. "
                    "Nothing was written. Run the release that wrote the checkpoint, or a later one"
                )
            found = _ENTRY.search(path)
            return LogEntry(entry["entry"], {**json.loads(text), "format": version}, found[0] if found else path)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise StagingError(
        f"{path}, an entry of {len(line)} characters in {folder}/log, is damaged: its checksum does not fit. Nothing "
        f"was written. Bring it back from a copy, or {START_OVER}"
    )


# --- the ledger in entries ------------------------------------------------------------------------------------------


def schema_entry(batch_id: int, schema: str | None) -> NewEntry:
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
    number = ledger.next_drain - 1
    body = {"number": number, "table_version": ledger.table_version, "table_id": ledger.table_id}
    return f"done={number}", body, False


def read_ledger(spark: SparkSession, folder: StagingFolder, others_write: bool = False) -> Ledger:
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
    done = (body["number"] + 1 for body in bodies if "table_version" in body and "uuid" not in body)
    staged = (int(epoch[1]) for path in ledger.records if (epoch := _OF_EPOCH.search(path)))
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
