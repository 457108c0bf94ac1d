"""Rows into staged files and back: a job for each micro-batch that writes, and one for many that counts.

Files lie in ``<staging>/epoch=<e>/batch=<id>-<run>``, one a task: files are what a small write costs. Each holds the
rows of all table partitions, sorted by a column more, the hash of the partition's values, in small pages: who reads the
rows of one partition skips nearly all others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import ConfigError, ForeignWriterError, StagingError
from spark_purgatory.spark.entries import NO_SUCCESS_FILE, literal
from spark_purgatory.spark.faults import storage_fault
from spark_purgatory.spark.ledger import Piece
from spark_purgatory.spark.paths import in_checkpoint

PIECES_PER_FILE = 8
"""A staged file is at most this part of ``batch_size``: a batch that has no room for the next is at least 7/8 full."""
MAX_NAME_BYTES = 255
"""Of one folder's name, on nearly every file system."""
ESCAPED = r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]"
"""What Spark and Delta write as %XX in the name of a partition's folder."""
FAULT = "spark_purgatory:"
_FAULT_TEXT = re.compile(re.escape(FAULT) + r" ([^\n]*?) :spark_purgatory")


PAGE_ROWS = 1000
_FILE = re.compile(r"epoch=(\d+)/batch=(\d+)-(\d+)-[0-9a-f]+/[^/]+$")
_WRITER = re.compile(r"/part-\d+-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})[^/]*$")
"""Spark names the files of one write alike."""


@dataclass(frozen=True)
class Rules:
    """How rows of a schema are staged. Made once: to build the columns takes as long as to write a file."""

    counts: tuple[Column, Column]
    """Rows, and their plain bytes: before any encoding."""
    acceptable: Column
    """True, or an error that says what no sink could take."""
    name: str
    """Of the column more."""
    partition: Column | None
    """That column, if the table has partitions: hash of the partition's values, where a row is acceptable."""


def rules_of(schema: T.StructType, options: SinkOptions, partition_by: Sequence[str]) -> Rules:
    """The rules for rows of a schema."""
    row_bytes = _row_bytes(schema)
    acceptable, name = _acceptable(schema, row_bytes, options, partition_by), hash_name(schema.names)
    # One column of both, not a filter and a column: every step is analysed anew in every micro-batch.
    hashed = F.when(acceptable, F.hex(F.xxhash64(*map(quoted, partition_by)))) if partition_by else None
    return Rules(
        counts=(F.count(F.lit(1)).alias("rows"), F.sum(row_bytes).alias("bytes")),
        acceptable=acceptable,
        name=name,
        partition=None if hashed is None else hashed.alias(name),
    )


def stage(rows: DataFrame, path: str, rules: Rules, max_file_rows: int) -> tuple[int, int]:
    """Write the rows of a micro-batch in the place of what is there, evaluating it once.

    Returns how many there are, and their plain bytes. ConfigError for a row that no sink could take.
    """
    seen = Observation()
    checked = rows.observe(seen, *rules.counts)
    if rules.partition is None:
        checked = checked.where(rules.acceptable)
    else:
        checked = checked.select("*", rules.partition).sortWithinPartitions(rules.name)
    writer = checked.write.mode("overwrite").option("partitionOverwriteMode", "static")
    writer = writer.option("maxRecordsPerFile", max_file_rows).option(NO_SUCCESS_FILE, "false")
    try:
        writer.option("parquet.page.row.count.limit", PAGE_ROWS).parquet(path)
    except Exception as error:
        if fault := _FAULT_TEXT.search(str(error)):
            raise ConfigError(fault[1]) from None
        if fault_said := storage_fault(error):
            raise StagingError(
                f"a micro-batch could not be staged in {path}: {fault_said}. It does not count, what was staged before "
                "it waits. Mend the storage and start again"
            ) from error
        raise
    found = seen.get
    return found["rows"], found["bytes"] or 0


