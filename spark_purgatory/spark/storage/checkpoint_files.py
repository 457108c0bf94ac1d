"""Spark's own files of a checkpoint: ``metadata``, ``offsets``, ``commits``, and the logs of sources, ``sources/<i>``.

A power loss leaves empty files, because Spark does not sync its writes, and a full disk leaves half files. Spark
reports some of them as errors of its JSON parser that name no file, and others not at all: files that the file source's
log has lost are read again under a number that the query has passed, so that their rows never arrive.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark_purgatory.errors import START_OVER, ConfigError, StorageError, sentence_of
from spark_purgatory.spark.storage.spark_access import FORMAT_VERSION, STRICT_FILES
from spark_purgatory.spark.storage.storage_access import in_checkpoint, literal
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS, without_reach

UNFINISHED = "half_of_a_checkpoint_run_the_move_again"
"""The file ``metadata`` of an unfinished move: one word, because Spark quotes one when it stops."""
MOVED = "moved"  # The file of a checkpoint that names the one that it was moved to.
OF_BATCHES = ("state", "staging/rows", "staging/log")
"""Folders of a checkpoint that are written within micro-batches alone."""
STATE_IDS = "stateUniqueIds"
_NUMBERED = re.compile(r"/((?:offsets|commits|sources/\d+))/(\d+)(\.compact)?$")
COPY = f"bring it back from a copy, or {START_OVER}"
_AGAIN = (
    "bring it back from a copy, or remove {}: Spark then runs that micro-batch again, whose rows a RecordAccumulator "
    "writes once"
)
Logs = Mapping[str, Mapping[int, str]]  # The entries of each folder: the name of the file by its number
READ_FAULTS: tuple[type[Exception], ...] = (ValueError, IndexError, *SPARK_FAULTS)


class NoCheckpointError(ConfigError):
    """There is no checkpoint at this path."""


class Damage(NamedTuple):
    """A fault of a file, which is named by its path below the checkpoint."""

    path: str
    fault: str
    remedy: str = COPY

    def __str__(self) -> str:
        return f"{self.path} {self.fault}: {self.remedy}"


def moved_to(spark: SparkSession, checkpoint: str) -> str | None:
    """Return the checkpoint that this one was moved to; None if it was not, or that one was removed."""
    try:
        rows = spark.read.text(literal(f"{checkpoint.rstrip('/')}/{MOVED}")).collect()
        target = "".join(row["value"] for row in rows)
        spark.read.text(literal(f"{target}/metadata")).inputFiles()
        return target
    except SPARK_FAULTS as error:
        if not isinstance(error, AnalysisException) or error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None


def check_not_moved(spark: SparkSession, checkpoint: str) -> None:
    """Raise ConfigError if another checkpoint continues this one."""
    if (moved := moved_to(spark, checkpoint)) is not None:
        raise ConfigError(
            f"checkpoint={checkpoint!r} was moved to {moved!r}, whose query has its rows now. Nothing was started. "
            "Start with that one. If its query has never run, you may also move this one again, to another folder"
        )


def check_files(spark: SparkSession, path: str, field: str = "checkpoint", undone: str = "started") -> None:
    """Raise StorageError if a query could not continue from Spark's own files in a checkpoint."""
    try:
        found = damages(spark, path)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        found = [Damage("metadata", "is missing")]
    if found:
        raise StorageError(f"{field}={path!r} is damaged. Nothing was {undone}. {'; '.join(map(str, found))}")


def damages(spark: SparkSession, checkpoint: str) -> list[Damage]:
    logs = logs_of(files_in(spark, checkpoint, "offsets", "commits", "sources"))
    if not logs.keys() & {"offsets", "commits"} and len(files_in(spark, checkpoint, *OF_BATCHES)) > 1:
        return [Damage("offsets", f"has no micro-batch, but {' or '.join(OF_BATCHES)} has files of one")]
    wanted = ["metadata", *needed(logs)]
    try:
        texts = texts_of(spark, checkpoint, wanted)
    except SPARK_FAULTS:
        return list(unreadable(spark, checkpoint, [path for path in wanted if path != _spare(logs)]))
    return list(faults_of(texts, logs))


