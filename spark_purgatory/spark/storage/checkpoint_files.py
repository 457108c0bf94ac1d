"""Spark's own files of a checkpoint: ``metadata``, ``offsets``, ``commits``, and the logs of sources, ``sources/<i>``.

A power loss leaves empty files, for Spark does not synchronise what it writes; a full disk leaves halves; and people
remove files. Spark tells some of it in words of its JSON parser, without the file, and some of it not at all: what the
file source's log has lost counts as new, and is read into a number that is behind the query, so that its rows never
come. Here each fault has its file and its remedy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from spark_purgatory.errors import START_OVER, StorageError, sentence_of
from spark_purgatory.spark.storage.paths import in_checkpoint, literal
from spark_purgatory.spark.storage.spark_access import STRICT_FILES
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS, without_reach

UNFINISHED = "half_of_a_checkpoint_run_the_move_again"
"""The file ``metadata`` of a checkpoint whose move has not ended: one word, for Spark quotes one when it stops."""
_NUMBERED = re.compile(r"/((?:offsets|commits|sources/\d+))/(\d+)(\.compact)?$")
COPY = f"bring it back from a copy, or {START_OVER}"
Logs = Mapping[str, Mapping[int, str]]
"""The entries of each folder: the name of the file by its number."""


@dataclass(frozen=True)
class Damage:
    """What is wrong with a file of a checkpoint."""

    path: str
    """Below the checkpoint."""
    fault: str
    remedy: str = COPY

    def __str__(self) -> str:
        return f"{self.path} {self.fault}: {self.remedy}"


def check_files(spark: SparkSession, checkpoint: str) -> None:
    """Raise StorageError if a query could not go on from Spark's own files in a checkpoint."""
    if found := damages(spark, checkpoint):
        raise StorageError(f"checkpoint={checkpoint!r} is damaged. Nothing was started. {'; '.join(map(str, found))}")


def damages(spark: SparkSession, checkpoint: str) -> list[Damage]:
    """Return what is wrong with the files that a query reads when it goes on. The checkpoint has begun."""
    reader = spark.read.options(**STRICT_FILES).option("recursiveFileLookup", "true")
    files = reader.text(in_checkpoint(literal(checkpoint.rstrip("/")), "offsets", "commits", "sources")).inputFiles()
    logs = logs_of(files)
    wanted = ["metadata", *needed(logs)]
    try:
        texts = texts_of(spark, checkpoint, wanted)
    except SPARK_FAULTS:
        return list(unreadable(spark, checkpoint, wanted))
    return list(faults_of(texts, logs))


def texts_of(spark: SparkSession, checkpoint: str, paths: Sequence[str]) -> dict[str, str]:
    """The texts of files below a checkpoint, "" where one has no byte."""
    reader = spark.read.options(**STRICT_FILES)
    frame = reader.text([f"{literal(checkpoint.rstrip('/'))}/{path}" for path in paths], wholetext=True)
    rows = frame.select("_metadata.file_path", "value").collect()
    return {path: next((text for file, text in rows if file.endswith(f"/{path}")), "") for path in paths}


def unreadable(spark: SparkSession, checkpoint: str, paths: Sequence[str]) -> Iterator[Damage]:
    """Those of some files that Spark cannot read: a file system of the machine keeps checksums beside them."""
    for path in paths:
        try:
            texts_of(spark, checkpoint, [path])
        except SPARK_FAULTS as error:
            yield Damage(path, f"cannot be read ({sentence_of(error)})", without_reach(error) or COPY)


def logs_of(files: Iterable[str]) -> Logs:
    """The entries of a checkpoint's logs, of the paths of its files."""
    logs: dict[str, dict[int, str]] = {}
    for file in files:
        if match := _NUMBERED.search(file):
            folder, number, compact = match.groups()
            logs.setdefault(folder, {})[int(number)] = f"{folder}/{number}{compact or ''}"
    return logs


def needed(logs: Logs) -> Iterator[str]:
    """The files that Spark reads when a query goes on: the last two offsets, the last commit, and the sources' logs.

    A source's log is its last compact entry, and all since then.
    """
    for folder, entries in sorted(logs.items()):
        numbers = sorted(entries)
        if folder.startswith("sources/"):
            compact = max((number for number in numbers if entries[number].endswith(".compact")), default=numbers[0])
            numbers = [number for number in numbers if number >= compact]
        else:
            numbers = numbers[-2:] if folder == "offsets" else numbers[-1:]
        yield from (entries[number] for number in numbers)


def faults_of(texts: Mapping[str, str], logs: Logs) -> Iterator[Damage]:
    """Return what is wrong with the texts of `needed` files and of ``metadata``."""
    broken = [path for path, text in sorted(texts.items()) if not _is_whole(path, text)]
    last = {folder: max(entries) for folder, entries in logs.items()}
    for path in broken:
        fault = "is empty, as a power loss leaves it" if not texts[path] else "is cut or damaged"
        remedy = COPY
        if path == f"commits/{last.get('commits')}":
            again = "Spark then runs that micro-batch again, whose rows a RecordAccumulator writes once"
            remedy = f"bring it back from a copy, or remove it: {again}"
        yield Damage(path, fault, remedy)
    if "commits" in last and last["commits"] not in logs.get("offsets", ()):
        yield Damage(f"offsets/{last['commits']}", "is missing, and its micro-batch is committed")
    whole = sorted((int(path.rpartition("/")[2]), path) for path in texts if path.startswith("offsets/"))
    offsets = [(path, texts[path].splitlines()[2:]) for _, path in whole if path not in broken]
    if any(len(sources) > len(offsets[-1][1]) for _, sources in offsets):
        yield Damage(offsets[-1][0], "is cut or damaged: it lacks the offsets of a source")
    elif offsets:
        yield from _lost_entries(*offsets[-1], logs)


def _is_whole(path: str, text: str) -> bool:
    lines = text.splitlines()
    if path == "metadata":
        return text.strip() == UNFINISHED or bool(_parsed(lines[:1], "id"))
    least = 1 if path.startswith("sources/") else 2 if path.startswith("commits/") else 3
    if len(lines) < least or not re.fullmatch(r"v\d+", lines[0]) or not _parsed(lines[1:]):
        return False
    return not path.startswith("offsets/") or _parsed(lines[1:2], "batchWatermarkMs")


def _parsed(lines: Sequence[str], name: str | None = None) -> bool:
    """Return True if all lines are JSON, and the first has a field of that name; ``-`` is a missing offset."""
    try:
        bodies = [json.loads(line) for line in lines if line not in ("-", "")]
    except ValueError:
        return False
    return name is None or (bool(bodies) and isinstance(bodies[0], dict) and name in bodies[0])


def _lost_entries(path: str, offsets: Sequence[str], logs: Logs) -> Iterator[Damage]:
    """Entries of the file source's log that the last offsets count, and that are not there."""
    for number, line in enumerate(offsets):
        match = re.fullmatch(r'\{"logOffset":(\d+)\}', line.strip())
        entries = logs.get(f"sources/{number}", {})
        if match is None:
            continue
        compact = max((one for one in entries if entries[one].endswith(".compact")), default=-1)
        lost = [one for one in range(max(compact, 0), int(match[1]) + 1) if one not in entries]
        if lost:
            yield Damage(
                f"sources/{number}/{lost[0]}",
                f"is missing{f', and {len(lost) - 1} more' if lost[1:] else ''}, but {path} counts it: Spark would "
                "read the files that are named in it again and drop, without a word, what is new",
            )