def measured(spark: SparkSession, paths: Sequence[str], hash_column: str) -> list[Piece]:
    """The pieces in the files below some folders, in the order of their rows. One task."""
    reader = spark.read.schema(f"{hash_column} string").option("recursiveFileLookup", "true")
    reader = reader.option("pathGlobFilter", "*.parquet")
    modified_ms = F.expr("unix_millis(_metadata.file_modification_time)").alias("modified_ms")
    file = "_metadata.file_path", "_metadata.file_size", modified_ms
    counts = reader.parquet(*paths).coalesce(1).groupBy(*file, hash_column).count().collect()
    rows_of: dict[str, int] = {}
    for path, _, _, _, rows in counts:
        rows_of[path] = rows_of.get(path, 0) + rows
    pieces = [
        replace(
            file_at(path, ms), partition=partition or "", rows=rows, staged_bytes=math.ceil(size * rows / rows_of[path])
        )
        for path, size, ms, partition, rows in counts
    ]
    return sorted(pieces, key=lambda piece: (piece.batch_id, _file_name(piece)))


def staged_paths(spark: SparkSession, folder: str) -> list[str]:
    """Every staged file, without a look inside."""
    reader = spark.read.schema("n int").option("recursiveFileLookup", "true").option("pathGlobFilter", "*.parquet")
    checkpoint, _, name = folder.rpartition("/")
    try:
        return reader.parquet(*in_checkpoint(literal(checkpoint), f"{name}/epoch=*")).inputFiles()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return []


def file_at(path: str, staged_ms: int = 0) -> Piece:
    """A whole staged file, known by its path alone."""
    match = _FILE.search(path)
    if match is None:
        raise StagingError(f"{path} is no file of the staging folder: remove what others have put there")
    return Piece("", match[0], 0, 0, int(match[2]), int(match[1]), staged_ms, int(match[3]))


def check_one_writer(pieces: Iterable[Piece], folder: str) -> None:
    """Raise ForeignWriterError if a micro-batch was staged by two runs at once."""
    writers: dict[str, set[str]] = {}
    for piece in pieces:
        match = _WRITER.search(piece.path)
        if match is not None:
            writers.setdefault(piece.folder, set()).add(match[1])
    for path, ids in writers.items():
        if len(ids) > 1:
            raise ForeignWriterError(
                f"{folder}/{path} holds files of {len(ids)} writers, {', '.join(sorted(ids))}: two runs of the query "
                "staged the same micro-batch at once. Nothing was committed. Stop one of them, remove the files of one "
                "of these names, which hold the same rows, and start again"
            )


def read_pieces(
    spark: SparkSession, folder: str, schema: T.StructType, pieces: Sequence[Piece], whole: Sequence[Piece] = ()
) -> DataFrame:
    """The rows of pieces, and of whole files; their pages' checksums are verified."""
    name = hash_name(schema.names)
    rows = _read(spark, folder, schema, {piece.path for piece in (*pieces, *whole)})
    # Names of files are unlike: Spark puts a uuid in them.
    wanted = {f"{_file_name(piece)}/{piece.partition}" for piece in pieces}
    file = F.col("_metadata.file_name")
    is_wanted = F.concat(file, F.lit("/"), F.coalesce(name, F.lit(""))).isin(wanted)
    return rows.where(is_wanted | file.isin({_file_name(piece) for piece in whole})).drop(name)


def read_apart(
    spark: SparkSession, folder: str, schema: T.StructType, groups: Sequence[Sequence[Piece]]
) -> list[DataFrame]:
    """The rows of each group of pieces, those of a group all of one table partition. The files are listed once."""
    name = hash_name(schema.names)
    paths = [{piece.path for piece in group} for group in groups]
    every: set[str] = set().union(*paths)
    rows = _read(spark, folder, schema, every)
    apart = []
    for group, mine in zip(groups, paths, strict=True):
        [partition] = {piece.partition for piece in group}
        # A condition on the column alone, for pages to be skipped by.
        one = rows.where(F.col(name) == partition if partition else F.col(name).isNull())
        if mine != every:
            one = one.where(F.col("_metadata.file_name").isin({_file_name(piece) for piece in group}))
        apart.append(one.drop(name))
    return apart


def _file_name(piece: Piece) -> str:
    return piece.path.rsplit("/", 1)[1]