def damages_on_disk(folder: Path) -> list[Damage]:
    """Return the faults of the files from which a query continues, read without Spark."""
    names = "commits", "offsets", "sources"
    logs = logs_of(file.as_posix() for name in names for file in (folder / name).rglob("*"))
    paths = "metadata", *needed(logs)
    texts = {path: (folder / path).read_text("utf-8", "replace") for path in paths}
    return [*faults_of(texts, logs), *lost_folders(texts, logs, {each.name for each in folder.iterdir()})]


def files_in(spark: SparkSession, checkpoint: str, *folders: str) -> list[str]:
    """Return the paths of the files in folders of a checkpoint, which may be missing, and of ``metadata``."""
    reader = spark.read.options(**STRICT_FILES).option("recursiveFileLookup", "true")
    return reader.text(in_checkpoint(literal(checkpoint.rstrip("/")), *folders)).inputFiles()


def texts_of(spark: SparkSession, checkpoint: str, paths: Sequence[str]) -> dict[str, str]:
    """Return the texts of files below a checkpoint; an empty file has the text ""."""
    reader = spark.read.options(**STRICT_FILES)
    frame = reader.text([f"{literal(checkpoint.rstrip('/'))}/{path}" for path in paths], wholetext=True)
    rows = frame.select("_metadata.file_path", "value").collect()
    return {path: next((text for file, text in rows if file.endswith(f"/{path}")), "") for path in paths}


def unreadable(spark: SparkSession, checkpoint: str, paths: Sequence[str]) -> Iterator[Damage]:
    """Yield the files that Spark cannot read, for example because a local file has another checksum."""
    for path in paths:
        try:
            texts_of(spark, checkpoint, [path])
        except SPARK_FAULTS as error:
            yield Damage(path, f"cannot be read ({sentence_of(error)})", without_reach(error) or COPY)


def logs_of(files: Iterable[str]) -> Logs:
    """Return the entries of a checkpoint's logs by the paths of its files; a source's since its last compact entry."""
    logs: dict[str, dict[int, str]] = {}
    found = [match.groups() for match in map(_NUMBERED.search, files) if match is not None]
    for folder, number, compact in sorted(found, key=lambda entry: int(entry[1])):
        if compact:
            logs[folder] = {}
        logs.setdefault(folder, {})[int(number)] = f"{folder}/{number}{compact or ''}"
    return logs


def needed(logs: Logs) -> Iterator[str]:
    """Yield the files from which a query continues: the last two offsets and commits, and the sources' logs."""
    for folder, entries in sorted(logs.items()):
        yield from list(entries.values())[-2 if folder in ("offsets", "commits") else 0 :]


def _spare(logs: Logs) -> str:
    """Return the commit before the last: it only shows if the last one is its copy."""
    return next(iter(list(logs.get("commits", {}).values())[-2:-1]), "")


def faults_of(texts: Mapping[str, str], logs: Logs) -> Iterator[Damage]:
    """Yield the faults in the texts of `needed` files and of ``metadata``."""
    if texts["metadata"].strip() == UNFINISHED:
        return  # The start check says more.
    spare = _spare(logs)
    broken = [path for path, text in sorted(texts.items()) if path != spare and not _is_whole(path, text)]
    last = {folder: max(entries) for folder, entries in logs.items()}
    begun, commit = last.get("offsets", -1), last.get("commits", -1)
    if f'"{STATE_IDS}":{{"' in texts.get(spare, "") and texts[spare] == texts[f"commits/{commit}"]:
        broken.append(f"commits/{commit}")
    for path in broken:
        damage = f"a copy of {spare}, whose states are older" if texts[path] == texts.get(spare) else "cut or damaged"
        fault = f"is {damage}" if texts[path] else "is empty, as a power loss leaves it"
        removed = f"it and offsets/{begun}" if begun > commit else "it"
        yield Damage(path, fault, _AGAIN.format(removed) if path == f"commits/{commit}" else COPY)
    if begun > commit + 1 and STATE_IDS in texts.get(f"commits/{commit}", ""):
        # Spark would run the last one on a state that it does not find.
        fault = f"is missing, but offsets/{begun} was written after it"
        yield Damage(f"commits/{begun - 1}", fault, _AGAIN.format(f"each file after offsets/{commit + 1}"))
    # Entry 0 may be the only file of a first start that was killed.
    read = max((last[folder] for folder in last if folder.startswith("sources/")), default=0)
    if max(begun, commit) < 0 < read:
        yield Damage("offsets", f"has no micro-batch, but entry {read} of a source's log was written after others")
    if "commits" in last and last["commits"] not in logs.get("offsets", ()):
        yield Damage(f"offsets/{last['commits']}", "is missing, but its micro-batch is committed")
    whole = sorted((int(path.rpartition("/")[2]), path) for path in texts if path.startswith("offsets/"))
    offsets = [(path, texts[path].splitlines()[2:]) for _, path in whole if path not in broken]
    if any(len(sources) > len(offsets[-1][1]) for _, sources in offsets):
        yield Damage(offsets[-1][0], "is cut or damaged: it lacks the offsets of a source")
    elif offsets:
        yield from lost_entries(*offsets[-1], logs)


