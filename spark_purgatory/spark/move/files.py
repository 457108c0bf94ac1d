"""Files of a checkpoint through Hadoop's FileSystem. It may be an object store, so nothing is renamed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from pyspark.sql import SparkSession

from spark_purgatory.errors import ConfigError, StorageError, sentence_of
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
    """Operations on files and folders by their paths."""

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
        """Write a small file, which may replace another one."""
        system, place = self._at(path)
        with closing(system.create(place, True)) as stream:
            stream.write(bytearray(text.encode()))

    def copy(self, source: str, target: str) -> None:
        """Copy a file, or a folder with its contents."""
        (from_system, from_place), (to_system, to_place) = self._at(source), self._at(target)
        self._jvm.org.apache.hadoop.fs.FileUtil.copy(
            from_system, from_place, to_system, to_place, False, True, self._conf
        )

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its contents, if it is there."""
        system, place = self._at(path)
        system.delete(place, True)
