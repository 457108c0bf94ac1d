"""Writes rows into staged files, a job for each micro-batch, and counts and reads them, a job for many micro-batches.

Files are in ``<epoch>/batch=<id>-<run>`` (`staging_folder`), one a task, because files make up the cost of a small
write. Each holds the rows of all table partitions, sorted by the *partition hash*: a column with the hash of the
partition's values. A second column is the *row hash*, of all values of the row.

Nothing that is read back is trusted. Parquet has checksums for its pages but none for its footers and indexes, where
one changed bit can hide rows, exchange columns for nulls, or change a unit of time. So statistics never skip rows, and
no setting of the session skips files. Every row is compared with its hash, the rows of each folder with its record
(`ledger`), and the rows of each piece once more before a drain commits them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import START_OVER, StagingError, own_error, sentence_of, storage_fault
from spark_purgatory.spark.nested import within
from spark_purgatory.spark.placement import shard_label
from spark_purgatory.spark.sink.staging.ledger import Contents, Ledger, Piece, StagedBatch
from spark_purgatory.spark.storage.spark_access import NO_SUCCESS_FILE, SMALL_QUERY, STRICT_FILES, settings
from spark_purgatory.spark.storage.storage_access import back_ticked, in_checkpoint, literal
from spark_purgatory.spark.storage.storage_errors import DAMAGED_ROW, SPARK_FAULTS, read_fault, state_fault

# Columns that are staged with each row.
PARTITION_HASH, ROW_HASH = "__spark_purgatory_partition", "__spark_purgatory_row"
MOST_ADDED = 50  # A chain of a thousand additions ends a task with StackOverflowError.
MAX_NAME_BYTES = 255  # The longest name of a folder on nearly every file system.
ESCAPED = r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]"  # Written as %XX in the name of a partition's folder.
_FILE = re.compile(r"rows/generation=\d+/epoch=(\d+)/batch=(\d+)-(\d+)-[0-9a-f]+/[^/]+$")
WRITE_SETTINGS: Mapping[str, str] = {
    # Other values, which a session may set, lose digits or shift dates.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
READ_OPTIONS: Mapping[str, str] = {
    **STRICT_FILES,
    "recursiveFileLookup": "true",
    "pathGlobFilter": "*.parquet",
    "datetimeRebaseMode": "CORRECTED",
    "mergeSchema": "false",
    "parquet.page.verify-checksum.enabled": "true",
    # Statistics have no checksum, and a wrong one hides rows.
    "parquet.filter.stats.enabled": "false",
    "parquet.filter.dictionary.enabled": "false",
    "parquet.filter.columnindex.enabled": "false",
    "parquet.filter.bloom.enabled": "false",
}
# The query is always the same, with as many rows as a drain has: it is compiled once.
COUNTING = {name: value for name, value in SMALL_QUERY.items() if name != "spark.sql.codegen.wholeStage"}


class StagedFiles:
    """The staged files of a sink, below a staging folder."""

    def __init__(self, folder: str, options: SinkOptions, partition_by: Sequence[str]) -> None:
        self.folder, self.options, self.partition_by = folder, options, partition_by
        self._added: dict[str, tuple[list[Column], list[Column]]] = {}  # By the schema of rows: hashes, counts.

    def _hashed(self, rows: DataFrame, seen: Observation) -> DataFrame:
        """Return the rows with their hashes, or an error for a row that no sink could take; ``seen`` observes counts.

        The columns of a schema are made once: that takes as long as to write a file.
        """
        kinds = rows.schema.simpleString()
        if kinds not in self._added:
            row_bytes = F.expr(_sum([f"{8 * len(rows.schema.fields)}L", *_sizes_of(rows.schema)]))
            acceptable = _acceptable(rows.schema, row_bytes, self.options, self.partition_by)
            # One step for the check and the hashes, because Spark analyses every step again in every micro-batch.
            hashes = [F.when(acceptable, row_hash(rows.schema)).alias(ROW_HASH)]
            if self.partition_by:
                hashes.append(F.hex(F.xxhash64(*map(quoted, self.partition_by))).alias(PARTITION_HASH))
            counts = [F.count(F.lit(1)).alias("rows")]
            for sum_of, name in ((row_bytes, "bytes"), (F.col(ROW_HASH), "checksum")):
                counts.append(F.coalesce(F.sum(sum_of), F.lit(0)).alias(name))
            self._added[kinds] = hashes, counts
        hashes, counts = self._added[kinds]
        return rows.select("*", *hashes).observe(seen, *counts)

    def evaluate(self, rows: DataFrame) -> Contents:
        """Run a micro-batch for Spark's state alone, and return the contents of its rows."""
        seen = Observation()
        self._hashed(rows, seen).write.format("noop").mode("overwrite").save()
        return Contents(seen.get["rows"], seen.get["checksum"])

    def stage(self, rows: DataFrame, folder: str, max_file_rows: int) -> tuple[Contents, int]:
        """Write the rows of a micro-batch over an earlier try, evaluating it once. Return contents and plain bytes.

        Raises ConfigError for a row that no sink could take, StagingError if the rows cannot be written.
        """
        seen, path = Observation(), f"{self.folder}/{folder}"
        checked = self._hashed(rows, seen)
        if self.partition_by:
            checked = checked.sortWithinPartitions(PARTITION_HASH)
        writer = checked.write.mode("overwrite").option("partitionOverwriteMode", "static")
        writer = writer.option("maxRecordsPerFile", max_file_rows).option(NO_SUCCESS_FILE, "false")
        try:
            writer.parquet(path)
        except Exception as error:
            if (own := own_error(error)) is not None:
                raise own from None
            if state_fault(error) is None and (fault_said := storage_fault(error)):
                raise StagingError(
                    f"a micro-batch could not be staged in {path}: {fault_said}. It does not count. Rows staged "
                    "earlier stay staged. Repair the storage and start again"
                ) from None
            raise
        found = seen.get
        return Contents(found["rows"], found["checksum"]), found["bytes"]

    def found_before(self, spark: SparkSession, ledger: Ledger, before: int) -> list[Piece]:
        return pieces_below(spark, self.folder, ledger, before)

    def count_batches(self, spark: SparkSession, batches: Sequence[StagedBatch]) -> dict[int, tuple[Piece, ...]]:
        """Return the pieces of micro-batches that this run has staged, by micro-batch."""
        found = self._measured(spark, [staged.path for staged in batches])
        by_batch: dict[int, tuple[Piece, ...]] = {}
        for staged in batches:
            pieces = [piece for piece in found if piece.batch_id == staged.batch_id]
            self._check_rows(staged.path, Contents.of(pieces), staged.contents)
            by_batch[staged.batch_id] = tuple(replace(piece, staged_ms=staged.staged_ms) for piece in pieces)
        return by_batch

    def count_again(self, spark: SparkSession, pieces: Sequence[Piece]) -> None:
        """Count the rows of pieces once more. StagingError if a file is missing, damaged or has other rows."""
        measured_again = self._measured(spark, sorted({piece.path for piece in pieces}))
        found = {piece.key: Contents.of([piece]) for piece in measured_again}
        for piece in pieces:
            self._check_rows(piece.path, found.get(piece.key, Contents()), Contents.of([piece]))

    def _measured(self, spark: SparkSession, paths: Sequence[str]) -> list[Piece]:
        try:
            return measured(spark, [literal(f"{self.folder}/{path}") for path in paths]) if paths else []
        except AnalysisException as error:
            raise StagingError(
                f"a staged file or micro-batch is missing below {self.folder}, one of {len(paths)}: "
                f"{sentence_of(error)}. Nothing was committed. Bring it back from a copy, or {START_OVER}"
            ) from error

    def _check_rows(self, path: str, now: Contents, then: Contents) -> None:
        if now != then:
            raise StagingError(
                f"{self.folder}/{path} holds {now}, but held {then} when it was staged: it was damaged or "
                "replaced, or someone else wrote to it or removed a file. Nothing was committed. Stop other "
                f"writers and bring the file back from a copy, or {START_OVER}"
            )