def lost_folders(texts: Mapping[str, str], logs: Logs, there: Collection[str]) -> Iterator[Damage]:
    """Yield the folders that the texts of `needed` files show to be missing, from those that are there."""
    begun, commit = (max(logs.get(name, ()), default=-1) for name in ("offsets", "commits"))
    if commit < 0 < begun:
        yield Damage("commits", f"has no micro-batch, but offsets/{begun} was begun after others")
    if "state" not in there and f'"{STATE_IDS}":{{"' in texts.get(f"commits/{commit}", ""):
        yield Damage("state", f"is missing, but commits/{commit} names its files")


def _is_whole(path: str, text: str) -> bool:
    kind, lines = path.partition("/")[0], text.splitlines()
    if kind != "metadata" and not (lines and re.fullmatch(r"v\d+", lines.pop(0))):
        return False
    try:
        bodies = [json.loads(line) for line in lines if line not in ("-", "")]
    except ValueError:
        return False
    # The file source writes an entry's number into each line. Those of another entry name files that were read already.
    number = path.rpartition("/")[2]
    ids = {str(body.get("batchId", number)) for body in bodies if isinstance(body, dict)}
    if kind == "sources" and number.isdigit() and not ids <= {number}:
        return False
    head = bodies[0] if bodies and isinstance(bodies[0], dict) else {}
    least = {"metadata": 1, "commits": 1, "offsets": 2}.get(kind, 0)
    return len(lines) >= least and {"metadata": "id", "offsets": "batchWatermarkMs"}.get(kind) in (None, *head)


def lost_entries(path: str, offsets: Sequence[str], logs: Logs, sources: Sequence[str] = ()) -> list[Damage]:
    """Return missing entries of sources' logs. A DataFrame for both inputs has one, as the plan's ``sources`` show."""
    if sources and len(offsets) - len(sources) in (0, 1):  # The last one may be the heartbeat of `write_stream`.
        return list(_lost(path, offsets, logs, sources))
    files = [line if "logOffset" in line else str(number) for number, line in enumerate(offsets)]
    ways = list(map(str, range(len(offsets)))), offsets, files
    found = [list(_lost(path, offsets, logs, way)) for way in ways]
    gone = [sum(damage.path.rpartition("/")[0] not in logs for damage in damages) for damages in found]
    return min(zip(gone, map(len, found), found, strict=True))[2] if gone[0] else found[0]


def _lost(path: str, offsets: Sequence[str], logs: Logs, sources: Sequence[str]) -> Iterator[Damage]:
    numbers = {source: number for number, source in enumerate(dict.fromkeys(sources))}
    for number, line in {numbers[source]: line for source, line in zip(sources, offsets, strict=False)}.items():
        match = re.fullmatch(r'\{"logOffset":(\d+)\}', line.strip())
        entries = logs.get(f"sources/{number}", {})
        first = next((one for one, name in entries.items() if name.endswith(".compact")), 0)
        lost = [one for one in range(first, int(match[1]) + 1) if one not in entries] if match else []
        if lost:
            yield Damage(
                f"sources/{number}/{lost[0]}",
                f"is missing{f', and {len(lost) - 1} more' if lost[1:] else ''}, but {path} counts it: Spark would "
                "read the files that are named in it again and silently drop new ones",
            )


# --- the micro-batches that a query has begun and committed ----------------------------------------------------------


