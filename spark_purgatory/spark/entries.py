"""Small durable records in a folder, and the removal of folders, by nothing but DataFrames.

An entry is a folder ``log/epoch=<e>/<name>-<uuid>`` with one text file in it: a line of JSON with a checksum. It is
there when the file is: Spark renames it into place. The uuid lets a second try stand beside what a crash left of the
first, and lets two writers of one name be seen. A *note* has a number in the place of the uuid and takes the place of
the last one: whoever writes it can write it again.

A folder is removed by overwriting it with no rows: an object store has nothing there then, a file system an empty
folder.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_purgatory.errors import StagingError
from spark_purgatory.spark.paths import in_checkpoint

GLOB_CHARACTERS = re.compile(r"([\\*?\[\]{}])")
NO_SUCCESS_FILE = "mapreduce.fileoutputcommitter.marksuccessfuljobs"
SMALL_QUERY: Mapping[str, str] = {
    # A handful of rows: compiling and re-planning the query costs more than to run it (110 ms instead of 300).
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    # Listing more than 32 folders is a job of one task for each folder, where 8 do.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}
Body = dict[str, Any]


def literal(path: str) -> str:
    """A path in which no character is a wildcard to Spark's readers."""
    return GLOB_CHARACTERS.sub(r"\\\1", path)


@contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Session settings for the duration of a block."""
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def write_entry(spark: SparkSession, folder: str, epoch: int, name: str, body: Body, note: int | None = None) -> None:
    """Make an entry durable; with ``note`` in the place of the one of this number."""
    text = json.dumps(body, separators=(",", ":"))
    line = json.dumps({"crc32": zlib.crc32(text.encode()), "entry": name, "body": text})
    writer = spark.range(0, 1, 1, 1).select(F.lit(line).alias("value")).write.option(NO_SUCCESS_FILE, "false")
    path = f"{folder}/log/epoch={epoch}/{name}-{uuid4() if note is None else note}"
    writer.mode("error" if note is None else "overwrite").text(path)


def read_entries(spark: SparkSession, folder: str, others_write: bool = False) -> list[tuple[str, Body]]:
    """Every entry of the log, as (name, body). StagingError if one is damaged.

    With ``others_write`` those that vanish meanwhile are passed over.
    """
    reader = spark.read.option("recursiveFileLookup", "true").option("wholetext", "true")
    reader = reader.option("ignoreMissingFiles", others_write).option("pathGlobFilter", "part-*")
    checkpoint, _, name = folder.rpartition("/")
    for paths in (in_checkpoint(literal(checkpoint), f"{name}/log"), [literal(f"{folder}/log")]):
        try:
            return [_parse(row["value"], folder) for row in reader.text(paths).collect()]
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
    return []


def _parse(line: str, folder: str) -> tuple[str, Body]:
    try:
        entry = json.loads(line)
        text = entry["body"]
        if zlib.crc32(text.encode()) == entry["crc32"]:
            return entry["entry"], json.loads(text)
    except (ValueError, KeyError, TypeError):
        pass
    raise StagingError(
        f"an entry of {len(line)} characters in {folder}/log is damaged: its checksum does not fit. Nothing was "
        "written. Restore the file from a copy; the staged rows themselves lie beside it in plain Parquet"
    )


def wipe(spark: SparkSession, path: str) -> None:
    """Remove everything below a folder."""
    nothing = spark.range(0, 0, 1, 1).select(F.lit("").alias("value"), F.lit(0).alias("gone"))
    writer = nothing.write.partitionBy("gone").mode("overwrite").option("partitionOverwriteMode", "static")
    writer.option(NO_SUCCESS_FILE, "false").text(path)
