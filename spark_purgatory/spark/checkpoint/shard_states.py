"""The states of all shards as a micro-batch left them. Only this module knows how each host keeps them.

Spark's reader of state stores returns them as a DataFrame, so that executors decode them. It works while the query
runs, for all micro-batches that the checkpoint keeps, with both of Spark's state stores, and through Spark Connect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, DataFrameReader, GroupedData, Row, SparkSession, is_remote
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.config.options import LOG_HOST
from spark_purgatory.config.places import ENCODED
from spark_purgatory.core.state.step_log import ShardState
from spark_purgatory.errors import RESTORE_STATE, ConfigError, StateUnreadableError
from spark_purgatory.spark.host.requirements import STATE_STORE_SETTINGS, other_format
from spark_purgatory.spark.placement import PARTITIONS
from spark_purgatory.spark.storage.checkpoint_files import UNFINISHED, committed_batches, entry_of, files_in, format_of
from spark_purgatory.spark.storage.spark_access import FORMAT_VERSION, moved, own_session, setting_of, settings
from spark_purgatory.spark.storage.storage_access import absolute, literal
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS, state_fault

BLOB_HOST = "applyInPandasWithState"
OPERATORS = {  # Spark's names of the operators that hold our state, and the values of `Purgatory.host` for them
    BLOB_HOST: "applyInPandasWithState",
    "transformWithStateInPySparkExec": LOG_HOST,
    "transformWithStateInPandasExec": LOG_HOST,
}
HERE = list(OPERATORS)[1 if hasattr(GroupedData, "transformWithState") else 2]
"""The log host's operator in this Spark: in 4.0 the last. Spark refuses a checkpoint of another operator."""
ROWS_A_BATCH = 1 << 16
STATE_BATCHES = {"spark.sql.execution.arrow.maxBytesPerBatch": str(256 << 20)}
NOTHING_THERE = ("STDS_COMMITTED_BATCH_UNAVAILABLE", "STDS_FAILED_TO_READ_STATE_SCHEMA")
"""The reader's conditions for a path that it has encoded twice. The second is that of Spark 4.0."""


class StateReaderError(ConfigError):
    """Spark's reader of state stores cannot read the checkpoint, but its query may continue from it."""


@dataclass(frozen=True)
class ShardStates:
    """The states after a micro-batch, one row for each shard (`states_in`)."""

    whole: DataFrame
    heads: DataFrame  # The log host's states without snapshot and log, which is enough for `ShardState.metadata`
    operator: str  # The operator that wrote them, of `OPERATORS`
    batch_id: int
    watermark_ms: int  # The watermark with which the micro-batch decided; 0 if there was none yet
    settings: Mapping[str, str]  # The settings that the checkpoint fixes for any session

    @property
    def partitions(self) -> int:
        return int(self.settings.get(PARTITIONS, 0))

    @property
    def host(self) -> str:
        """The host that wrote them, a value of `Purgatory.host`."""
        return OPERATORS[self.operator]


def states_in(batch: pa.RecordBatch) -> Iterator[ShardState]:
    """Yield the states of a batch of `ShardStates.whole` or ``heads``, in a function that ``mapInArrow`` runs."""
    for row in batch.to_pylist():
        yield ShardState(row["snapshot"], row["head"], row["log"] or ())


def collected(frame: DataFrame) -> list[Row]:
    """Return the rows of a function that ``mapInArrow`` runs over whole states.

    Without a limit Spark puts 10,000 rows into an Arrow batch, and whole states of one task may exceed the 2 GiB of its
    column. Raises StateUnreadableError if files of the state are missing or damaged.
    """
    try:
        with own_session(frame.sparkSession) as own, settings(own, STATE_BATCHES):
            return moved(frame, own).collect()
    except SPARK_FAULTS as error:
        if (fault := state_fault(error)) is not None:
            raise fault from error
        raise


def rows_of_states(
    states: DataFrame, rows: Callable[[ShardState], Iterable[pa.RecordBatch]], schema: T.StructType
) -> DataFrame:
    """Return the rows that a function, which the workers call, makes of each state."""

    def all_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for made in (each for state in states_in(batch) for each in rows(state)):
                yield from (made.slice(start, ROWS_A_BATCH) for start in range(0, len(made), ROWS_A_BATCH))

    return states.mapInArrow(all_rows, schema)


def gather_states(states: DataFrame, facts_of: Callable[[ShardState], Iterable[Any]]) -> list[Any]:
    """Return the plain JSON that a function, which the workers call, makes of each state. Raises as `collected`."""

    def all_texts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            texts = [json.dumps(fact) for state in states_in(batch) for fact in facts_of(state)]
            yield pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], names=["text"])

    return [json.loads(row["text"]) for row in collected(states.mapInArrow(all_texts, "text string"))]


