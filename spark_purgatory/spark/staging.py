"""Rows into staged files and back: a job that writes, and one task that counts what was written.

Files lie in ``<staging>/epoch=<e>/batch=<id>/attempt=<n>-<uuid>/p=<hash>``, the hash being that of the partition's
values: these stay in the files, with all other columns, and appear in no path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import reduce
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import ConfigError, StagingError
from spark_purgatory.spark.entries import NO_SUCCESS_FILE, literal
from spark_purgatory.spark.ledger import Attempt, Piece

PIECES_PER_FILE = 8
"""A staged file is at most this part of ``batch_size``: a batch that has no room for the next is at least 7/8 full."""
MAX_NAME_BYTES = 255
"""Of one folder's name, on nearly every file system."""
ESCAPED = r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]"
"""What Spark and Delta write as %XX in the name of a partition's folder."""
FAULT = "spark_purgatory:"
_FAULT_TEXT = re.compile(re.escape(FAULT) + r" ([^\n]*?) :spark_purgatory")


def attempt_path(epoch: int, batch_id: int, attempt: int) -> str:
    """A new folder for an attempt, below the staging folder."""
    return f"epoch={epoch}/batch={batch_id:020d}/attempt={attempt}-{uuid4()}"


def stage(rows: DataFrame, path: str, options: SinkOptions, partition_by: Sequence[str], max_file_rows: int) -> int:
    """Write the rows of a micro-batch, evaluating it once. ConfigError for a row that no sink could take.

    Returns their bytes before any encoding, 0 if there are none.
    """
    row_bytes = _row_bytes(rows.schema)
    volume = Observation()
    checked = rows.where(_acceptable(rows.schema, row_bytes, options, partition_by))
    checked = checked.observe(volume, F.sum(row_bytes).alias("bytes"))
    column = _free_name(rows.columns)
    if partition_by:
        checked = checked.withColumn(column, F.hex(F.xxhash64(*map(quoted, partition_by))))
    writer = checked.write.option("maxRecordsPerFile", max_file_rows).option(NO_SUCCESS_FILE, "false")
    try:
        (writer.partitionBy(column) if partition_by else writer).parquet(path)
    except Exception as error:
        fault = _FAULT_TEXT.search(str(error))
        if fault is None:
            raise
        raise ConfigError(fault[1]) from None
    return volume.get["bytes"] or 0


def measured(spark: SparkSession, folder: str, attempt: Attempt) -> DataFrame:
    """One row, one column: what the footers of an attempt's files say, as JSON. One task."""
    schema = T.StructType.fromJson(json.loads(attempt.schema))
    reader = spark.read.schema(schema).option("recursiveFileLookup", "true")
    rows = reader.parquet(literal(f"{folder}/{attempt.path}")).coalesce(1)
    counts = rows.groupBy("_metadata.file_path", "_metadata.file_size").count()
    inside = f"substring_index(file_path, '/{attempt.path.rpartition('/')[2]}/', -1)"
    file = f"named_struct('name', {inside}, 'rows', `count`, 'bytes', file_size)"
    return counts.agg(F.expr(f"to_json(collect_list({file}))").alias("files"))


def read_pieces(spark: SparkSession, folder: str, schema: T.StructType, pieces: Sequence[Piece]) -> DataFrame:
    """The rows of pieces; their pages' checksums are verified."""
    reader = spark.read.schema(schema).option("recursiveFileLookup", "true")
    reader = reader.option("parquet.page.verify-checksum.enabled", "true")
    try:
        return reader.parquet(*(literal(f"{folder}/{piece.path}") for piece in pieces))
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise StagingError(
            f"one of {len(pieces)} staged files below {folder} is missing: {str(error).splitlines()[0]}. Nothing was "
            "written. Bring the folder back, or start with a new checkpoint, which reads the sources again"
        ) from error


def in_order(batches: Sequence[DataFrame], partition_by: Sequence[str]) -> DataFrame:
    """One task and so one file a batch, its rows in the order in which they were staged.

    Delta sorts by the partition's columns anyway; paths sort by micro-batch, then task.
    """
    path, index = "__spark_purgatory_path", "__spark_purgatory_index"
    marked = [
        rows.select("*", F.col("_metadata.file_path").alias(path), F.col("_metadata.row_index").alias(index))
        for rows in batches
    ]
    together = reduce(DataFrame.unionAll, [rows.coalesce(1) for rows in marked])
    return together.sortWithinPartitions(*map(quoted, partition_by), path, index).drop(path, index)


def quoted(name: str) -> Column:
    """A column by its name, whatever characters that has."""
    return F.col("`" + name.replace("`", "``") + "`")


def _free_name(taken: Sequence[str]) -> str:
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