def pieces_below(spark: SparkSession, folder: str, ledger: Ledger, before: int) -> list[Piece]:
    """Return every piece of a staging folder. Files that cannot count in a `Ledger.adopt` are listed and not read.

    A power loss may have cut them, because Spark does not synchronise its files.
    """
    checkpoint, _, name = folder.rpartition("/")
    reader = spark.read.schema("h int").options(**READ_OPTIONS)
    try:
        below = reader.parquet(*in_checkpoint(literal(checkpoint), f"{name}/rows")).inputFiles()
    except SPARK_FAULTS as error:
        if isinstance(error, AnalysisException) and error.getCondition() == "PATH_NOT_FOUND":
            return []
        if "java.io.FileNotFoundException" not in str(error):
            raise
        raise StagingError(
            f"folders below {folder} were removed while they were listed, because a drain has ended: try again"
        ) from error
    files = [file_at(path) for path in below]
    may_count = may_count_of(ledger, files, before)
    others = [each for each in files if each.folder not in may_count]
    paths = [literal(f"{folder}/{path}") for path in sorted(may_count)]
    return [*others, *(measured(spark, paths) if paths else ())]


def may_count_of(ledger: Ledger, files: Sequence[Piece], before: int) -> set[str]:
    """Return the folders that `Ledger.adopt` may let count: of each micro-batch, what its last run has completed."""
    complete = [file for file in files if ledger.last_batch < file.batch_id < before and file.folder in ledger.records]
    last_run: dict[int, int] = {}
    for file in complete:
        last_run[file.batch_id] = max(file.run, last_run.get(file.batch_id, file.run))
    return {file.folder for file in complete if file.run == last_run[file.batch_id]}


