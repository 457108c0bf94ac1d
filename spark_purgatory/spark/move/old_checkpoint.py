"""The checkpoint that is moved, read from Spark's own files, and the checks that refuse a move."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from spark_purgatory.config.places import ENCODED, Place
from spark_purgatory.errors import ConfigError, StorageError, sentence_of
from spark_purgatory.spark.checkpoint.shard_states import in_format
from spark_purgatory.spark.host.requirements import PROVIDER
from spark_purgatory.spark.placement import PARTITIONS
from spark_purgatory.spark.sink.table.table_place import check_outside, claimed_by
from spark_purgatory.spark.storage.checkpoint_files import (
    MOVED,
    STATE_IDS,
    UNFINISHED,
    body_of,
    check_files,
    repartitions_in,
)
from spark_purgatory.spark.storage.storage_errors import JAVA_FAULTS, without_reach


@contextmanager
def reaching(field: str, path: str) -> Iterator[None]:
    """Raise StorageError, with the name of its field, for a path that cannot be reached."""
    try:
        yield
    except JAVA_FAULTS as error:
        remedy = without_reach(error) or "repair its storage, or give another path"
        raise StorageError(
            f"{field}={path!r} cannot be read: {sentence_of(error)}. Nothing was written: {remedy}"
        ) from error


class Files:
    """Files and folders of a checkpoint through Hadoop's FileSystem. Nothing is renamed: it may be an object store."""

    def __init__(self, spark: SparkSession) -> None:
        jvm = getattr(spark, "_jvm", None)
        if jvm is None:
            raise ConfigError(
                "spark is a session of Spark Connect, which cannot write single files: move the checkpoint in a "
                "session on the cluster itself, with spark-submit or spark-purgatory move"
            )
        self._jvm: Any = jvm
        self._conf: Any = spark._jsc.hadoopConfiguration()

    def _at(self, path: str) -> tuple[Any, Any]:
        place = self._jvm.org.apache.hadoop.fs.Path(path)
        return place.getFileSystem(self._conf), place

    def exists(self, path: str) -> bool:
        system, place = self._at(path)
        return bool(system.exists(place))

    def names(self, folder: str, folders_only: bool = False) -> list[str]:
        """Return the names in a folder, or only those of folders; none if there is no such folder."""
        system, place = self._at(folder)
        found = system.listStatus(place) if system.exists(place) else ()
        return sorted(status.getPath().getName() for status in found if status.isDirectory() or not folders_only)

    def read(self, path: str) -> str:
        system, place = self._at(path)
        with closing(system.open(place)) as stream:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode()

    def write(self, path: str, text: str) -> None:
        system, place = self._at(path)
        with closing(system.create(place, True)) as stream:
            stream.write(bytearray(text.encode()))

    def copy(self, source: str, target: str) -> None:
        (from_system, from_place), (to_system, to_place) = self._at(source), self._at(target)
        self._jvm.org.apache.hadoop.fs.FileUtil.copy(
            from_system, from_place, to_system, to_place, False, True, self._conf
        )

    def delete(self, path: str) -> None:
        system, place = self._at(path)
        system.delete(place, True)