def committed_batches(spark: SparkSession, checkpoint: str) -> list[int]:
    """Return the micro-batches that are committed and kept, ascending. Raises NoCheckpointError."""
    try:
        return sorted(logs_of(files_in(spark, checkpoint, "commits")).get("commits", ()))
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        if _is_empty(spark, f"{literal(checkpoint.rstrip('/'))}/commits"):
            return []  # Its query is starting: Spark has not written ``metadata`` yet.
        raise NoCheckpointError(
            f"checkpoint={checkpoint!r} is not a checkpoint of a streaming query: name the checkpointLocation of the "
            "query that writes the purgatory's outcomes"
        ) from error


def _is_empty(spark: SparkSession, folder: str) -> bool:
    try:
        return not spark.read.text([folder] * 2).inputFiles()
    except AnalysisException:
        return False


def next_batch(spark: SparkSession, checkpoint: str) -> int:
    """Return the micro-batch that Spark will run next: the first that is not committed."""
    try:
        return max(committed_batches(spark, checkpoint), default=-1) + 1
    except NoCheckpointError:
        return 0


def body_of(entry: str) -> dict[str, Any]:
    """Return the JSON object of an entry of ``offsets`` or ``commits``, which follows the line with its version."""
    body: dict[str, Any] = json.loads(entry.splitlines()[1])
    return body


def with_body(entry: str, body: Mapping[str, Any]) -> str:
    version, _, *others = entry.split("\n")
    return "\n".join([version, json.dumps(body, separators=(",", ":")), *others])


def is_within_a_batch(spark: SparkSession, checkpoint: str) -> bool:
    logs = logs_of(files_in(spark, checkpoint, "offsets", "commits"))
    return max(logs.get("offsets", ()), default=-1) > max(logs.get("commits", ()), default=-1)


def entry_of(spark: SparkSession, checkpoint: str, path: str) -> tuple[dict[str, Any], list[str]]:
    """Return the JSON object of a file below a checkpoint, and the lines after it: in ``offsets`` one a source."""
    try:
        text = texts_of(spark, checkpoint, [path])[path]
        return body_of(text), text.splitlines()[2:]
    except READ_FAULTS:
        damage = next(unreadable(spark, checkpoint, [path]), Damage(path, "is empty, cut or damaged"))
        raise StorageError(f"checkpoint={checkpoint!r} is damaged: {damage}") from None


def format_of(spark: SparkSession, checkpoint: str, batch_id: int) -> str:
    """Return the `FORMAT_VERSION` of a micro-batch's states. The commit has names for those of format 2."""
    return "2" if entry_of(spark, checkpoint, f"commits/{batch_id}")[0].get(STATE_IDS) else "1"


def fixed_settings(spark: SparkSession, checkpoint: str, sources: Sequence[str]) -> dict[str, str]:
    """Return the settings that a checkpoint fixes for any session; none before the first micro-batch.

    Spark keeps them in the offsets, except the format of state stores, which the last commit shows. StorageError if a
    log of the plan's ``sources`` is not whole.
    """
    logs = logs_of(files_in(spark, checkpoint, "offsets", "commits", "sources"))
    if not (begun := logs.get("offsets")):
        return {}
    last = f"offsets/{max(begun)}"
    facts, offsets = entry_of(spark, checkpoint, last)
    if lost := lost_entries(last, offsets, logs, sources):
        raise StorageError(f"checkpoint={checkpoint!r} is damaged. Nothing was started. {'; '.join(map(str, lost))}")
    fixed = dict(facts.get("conf", {}))
    if committed := logs.get("commits"):
        fixed[FORMAT_VERSION] = format_of(spark, checkpoint, max(committed))
    return fixed


def repartitions_in(spark: SparkSession, checkpoint: str, batch_ids: Iterable[int]) -> list[int]:
    """Return the micro-batches made by Spark's own ``repartition`` (4.2), up to the first that it did not make.

    Such a micro-batch has the offsets and the time of the one before it, and no sink ever sees it. One that follows a
    failed micro-batch is not counted.
    """

    def is_repartition(batch_id: int) -> bool:
        if not {batch_id - 1, batch_id} <= set(committed_batches(spark, checkpoint)):
            return False
        one, other = (entry_of(spark, checkpoint, f"offsets/{each}") for each in (batch_id - 1, batch_id))
        return one[1] == other[1] and one[0]["batchTimestampMs"] == other[0]["batchTimestampMs"]

    return list(takewhile(is_repartition, batch_ids))