def shard_states(
    spark: SparkSession, checkpoint: str, batch_id: int | None = None, purgatory: int = 0
) -> ShardStates | None:
    """Return the states after a micro-batch, by default the latest that is committed; None before the first.

    ``purgatory`` is a position among those of the query, the last first. Raises ConfigError if there is no checkpoint,
    its query has no purgatory, it does not keep the micro-batch, or Spark cannot read state at its path. Raises
    StateUnreadableError if the state is gone.
    """
    # Asking for streams starts the driver's coordinator of state stores. Without it, the reader fails in a session that
    # has not streamed yet (RpcEndpointNotFoundException).
    _ = spark.streams.active
    committed = committed_batches(spark, checkpoint)
    if not committed:
        return None
    chosen = committed[-1] if batch_id is None else batch_id
    if chosen not in committed:
        raise ConfigError(
            f"batch_id={batch_id!r}: checkpoint {checkpoint!r} keeps only the micro-batches {committed[0]} to "
            f"{committed[-1]}: give one of them. spark.sql.streaming.minBatchesToRetain sets how many are kept"
        )
    checkpoint = absolute(spark, checkpoint)
    entry = entry_of(spark, checkpoint, f"offsets/{chosen}")[0]  # An error of Spark's reader would name no file.
    fixed = entry.get("conf", {}) | {FORMAT_VERSION: format_of(spark, checkpoint, chosen)}
    try:
        with in_format(spark, checkpoint, fixed[FORMAT_VERSION]) as own:
            operator, operator_id = _operator(own, checkpoint, purgatory)
            reader = own.read.format("statestore").option("operatorId", operator_id).option("batchId", chosen)
            whole, heads = (_of_blob_host if operator == BLOB_HOST else _of_log_host)(reader, checkpoint)
            _ = heads.schema  # Spark Connect asks the server here
    except PySparkException as error:
        if error.getCondition() not in NOTHING_THERE or not ENCODED.search(checkpoint):
            if (fault := state_fault(error)) is not None:
                raise fault from error
            raise
        raise StateReaderError(
            f"checkpoint={checkpoint!r} exists, but Spark's reader of state stores finds nothing at a path with "
            f"{', '.join(map(repr, dict.fromkeys(ENCODED.findall(checkpoint))))}: read a copy of the folder at a path "
            "without them. The query itself can go on"
        ) from error
    whole, heads = moved(whole, spark), moved(heads, spark)
    return ShardStates(whole, heads, operator, chosen, watermark_ms=int(entry["batchWatermarkMs"]), settings=fixed)


@contextmanager
def in_format(spark: SparkSession, checkpoint: str, version: str) -> Iterator[SparkSession]:
    """Yield a session with a checkpoint's `FORMAT_VERSION`, because Spark 4.1 reads no other than the session's.

    It is a copy, because other threads may change the user's meanwhile.

    Raises StateReaderError if this Spark or Spark Connect cannot read it.
    """
    if version != "1" and FORMAT_VERSION not in STATE_STORE_SETTINGS:
        raise StateReaderError(
            f"checkpoint={checkpoint!r} has states of format {version}, which Spark {spark.version} cannot read: use "
            "Spark 4.1 or a later release"
        )
    if not is_remote():
        with own_session(spark) as own, settings(own, {FORMAT_VERSION: version}):
            yield own
    elif (setting_of(spark, FORMAT_VERSION) or "1") == version:
        yield spark
    else:  # Its DataFrames are read with the session's settings of that time.
        raise StateReaderError(f"checkpoint={checkpoint!r}: {other_format(version)}")


def _of_blob_host(reader: DataFrameReader, checkpoint: str) -> tuple[DataFrame, DataFrame]:
    blob = F.col("value.groupState.blob").alias("snapshot")
    whole = reader.load(checkpoint).select(blob, _none("binary", "head"), _none("array<binary>", "log"))
    return whole, whole


def _of_log_host(reader: DataFrameReader, checkpoint: str) -> tuple[DataFrame, DataFrame]:

    def variable(name: str) -> DataFrame:
        return reader.option("stateVarName", name).load(checkpoint)

    head = variable("head").select("key.shard", F.col("value.blob").alias("head"))
    snapshot = variable("snapshot").select("key.shard", F.col("value.blob").alias("snapshot"))
    entries = F.array_sort(F.collect_list(F.struct("user_map_key.entry", "user_map_value.blob")))
    log = variable("log").groupBy("key.shard").agg(entries.getField("blob").alias("log"))
    joined = head.join(snapshot, "shard", "left").join(log, "shard", "left")
    heads = head.select(_none("binary", "snapshot"), "head", _none("array<binary>", "log"))
    return joined.select("snapshot", "head", "log"), heads


def _none(kind: str, name: str) -> Column:
    return F.lit(None).cast(kind).alias(name)


def is_checkpoint(spark: SparkSession, checkpoint: str) -> bool:
    """Return True if a streaming query has begun there. Raises ConfigError for an unfinished move."""
    metadata = f"{literal(checkpoint)}/metadata"
    try:
        # Spark logs a stack trace if one path is missing, and nothing if two are.
        line = spark.read.text([metadata, metadata]).first()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return False
    if line is not None and line["value"] == UNFINISHED:
        raise ConfigError(
            f"checkpoint={checkpoint!r} is an unfinished move: run the move again. The old checkpoint is unchanged"
        )
    return True


def _operator(spark: SparkSession, checkpoint: str, purgatory: int) -> tuple[str, int]:
    """Return (name, number) of a purgatory's operator in the query: Spark numbers operators from the end."""
    rows = spark.read.format("state-metadata").load(checkpoint).select("operatorId", "operatorName").collect()
    found = [(row["operatorName"], int(row["operatorId"])) for row in rows if row["operatorName"] in OPERATORS]
    if not rows:
        is_there = any("/state/" in file for file in files_in(spark, checkpoint, "state"))
        gone = "files of its folder 'state/0/_metadata' are gone" if is_there else "its folder 'state' is gone or empty"
        raise StateUnreadableError(
            f"checkpoint={checkpoint!r} has committed micro-batches but no state, because {gone}: {RESTORE_STATE}."
            " If its query never had a purgatory, name the checkpointLocation of the query that writes the purgatory's "
            "outcomes"
        )
    if not found:
        names = ", ".join(row["operatorName"] for row in rows)
        raise ConfigError(
            f"checkpoint={checkpoint!r} has the state of {names}, but not of a purgatory: name the checkpointLocation "
            "of the query that writes the purgatory's outcomes"
        )
    return sorted(found, key=lambda operator: operator[1])[purgatory]
