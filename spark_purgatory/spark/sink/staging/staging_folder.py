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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self
from uuid import uuid4

from pyspark.sql import SparkSession

from spark_purgatory.config.places import split_uri
from spark_purgatory.errors import START_OVER, ForeignWriterError, StagingError
from spark_purgatory.spark.sink.staging.ledger import (
    EmptyRun,
    Intent,
    Ledger,
    LogEntry,
    NewEntry,
    StagedBatch,
    empty_entry,
    epoch_path,
    intent_entry,
    record_entry,
    replay,
    schema_entry,
)
from spark_purgatory.spark.storage.spark_access import SMALL_QUERY, STRICT_FILES, settings
from spark_purgatory.spark.storage.storage_access import in_checkpoint, literal, write_line, write_nothing
from spark_purgatory.spark.storage.storage_errors import writing

FORMAT = 1  # Of an entry.
_ENTRY = re.compile(r"log/generation=\d+/epoch=\d+/[^/]+")


class StagingFolder:
    def __init__(self, checkpoint: str, local: Path | None = None) -> None:
        self.uri = f"{checkpoint.rstrip('/')}/staging"
        self.local = local / "staging" if local is not None else None
        """The same folder for Python's own file operations; None where only Spark reaches it."""

    @classmethod
    def of(cls, spark: SparkSession, checkpoint: str) -> Self:
        return cls(checkpoint, local_folder(spark, checkpoint))

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
                with suppress(FileNotFoundError):  # Another process may remove it at the same time.
                    (self.local / path).unlink() if (self.local / path).is_file() else shutil.rmtree(self.local / path)
                return
            write_nothing(spark, f"{self.uri}/{path}", "overwrite")

    # --- steps of the protocol ---------------------------------------------------------------------------------------

    def record(self, spark: SparkSession, staged: StagedBatch, empty: EmptyRun, schema: str | None) -> None:
        """Note that a micro-batch is staged; ``empty`` if it has no rows, ``schema`` if it has another one."""
        if schema is not None:
            self.write_entry(spark, staged.epoch, *schema_entry(staged.batch_id, schema))
        entry = record_entry(staged) if staged.contents.rows else empty_entry(empty)
        self.write_entry(spark, staged.epoch, *entry)

    def intend(self, spark: SparkSession, intent: Intent) -> Intent:
        """Make an intent durable, with a uuid. ForeignWriterError if someone else made one of this number."""
        intent = replace(intent, uuid=str(uuid4()))
        # A second try would look like a second writer.
        self.write_entry(spark, intent.number, *intent_entry(intent))
        with writing(f"intent {intent.number}", self.uri):
            self.check_alone(spark, intent)
        return intent

    def check_alone(self, spark: SparkSession, intent: Intent) -> None:
        """Raise ForeignWriterError if someone else made an intent of this number, or has ended it."""
        ledger = read_ledger(spark, self)
        if ledger.intent is None or ledger.intent.uuid != intent.uuid or (ledger.is_done and intent.taken):
            found = "none" if ledger.intent is None else f"number {ledger.intent.number} of another run"
            raise ForeignWriterError(
                f"{self.uri} should hold intent {intent.number} of this run but holds {found}: two runs write at once. "
                "This run committed nothing. Stop one of them and start again"
            )

    def clean_up(self, spark: SparkSession, epoch: int, done: NewEntry, idle: Sequence[str]) -> None:
        """Note that a drain is done, and remove what is idle since."""
        self.write_entry(spark, epoch, *done)
        for path in idle:
            self.remove(spark, path)


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


def read_ledger(spark: SparkSession, folder: StagingFolder, others_write: bool = False) -> Ledger:
    entries = folder.read_entries(spark, others_write)
    return replay(entries, folder.uri)