def measured(spark: SparkSession, paths: Sequence[str]) -> list[Piece]:
    """Return the pieces in the files below some folders, in the order of their rows. StagingError for a bad file."""
    reader = spark.read.schema(f"{PARTITION_HASH} string, {ROW_HASH} int").options(**READ_OPTIONS)
    modified_ms = F.expr("unix_millis(_metadata.file_modification_time)").alias("modified_ms")
    file = "_metadata.file_path", "_metadata.file_size", modified_ms
    with settings(spark, COUNTING), reading(f"{len(paths)} folders or files of staged rows"):
        grouped = reader.parquet(*paths).coalesce(1).groupBy(*file, PARTITION_HASH)
        counts = grouped.agg(F.count(F.lit(1)), F.coalesce(F.sum(ROW_HASH), F.lit(0))).collect()
    rows_of: dict[str, int] = {}
    for path, _, _, _, rows, _ in counts:
        rows_of[path] = rows_of.get(path, 0) + rows
    pieces = []
    for path, size, ms, partition, rows, checksum in counts:
        staged_bytes = math.ceil(size * rows / rows_of[path])
        found = replace(file_at(path, ms), rows=rows, staged_bytes=staged_bytes, checksum=checksum)
        pieces.append(replace(found, partition=partition or ""))
    return sorted(pieces, key=lambda piece: (piece.batch_id, _file_name(piece)))


@contextmanager
def reading(what: str, folder: str = "") -> Iterator[None]:
    """Raise StagingError for a staged file that cannot be read; with ``folder``, only for files of that folder."""
    try:
        yield
    except SPARK_FAULTS as error:
        fault = read_fault(error)
        if fault is None or not (DAMAGED_ROW in str(error) or folder.rpartition(":")[2] in str(error)):
            raise
        raise StagingError(
            f"one of {what} cannot be read: {fault}. Nothing was committed. Bring it back from a copy, or {START_OVER}"
        ) from None


def file_at(path: str, staged_ms: int = 0) -> Piece:
    """Return a whole staged file as a piece, from its path alone."""
    match = _FILE.search(path)
    if match is None:
        raise StagingError(f"{path} is in the staging folder but has not the name of a staged file: move it elsewhere")
    epoch, batch_id, run = map(int, match.groups())
    return Piece("", match[0], 0, 0, batch_id, epoch=epoch, staged_ms=staged_ms, run=run)


