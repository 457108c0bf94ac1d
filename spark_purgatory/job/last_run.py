"""The end of a job's last run, by which the next one sees that it has nothing to do, before it starts Spark.

It has nothing to do if its file, the checkpoint's logs and the table's log are as that run left them, and every file of
the sources was read then. Only the disk of this machine is looked at.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from pyspark import __version__ as spark_version
from pyspark.sql import SparkSession

from spark_purgatory.config.places import split_uri
from spark_purgatory.job.job_config import JobConfig
from spark_purgatory.job.source_config import FolderSource
from spark_purgatory.job.summary import JobTally, Summary
from spark_purgatory.spark.sink.staging.staging_folder import local_folder
from spark_purgatory.spark.storage.checkpoint_files import MOVED, body_of, damages_on_disk, logs_of
from spark_purgatory.spark.storage.storage_access import GLOB_CHARACTERS
from spark_purgatory.version import __version__

NAME = "last_run"
"""A file of the checkpoint. Its time is that of the last run, which may have done nothing."""
SPARKS_LOGS = ("offsets/*", "commits/*", "sources/*/*")


class Places(NamedTuple):
    """Folders on the disk of this machine."""

    checkpoint: Path
    table: Path
    sources: tuple[Path, ...]


def write_last_run(
    spark: SparkSession, config: JobConfig, table_version: int, summary: Summary, gauges: dict[str, Any]
) -> None:
    """Note the end of a run that has read everything, unless it left rows staged.

    ``table_version``: the newest one before the summary was made.
    """
    places = _places(config) if summary.adds_up and not summary.staged else None
    if places is None or local_folder(spark, config.checkpoint) is None:
        return
    if (now := _now(config, places, table_version)) is None or not _is_done(places, now["logs"]):
        return
    body = now | {"summary": asdict(summary), "gauges": gauges}
    new = places.checkpoint / f".{NAME}.{os.getpid()}"
    new.write_text(json.dumps(body), encoding="utf-8")
    new.replace(places.checkpoint / NAME)


def nothing_new(config: JobConfig) -> tuple[Summary, dict[str, Any]] | None:
    """Return the summary and the gauges of the last run if there is nothing to do since, and note this run; or None."""
    if (places := _places(config)) is None:
        return None
    try:
        last = json.loads((places.checkpoint / NAME).read_text(encoding="utf-8"))
        now = _now(config, places, last["table_version"])
        is_same = now is not None and all(last[name] == value for name, value in now.items())
        if not is_same or (places.checkpoint / MOVED).exists() or not _all_read(places):
            return None
        if damages_on_disk(places.checkpoint):
            return None
        summary = Summary(**last["summary"] | {"tally": JobTally(*last["summary"]["tally"])})
        (places.checkpoint / NAME).touch()
        return summary, last["gauges"]
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def table_version_of(config: JobConfig) -> int:
    """Return the version of the job's table; -1 without one on this machine's disk."""
    places = _places(config)
    files = places.table.glob("_delta_log/*.json") if places else ()
    return max((int(file.stem) for file in files if file.stem.isdigit()), default=-1)


def _places(config: JobConfig) -> Places | None:
    """Return the folders of a job that has nothing to do without new files; None for another job."""
    inputs = config.operations, config.completions
    sources = [each.source for each in inputs if isinstance(each.source, FolderSource)]
    is_timed = any(each.made().idle_after is not None for each in inputs)
    has_more = config.metrics is not None or config.dead_letters is not None or is_timed
    if has_more or not config.trigger.availableNow or len(sources) < 2 or config.output.topic is not None:
        return None
    table = config.output.made().path
    if table is None:
        return None
    paths = [config.checkpoint, table, *(source.path for source in sources)]
    found = [split_uri(path) for path in paths]
    # A path without a scheme is in the storage of the checkpoint, which is known to be here.
    if {scheme for scheme, _, _ in found} not in ({None}, {"file"}) or any(map(GLOB_CHARACTERS.search, paths)):
        return None
    checkpoint, output, one, other = (Path(path).absolute() for _, _, path in found)
    if one.is_relative_to(other) or other.is_relative_to(one):
        return None  # A file is read once for each.
    return Places(checkpoint, output, (one, other))


def _now(config: JobConfig, places: Places, table_version: int) -> dict[str, Any] | None:
    """Return what is as it was if nothing has happened since; None if the table has another version."""
    log = places.table / "_delta_log"
    commit = log / f"{table_version:020d}.json"
    if not commit.is_file() or (log / f"{table_version + 1:020d}.json").exists():
        return None
    made_by = __version__, spark_version, config.model_dump(mode="json", warnings=False)
    logs = {folder: max(entries) for folder, entries in _logs(places).items()}
    now = {"job": sha256(repr(made_by).encode()).hexdigest(), "logs": logs, "table_version": table_version}
    return now | {"commit_ns": commit.stat().st_mtime_ns}  # A table made anew may have the same version.


def _logs(places: Places) -> dict[str, dict[int, str]]:
    files = chain.from_iterable(map(places.checkpoint.glob, SPARKS_LOGS))
    return {folder: dict(entries) for folder, entries in logs_of(map(str, files)).items()}


def _is_done(places: Places, logs: dict[str, int]) -> bool:
    """Return True if the last micro-batch is committed, and no operation is due since."""
    begun, ended = (logs.get(name) for name in ("offsets", "commits"))
    if begun is None or begun != ended:
        return False
    entries = [(places.checkpoint / name / str(begun)).read_text(encoding="utf-8") for name in ("offsets", "commits")]
    return bool(body_of(entries[0])["batchWatermarkMs"] == body_of(entries[1])["nextBatchWatermarkMs"])


def _all_read(places: Places) -> bool:
    """Return True if Spark's logs of the sources have every file, as it is now."""
    read = {
        (entry["path"], entry["timestamp"])
        for folder, entries in _logs(places).items()
        if folder.startswith("sources/")
        for name in entries.values()
        for entry in map(json.loads, (places.checkpoint / name).read_text(encoding="utf-8").splitlines()[1:])
    }
    files = ((file.as_uri(), file.stat().st_mtime_ns // 1_000_000) for file in _files(places.sources))
    return all(map(Path.is_dir, places.sources)) and read.issuperset(files)


def _files(folders: tuple[Path, ...]) -> Iterator[Path]:
    """Yield at least all files that Spark would see."""
    for top, inner, names in chain.from_iterable(os.walk(folder, followlinks=True) for folder in folders):
        inner[:] = [name for name in inner if not name.startswith(("_", ".")) or "=" in name]
        yield from (Path(top, name) for name in names if not name.startswith(("_", ".")))