@dataclass(frozen=True)
class OldCheckpoint:
    path: str
    query_id: str
    batch_id: int  # The last micro-batch that is committed
    partitions: int
    offsets: dict[int, str]  # The texts of the last two micro-batches, and of one that was begun, by micro-batch
    has_staging: bool
    state_format: str  # The `FORMAT_VERSION` of its states

    @property
    def provider(self) -> str:
        return conf_of(self.offsets[self.batch_id])[PROVIDER]

    @staticmethod
    def read(files: Files, path: str, field: str = "source") -> OldCheckpoint:
        """Read a checkpoint. Raises ConfigError, with the name ``field``, if no query can continue from it."""
        metadata = files.read(f"{path}/metadata") if files.exists(f"{path}/metadata") else ""
        if metadata == UNFINISHED:
            raise ConfigError(f"{field}={path!r} is an unfinished move and lacks state: pass the source of that move")
        commits, begun = (batches_in(files, f"{path}/{name}") for name in ("commits", "offsets"))
        if not commits:
            raise ConfigError(
                f"{field}={path!r} has no committed micro-batch, so it has no state: name the checkpointLocation of a "
                "query that has run. A new query needs no move: start it with any settings"
            )
        last = commits[-1]
        try:
            offsets = {number: files.read(f"{path}/offsets/{number}") for number in begun if number >= last - 1}
            conf, query_id = {n: conf_of(text) for n, text in offsets.items()}[last], str(json.loads(metadata)["id"])
            _ = int(conf[PARTITIONS]), conf[PROVIDER], offsets[max(last - 1, 0)]
            commit = body_of(files.read(f"{path}/commits/{last}"))
        except (ValueError, KeyError, IndexError) as error:
            files_of = f"'metadata', 'commits/{last}', 'offsets/{last}' or 'offsets/{max(last - 1, 0)}'"
            raise ConfigError(
                f"{field}={path!r} is damaged: {files_of} of its last micro-batch, {last}, is missing or cannot be "
                "read. Bring the folder back from a copy"
            ) from error
        has_staging = "staging" in files.names(path)
        return OldCheckpoint(
            path,
            query_id,
            last,
            int(conf[PARTITIONS]),
            offsets,
            has_staging=has_staging,
            state_format="2" if commit.get(STATE_IDS) else "1",
        )

    def check_rests(self, files: Files) -> None:
        now = [batches_in(files, f"{self.path}/{name}")[-1] for name in ("commits", "offsets")]
        if now != [self.batch_id, max(self.offsets)]:
            raise ConfigError(f"the query of source={self.path!r} is still running: stop it, then run the move again")

    def check_alone(self, files: Files) -> list[str]:
        """Return the checkpoints that it was moved to, one after the other. ConfigError if a query has run there."""
        found = [self.path]
        while files.exists(moved := f"{found[-1]}/{MOVED}"):
            later = files.read(moved)
            if later in found or not files.exists(f"{later}/metadata"):
                break
            found.append(later)
            if self._has_begun(files, later):
                raise ConfigError(
                    f"source={self.path!r} was moved to {later!r}, whose query has run since and has its rows: a "
                    "second move would bring them again. Nothing was written. Start with that one, or give it as source"
                )
        return found[1:]

    def _has_begun(self, files: Files, later: str) -> bool:
        commits, begun = (max(batches_in(files, f"{later}/{name}"), default=-1) for name in ("commits", "offsets"))
        entries, ours = (set(entries_in(files, f"{path}/staging/log")) for path in (later, self.path))
        return commits > self.batch_id or begun > max(self.offsets) or not entries <= ours

    def check_can_move(self, spark: SparkSession) -> None:
        """Raise ConfigError if it cannot be moved, and StorageError if it is damaged, with the remedy."""
        check_files(spark, self.path, "source", "written")
        if any(query.id == self.query_id for query in spark.streams.active):
            raise ConfigError(f"source={self.path!r}: its query is running in this session: stop it, then move")
        with in_format(spark, self.path, self.state_format) as own:
            names = [row["operatorName"] for row in own.read.format("state-metadata").load(self.path).collect()]
        if len(names) > 1:
            raise ConfigError(
                f"source={self.path!r} has the state of {len(names)} operators ({', '.join(sorted(names))}), but a "
                "move takes over only that of one purgatory: keep its settings, or start new queries, one for each "
                "operator, with a table between them, new checkpoints and new tables"
            )
        if max(self.offsets) > self.batch_id and not self.has_staging:
            raise ConfigError(
                f"source={self.path!r}: micro-batch {max(self.offsets)} was begun but not committed, and its sink may "
                "have written it: start the old query once more with trigger(availableNow=True), then move"
            )
        if self.has_staging and repartitions_in(spark, self.path, [self.batch_id]):
            raise ConfigError(
                f"source={self.path!r}: its last micro-batch, {self.batch_id}, is Spark's own repartition, which the "
                "staging log would miss: start the old query once more with trigger(availableNow=True), then move"
            )


def batches_in(files: Files, folder: str) -> list[int]:
    return sorted(int(name) for name in files.names(folder) if name.isdigit())


def entries_in(files: Files, folder: str) -> Iterator[str]:
    """Yield the files below a folder, but for hidden ones."""
    folders = files.names(folder, folders_only=True)
    for name in files.names(folder):
        if name in folders:
            yield from (f"{name}/{path}" for path in entries_in(files, f"{folder}/{name}"))
        elif not name.startswith((".", "_")):
            yield name


def conf_of(offsets: str) -> dict[str, str]:
    return dict(body_of(offsets)["conf"])


def check_target(spark: SparkSession, files: Files, source: str, target: str) -> None:
    if lie_in_each_other(target, source):
        raise ConfigError(f"target={target!r} and source={source!r} overlap: give target a folder of its own")
    if found := ENCODED.findall(target):
        raise ConfigError(
            f"target={target!r} contains {', '.join(map(repr, dict.fromkeys(found)))}, and Spark's reader of state "
            "stores finds nothing at such a path: give a path without"
        )
    if (table := claimed_by(spark, source).get("path")) is not None:
        check_outside(spark, target, table)
    metadata = f"{target}/metadata"
    is_unfinished = files.exists(metadata) and files.read(metadata) == UNFINISHED
    if files.names(target) and not is_unfinished:
        raise ConfigError(f"target={target!r} is not empty: give a folder that does not exist yet")


def lie_in_each_other(one: str, other: str) -> bool:
    places = Place.of(one), Place.of(other)
    return places[0].below(places[1]) is not None or places[1].below(places[0]) is not None