def read_pieces(spark: SparkSession, folder: str, schema: T.StructType, pieces: Collection[Piece]) -> DataFrame:
    """Return the rows of pieces, each compared with its hash."""
    return _read(spark, folder, schema, pieces).select(*map(quoted, schema.names))


def read_files(
    spark: SparkSession, folder: str, schema: T.StructType, files: Sequence[Sequence[Piece]], folders: Sequence[str]
) -> DataFrame:
    """Return the rows of new files: task n has the rows of ``files[n]``, in the order in which they were staged.

    All pieces of a table partition belong to one new file. Rows are sorted by the partition's columns, as Delta does
    anyway, then by folder and file, whose names are in the order of micro-batches and tasks, unlike those of epochs.
    """
    pieces = [piece for file in files for piece in file]
    number_of = {piece.partition: number for number, file in enumerate(files) for piece in file}
    labels = F.lit(None).cast("int")
    if len(files) > 1:
        pairs = [F.lit(one) for name, number in number_of.items() for one in (name, shard_label(number))]
        labels = F.try_element_at(F.create_map(*pairs), F.coalesce(PARTITION_HASH, F.lit("")))
    label, path, index = (f"__spark_purgatory_{name}" for name in ("file", "path", "index"))
    staged_path = F.substring_index("_metadata.file_path", "/", -2).alias(path)
    place = labels.alias(label), staged_path, F.col("_metadata.row_index").alias(index)
    rows = _read(spark, folder, schema, pieces).select("*", *place)
    placed = rows.repartition(len(files), label) if len(files) > 1 else rows.repartition(1)
    ordered = placed.sortWithinPartitions(*map(quoted, folders), path, index)
    return ordered.select(*map(quoted, schema.names))


def _file_name(piece: Piece) -> str:
    return piece.path.rsplit("/", 1)[1]


def _read(spark: SparkSession, folder: str, schema: T.StructType, pieces: Collection[Piece]) -> DataFrame:
    """Return the rows of pieces with partition hash and ``_metadata``; a row that differs from its hash raises."""
    fields = T.StructType([T.StructField(field.name, field.dataType) for field in schema.fields])
    fields.add(PARTITION_HASH, T.StringType()).add(ROW_HASH, T.IntegerType())
    paths = sorted({piece.path for piece in pieces})
    try:
        reader = spark.read.schema(fields).options(**READ_OPTIONS)
        rows = reader.parquet(*(literal(f"{folder}/{path}") for path in paths))
        _ = rows.schema  # Spark Connect lists the files when the query runs, not before.
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise StagingError(
            f"one of {len(paths)} staged files below {folder} is missing: {sentence_of(error)}. Nothing was "
            f"written. Bring the folder back from a copy, or {START_OVER}"
        ) from error
    is_whole = row_hash(schema).eqNullSafe(F.col(ROW_HASH))
    checked = F.when(is_whole, True).otherwise(F.raise_error(F.lit(DAMAGED_ROW)).cast("boolean"))
    # Spark would join a reader's condition, n = 3, with this one, and put 3 into the hash of every row. It joins
    # nothing with a condition that is not deterministic.
    rows = rows.where(checked & (F.monotonically_increasing_id() >= 0))
    # Names of files are unique: Spark puts a uuid in them.
    wanted = {f"{_file_name(piece)}/{piece.partition}" for piece in pieces}
    return rows.where(F.concat("_metadata.file_name", F.lit("/"), F.coalesce(PARTITION_HASH, F.lit(""))).isin(wanted))