def _read(spark: SparkSession, folder: str, schema: T.StructType, paths: Collection[str]) -> DataFrame:
    """Files with their hash column."""
    hashed = T.StructType([*schema.fields, T.StructField(hash_name(schema.names), T.StringType())])
    reader = spark.read.schema(hashed).option("recursiveFileLookup", "true")
    reader = reader.option("parquet.page.verify-checksum.enabled", "true")
    try:
        rows = reader.parquet(*(literal(f"{folder}/{path}") for path in sorted(paths)))
        _ = rows.schema  # Spark Connect looks for the files when it is asked, not before.
        return rows
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise StagingError(
            f"one of {len(paths)} staged files below {folder} is missing: {str(error).splitlines()[0]}. Nothing was "
            "written. Bring the folder back, or start with a new checkpoint, which reads the sources again"
        ) from error


def in_order(batches: Sequence[DataFrame], partition_by: Sequence[str]) -> DataFrame:
    """One task and so one file a batch, its rows in the order in which they were staged.

    Delta sorts by the partition's columns anyway; folders and files sort by micro-batch, then task, epochs do not.
    """
    path, index = "__spark_purgatory_path", "__spark_purgatory_index"
    folder_and_file = F.substring_index("_metadata.file_path", "/", -2).alias(path)
    marked = [rows.select("*", folder_and_file, F.col("_metadata.row_index").alias(index)) for rows in batches]
    together = reduce(DataFrame.unionAll, [rows.coalesce(1) for rows in marked])
    return together.sortWithinPartitions(*map(quoted, partition_by), path, index).drop(path, index)


def quoted(name: str) -> Column:
    """A column by its name, whatever characters that has."""
    return F.col("`" + name.replace("`", "``") + "`")


def hash_name(taken: Sequence[str]) -> str:
    """Name of the column more: one that the rows do not have."""
    lower = {name.lower() for name in taken}
    return next(name for name in ("p", *(f"p{i}" for i in range(len(taken) + 1))) if name not in lower)


def _row_bytes(schema: T.StructType) -> Column:
    sizes = [_size_of(field) for field in schema.fields]
    return reduce(Column.__add__, [size for size in sizes if size is not None], F.lit(8 * len(sizes)))


def _acceptable(schema: T.StructType, row_bytes: Column, options: SinkOptions, partition_by: Sequence[str]) -> Column:
    """True, or an error that names what is too large."""
    limit = options.bytes_of("buffer_memory")
    tests = [
        F.when(
            row_bytes > limit,
            _fault(
                F.lit("a row of "),
                row_bytes.cast("string"),
                F.lit(f" bytes is larger than the whole buffer_memory, {limit:,} bytes: raise buffer_memory"),
            ),
        )
    ]
    for number, name in enumerate(partition_by):
        kind = schema[name].dataType
        if isinstance(kind, (T.StringType, T.BinaryType)):
            text = quoted(name).cast("string")
            room = MAX_NAME_BYTES - len(name.encode()) - 1
            escaped_bytes = F.octet_length(F.regexp_replace(text, ESCAPED, "%00"))
            too_long = (F.octet_length(text) * 3 > room) & (escaped_bytes > room)
            said = f"a value of partition column {number + 1} of partition_by takes "
            tests.append(
                F.when(
                    too_long,
                    _fault(
                        F.lit(said),
                        escaped_bytes.cast("string"),
                        F.lit(f" bytes in the name of a folder, at most {room} fit: partition by a shorter column"),
                    ),
                )
            )
    return F.coalesce(*tests, F.lit(True))


def _fault(*words: Column) -> Column:
    return F.raise_error(F.concat(F.lit(f"{FAULT} "), *words, F.lit(" :spark_purgatory"))).cast("boolean")


def _size_of(field: T.StructField) -> Column | None:
    """Bytes of what a column may hold beyond 8; None if it cannot be large."""
    column, kind = quoted(field.name), field.dataType
    if isinstance(kind, (T.StringType, T.BinaryType)):
        size = F.octet_length(column)
    elif isinstance(kind, T.ArrayType) and isinstance(kind.elementType, T.StringType):
        size = F.octet_length(F.array_join(column, ""))
    elif isinstance(kind, (T.ArrayType, T.MapType, T.StructType)):
        size = F.octet_length(F.to_json(F.struct(column)))
    else:
        return None
    return F.coalesce(size, F.lit(0)).cast("bigint")
