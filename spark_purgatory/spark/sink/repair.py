"""Finds the true one of two entries with one name in a staging log, and removes the other.

Two runs of a query that write at once leave two intents of one number. The one whose commit the table has is true. If
the table has neither, the intent that covers more micro-batches is true: it takes or leaves everything that was staged
up to its last micro-batch, so no row is lost. Both runs must be stopped.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import SparkSession

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import START_OVER, ConfigError, ForeignWriterError, StagingError, StorageError
from spark_purgatory.spark.sink.staging.ledger import LogEntry
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder
from spark_purgatory.spark.sink.table.formats import opened, with_format
from spark_purgatory.spark.sink.table.table_place import app_id_of, claimed_by
from spark_purgatory.spark.sink.table.target import Target


class Conflict(NamedTuple):
    true: LogEntry
    false: tuple[LogEntry, ...]
    why: str

    def __str__(self) -> str:
        others = ", ".join(entry.path for entry in self.false)
        return f"{self.true.name}: {self.true.path} is the true entry, because {self.why}. Not true: {others}"


def conflicts(spark: SparkSession, checkpoint: str) -> list[Conflict]:
    """Return the intents of one number that differ, with the true one.

    Raises ConfigError if the checkpoint does not belong to a sink, ForeignWriterError if the table has a commit of
    someone else, StagingError if other entries differ, or one is damaged.
    """
    place = StagingFolder.of(spark, checkpoint)
    by_name: dict[str, list[LogEntry]] = {}
    for entry in place.read_entries(spark):
        by_name.setdefault(entry.name, []).append(entry)
    differing = {name: found for name, found in by_name.items() if any(entry.body != found[0].body for entry in found)}
    if not differing:
        return []
    claimed = claimed_by(spark, checkpoint)
    if not claimed:
        raise ConfigError(f"checkpoint={checkpoint!r} was not made by a RecordAccumulator: there is nothing to repair")
    target = opened(with_format(spark, SinkOptions(path=claimed.get("path"), table=claimed.get("table"))))
    app_id = app_id_of(spark, checkpoint)
    return [_decided(spark, target, app_id, name, found) for name, found in sorted(differing.items())]


def repair(spark: SparkSession, checkpoint: str, found: list[Conflict]) -> None:
    place = StagingFolder.of(spark, checkpoint)
    for entry in (entry for conflict in found for entry in conflict.false):
        place.remove(spark, entry.path)


def _decided(spark: SparkSession, target: Target, app_id: str, name: str, entries: list[LogEntry]) -> Conflict:
    if not name.startswith("intent="):
        raise StagingError(
            f"the entries {', '.join(entry.path for entry in entries)} differ, and nothing shows which is true. Bring "
            f"the checkpoint's folder 'staging' back from a copy, or {START_OVER}"
        )
    number = int(name.partition("=")[2])
    since = [entry.body["base_version"] for entry in entries]
    history = target.history(spark, min(since)) if target.exists(spark) else target.no_history
    commit = history.drains(app_id).get(number)
    if commit is not None:
        true = next((entry for entry in entries if entry.body["uuid"] == commit.intent_uuid), None)
        if true is None:
            raise ForeignWriterError(
                f"table {target} has drain {number} of app id {app_id!r}, but neither log entry of that number made it "
                f"({', '.join(entry.path for entry in entries)}), so another writer uses the query's app id. Nothing "
                f"was changed. Stop that writer, and {START_OVER}"
            )
        why = f"version {commit.version} of table {target} is its commit"
    elif not all(map(history.is_whole_since, since)):
        raise StorageError(
            f"the history of table {target} was cut after drain {number} began, so it does not show whether "
            f"{' or '.join(entry.path for entry in entries)} was committed. Nothing was changed: {START_OVER}"
        )
    else:
        true = max(entries, key=lambda entry: (entry.body["last_batch"], entry.body["run"]))
        last = true.body["last_batch"]
        why = f"table {target} holds neither commit, and this entry covers micro-batches up to {last}"
    return Conflict(true, tuple(entry for entry in entries if entry.body != true.body), why)