def _acceptable(schema: T.StructType, row_bytes: Column, options: SinkOptions, partition_by: Sequence[str]) -> Column:
    """Return a column that is True, or raises an error that names the value that is too large."""
    limit = options.bytes_of("buffer_memory")
    too_large = f" bytes is larger than the whole buffer_memory, {limit:,} bytes: raise buffer_memory"
    tests = [F.when(row_bytes > limit, _fault("a row of ", row_bytes, too_large))]
    for number, name in enumerate(partition_by):
        kind = schema[name].dataType
        if isinstance(kind, (T.StringType, T.BinaryType)):
            text = quoted(name).cast("string")
            room = MAX_NAME_BYTES - len(name.encode()) - 1
            escaped_bytes = F.octet_length(F.regexp_replace(text, ESCAPED, "%00"))
            too_long = (F.octet_length(text) * 3 > room) & (escaped_bytes > room)
            said = f"a value of partition column {number + 1} of partition_by takes "
            left = f" bytes in the name of a folder, at most {room} fit: partition by a shorter column"
            tests.append(F.when(too_long, _fault(said, escaped_bytes, left)))
    return F.coalesce(*tests, F.lit(True))


def _fault(before: str, number: Column, after: str) -> Column:
    words = F.lit(f"spark_purgatory.errors.ConfigError: {before}"), number.cast("string"), F.lit(after)
    return F.raise_error(F.concat(*words)).cast("boolean")


def _sum(numbers: list[str]) -> str:
    """Return the sum of SQL expressions, at most `MOST_ADDED` in a row: Spark visits an expression by recursion."""
    if len(numbers) <= MOST_ADDED:
        return " + ".join(numbers)
    groups = (numbers[start : start + MOST_ADDED] for start in range(0, len(numbers), MOST_ADDED))
    return f"aggregate(array({', '.join(map(_sum, groups))}), 0L, (so_far, size) -> so_far + size)"


def _sizes_of(schema: T.StructType) -> Iterator[str]:
    """Yield, in SQL, the bytes beyond 8 of the values of each column whose values may be large."""
    for field in schema.fields:
        column, kind = back_ticked(field.name), field.dataType
        if isinstance(kind, T.ArrayType) and isinstance(kind.elementType, T.StringType):
            column = f"array_join({column}, '')"
        elif isinstance(kind, (T.ArrayType, T.MapType, T.StructType)):
            column = f"to_json(struct({column}))"
        elif not isinstance(kind, (T.StringType, T.BinaryType)):
            continue
        yield f"cast(coalesce(octet_length({column}), 0) as bigint)"


# --- the hashes that are staged with each row: row hash and partition hash --------------------------------------------


def quoted(name: str) -> Column:
    return F.col(back_ticked(name))


def row_hash(schema: T.StructType) -> Column:
    """Return 32 bits of all values of a row and of where it has nulls, the same under all settings of the session."""
    columns = [(quoted(field.name), field.dataType) for field in schema.fields]
    nulls = (null for column, kind in columns for null in _nulls(column, kind))
    return F.hash(*(_hashable(column, kind) for column, kind in columns), *nulls)


def _nulls(column: Column, kind: T.DataType) -> Iterator[Column]:
    """Yield flags of nulls in a column and its fields, and sizes of arrays: Spark's hash skips a null."""
    yield column.isNull()
    if isinstance(kind, T.StructType):
        for field in kind.fields:
            yield from _nulls(column.getField(field.name), field.dataType)
    elif isinstance(kind, T.ArrayType):
        yield F.size(column)


def _hashable(column: Column, kind: T.DataType) -> Column:
    """Return the column with maps as arrays of entries and variants as JSON, because Spark hashes neither.

    A cast to string would depend on the session's time zone, and on how it writes maps and binaries.
    """
    if isinstance(kind, T.VariantType):
        return F.to_json(column, {"timeZone": "UTC"})
    if not _holds_map(kind):
        return column
    if isinstance(kind, T.MapType):
        entries = T.ArrayType(T.StructType().add("key", kind.keyType).add("value", kind.valueType))
        return F.struct(column.isNull(), _hashable(F.map_entries(column), entries))
    if isinstance(kind, T.ArrayType):
        element = kind.elementType
        return F.transform(column, lambda each: _hashable(each, element))
    assert isinstance(kind, T.StructType)
    fields = (_hashable(column.getField(field.name), field.dataType) for field in kind.fields)
    return F.struct(column.isNull(), *fields)


def _holds_map(kind: T.DataType) -> bool:
    return isinstance(kind, (T.MapType, T.VariantType)) or any(_holds_map(part) for _, part in within(kind))
