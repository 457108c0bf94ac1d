"""Checks that a query can continue from a checkpoint before it starts, and chooses the settings of its start.

A shard refuses the state of another query only when it is next touched. That may be hours after the start, when other
shards have continued. So the same code compares every shard's state first, in a Spark job that reads the whole state.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import pyspark
from pyspark.sql import DataFrame, SparkSession, is_remote

from spark_purgatory import errors
from spark_purgatory.config.declared import refuses_wrong_calls
from spark_purgatory.config.options import LOG_HOST
from spark_purgatory.config.places import ENCODED
from spark_purgatory.core.arrays.times import MIN_TIME_US
from spark_purgatory.core.engine.outcomes import Tally
from spark_purgatory.core.spec.engine_spec import MOVES, EngineSpec
from spark_purgatory.core.state.engine_snapshot import differences, refuse
from spark_purgatory.core.state.step_log import ShardState
from spark_purgatory.errors import ConfigError, StateError, StateMismatchError, sentence_of
from spark_purgatory.spark.checkpoint import shard_states as stored
from spark_purgatory.spark.checkpoint.shard_states import StateReaderError, is_checkpoint
from spark_purgatory.spark.heartbeat import write_newest
from spark_purgatory.spark.host import requirements
from spark_purgatory.spark.host.requirements import FILE_MANAGER, HADOOP_LOCAL_FILES, KEEPS_OLD_FILES
from spark_purgatory.spark.operator.inputs import input_name
from spark_purgatory.spark.operator.stream_plan import Query, queries_of
from spark_purgatory.spark.placement import PARTITIONS, state_partitions, too_many
from spark_purgatory.spark.storage.checkpoint_files import (
    check_files,
    check_not_moved,
    files_in,
    fixed_settings,
    is_within_a_batch,
)
from spark_purgatory.spark.storage.query_start import Decide
from spark_purgatory.spark.storage.spark_access import FORMAT_VERSION, cores_of, setting_of
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS, state_fault

LOG = logging.getLogger(__name__)
Newest = tuple[int, int]  # The newest times of operations and of completions, in microseconds
NOTHING_SEEN = (MIN_TIME_US, MIN_TIME_US)
ODD_PATH = (
    "checkpoint %s: Spark's reader of states finds nothing at a path with %s. The query runs, and no later start can "
    "be compared with its state, nor can pending, gauges and doctor read it: start it with a path without them"
)


@refuses_wrong_calls
def check_checkpoint(spark: SparkSession, outcomes: DataFrame, *, checkpoint: str) -> None:
    """Raise an error if a query over these outcomes could not continue from the checkpoint.

    docs/upgrading.md lists the changes that a checkpoint allows. `RecordAccumulator.write_stream` and ``spark-purgatory
    run`` make this check themselves. Call it before you start a query with ``writeStream``: otherwise each shard
    compares its own state when a micro-batch calls it. It reads the state of all shards, like the query at its start,
    and warns of too many state partitions, and of a `RecordAccumulator`'s checkpoint. For a stream of
    ``resolve(..., checkpoint=)`` it also writes the newest times of earlier runs, which the start reads.

    Args:
        spark: The session.
        outcomes: The stream that `Purgatory.resolve` returned, or any stream made of it.
        checkpoint: The ``checkpointLocation`` that the query will have.

    Raises:
        StateMismatchError: The checkpoint belongs to another query. The message lists every difference and its remedy.
        StateCorruptError: A state is damaged.
        StateVersionError: A state has a format that this version does not read.
        ConfigError: ``outcomes`` does not come from `Purgatory.resolve`, or the checkpoint's query has no purgatory.
        StorageError: A file of Spark's own in the checkpoint is missing or damaged.

    Example::

        checkpoint = "/lake/_checkpoints/console"
        check_checkpoint(spark, outcomes, checkpoint=checkpoint)
        query = outcomes.writeStream.format("console").option("checkpointLocation", checkpoint)
    """
    queries = queries_of(outcomes, needed=True)
    if has_begun := is_checkpoint(spark, checkpoint):
        check_not_moved(spark, checkpoint)
        if any("/staging/log/" in file for file in files_in(spark, checkpoint, "staging/log")):
            LOG.warning(
                "checkpoint %s belongs to a query of a RecordAccumulator, which writeStream cannot continue: start it "
                "with write_stream, or name the checkpointLocation of the query that you start with writeStream",
                errors.without_login(checkpoint),
            )
        check_files(spark, checkpoint)
        fixed_settings(spark, checkpoint, queries[0].sources)  # It looks for the logs of the plan's sources.
    states, newest, _ = _check(spark, checkpoint, queries, has_begun, warns=True)
    _hand_over(spark, checkpoint, queries, newest, has_begun)
    if states is not None and states.settings[FORMAT_VERSION] == "2" != setting_of(spark, FORMAT_VERSION):
        LOG.warning("checkpoint %s: %s", errors.without_login(checkpoint), requirements.other_format("2"))


def settings_to_start(df: DataFrame, checkpoint: str) -> tuple[Decide, int]:
    """Check the checkpoint of a stream that may come from a purgatory. Raises what `check_checkpoint` raises.

    Returns how to choose the settings of the start, for `started`, and the operations that wait in the checkpoint.
    """
    queries, spark = queries_of(df), df.sparkSession
    if not queries:
        return dict, 0
    has_begun = is_checkpoint(spark, checkpoint)
    if not has_begun and (found := ENCODED.findall(checkpoint)):
        LOG.warning(ODD_PATH, errors.without_login(checkpoint), ", ".join(map(repr, dict.fromkeys(found))))
    fixed = fixed_settings(spark, checkpoint, queries[0].sources) if has_begun else {}
    newest: list[Newest] = []
    waiting = 0
    try:
        # Without Spark Connect the session's listener warns (`query_watch`).
        _, newest, waiting = _check(spark, checkpoint, queries, has_begun, warns=is_remote())
    except StateReaderError as error:
        LOG.warning("the checkpoint is not compared with the query before it starts: %s", error)
    except SPARK_FAULTS as error:
        if state := state_fault(error):
            raise state from error
        # Spark may refuse its reader of states and still run the query, whose shards compare their own state.
        warning = "the state in %s could not be compared with the query before it starts: %s"
        LOG.warning(warning, errors.without_login(checkpoint), sentence_of(error))
    _hand_over(spark, checkpoint, queries, newest, has_begun)
    shards = max(each.shards for each in queries)
    partitions = fixed.get(PARTITIONS) or state_partitions(shards, cores_of(spark))

    def chosen() -> dict[str, str]:
        # Adaptive execution does not work with state, and Spark warns of it unless it is off.
        wanted = {"spark.sql.adaptive.enabled": "false"} | store_settings(spark, fixed)
        wanted |= without_processes(spark, checkpoint)
        return wanted | ({} if partitions is None else {PARTITIONS: str(partitions)})

    return chosen, waiting


def _check(
    spark: SparkSession, checkpoint: str, queries: Sequence[Query], has_begun: bool, warns: bool
) -> tuple[stored.ShardStates | None, list[Newest], int]:
    """Compare the states with a query. Return them, what each purgatory has seen, and what waits in the last one."""
    states = stored.shard_states(spark, checkpoint) if has_begun else None
    requirements.check_streaming(spark.conf.get, checkpoint, None if states is None else states.settings)
    if states is None:
        return None, [], 0
    query = queries[0]
    if states.host != query.host:
        raise StateMismatchError(
            f"host: the checkpoint was written with host={states.host!r}, but the query has host={query.host!r}: set "
            f"host={states.host!r}, {MOVES}"
        )
    if states.host == LOG_HOST and states.operator != stored.HERE:
        raise StateMismatchError(
            f"host={LOG_HOST!r} was {states.operator} in the Spark that wrote the checkpoint, and is {stored.HERE} "
            f"in this one. Spark 4.0 and later releases do not share it: start it with the earlier Spark, {MOVES}"
        )
    found = stored.gather_states(states.whole, partial(_compared, query.spec, query.shards))
    for each in found:
        if "error" in each:
            raise errors.again(each["error"], each["text"])
    refuse(text for each in found for text in each["differences"])
    newest = [latest(each["newest"] for each in found)]
    for earlier in range(1, len(queries)):
        others = stored.shard_states(spark, checkpoint, purgatory=earlier)
        assert others is not None, "bug: two purgatories of one query have different micro-batches"
        newest.append(latest(stored.gather_states(others.heads, newest_of)))
    shards = max(query.shards for query in queries)
    if warns and (why := too_many(states.partitions, shards, cores_of(spark))):
        LOG.warning("checkpoint %s: %s", errors.without_login(checkpoint), why)
    return states, newest, sum(each["pending"] for each in found)


def _compared(spec: EngineSpec, shards: int, state: ShardState) -> Iterator[dict[str, Any]]:
    """Yield why the query cannot continue from a state, the newest times in it, and the operations that wait."""
    try:
        texts = differences(spec, state.blob(), shards)
        tally = Tally(**state.metadata()["tally"])
        yield {"differences": texts, "newest": next(newest_of(state)), "pending": tally.pending}
    except StateError as error:
        yield {"error": type(error).__name__, "text": str(error)}


def newest_of(state: ShardState) -> Iterator[Newest]:
    tally = Tally(**state.metadata()["tally"])
    yield tally.newest_operation_us, tally.newest_event_us


def latest(times: Iterable[Sequence[int]]) -> Newest:
    operations_us, events_us = zip(NOTHING_SEEN, *times, strict=True)
    return max(operations_us), max(events_us)


def _hand_over(
    spark: SparkSession, checkpoint: str, queries: Sequence[Query], newest: Sequence[Newest], has_begun: bool
) -> None:
    """Write the inputs' newest times of all runs so far for the start that follows, where its plan reads them."""
    asked = {each.checkpoint.rstrip("/") for each in queries if each.checkpoint is not None}
    if other := sorted(asked - {checkpoint.rstrip("/")}):
        raise ConfigError(
            f"checkpoint={checkpoint!r} is not the one that resolve() was given, checkpoint={other[0]!r}: give both "
            "the same"
        )
    if asked:
        named = (
            (input_name(query.name, side), time_us)
            for query, times in zip(queries, newest, strict=False)
            for side, time_us in zip(("operations", "completions"), times, strict=True)
        )
        times_us = {name: time_us for name, time_us in named if time_us > MIN_TIME_US}
        write_newest(spark, checkpoint, times_us, keeps_others=has_begun and is_within_a_batch(spark, checkpoint))


def store_settings(spark: SparkSession, fixed: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a query's state store; ``fixed`` are those of its checkpoint."""
    default = spark.conf.get(requirements.PROVIDER) or ""
    default = default if "RocksDB" in default else requirements.ROCKSDB
    store = fixed.get(requirements.PROVIDER) or setting_of(spark, requirements.PROVIDER) or default
    wanted = requirements.STATE_STORE_SETTINGS | {requirements.PROVIDER: store}
    best, given = wanted.pop(FORMAT_VERSION, "1"), setting_of(spark, FORMAT_VERSION)
    version = fixed.get(FORMAT_VERSION) or given or (best if store == requirements.ROCKSDB and not is_remote() else "1")
    if not is_remote():  # Also if the session has it now: other threads may change it before the start.
        return wanted | {FORMAT_VERSION: version}
    if version != (given or "1"):  # The sink's functions run there with the session's settings of that time.
        raise ConfigError(requirements.other_format(version))
    return wanted


_SINCE_4_1 = "" if pyspark.__version__.startswith("4.0.") else "checkpointing."
LOCAL_CHECKPOINT = {
    FILE_MANAGER: f"org.apache.spark.sql.execution.streaming.{_SINCE_4_1}{KEEPS_OLD_FILES}",
    HADOOP_LOCAL_FILES: "org.apache.hadoop.fs.LocalFileSystem",
    f"{HADOOP_LOCAL_FILES}.disable.cache": "true",  # The session may have opened Hive's local storage before.
}


def without_processes(spark: SparkSession, checkpoint: str) -> dict[str, str]:
    """Return settings of a start; none if the checkpoint is elsewhere, or the session has chosen how to write it."""
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None or not setting_of(spark, "spark.master").startswith("local"):
        return {}
    try:
        conf = cast("Any", spark)._jsparkSession.sessionState().newHadoopConf()
        is_local = jvm.org.apache.hadoop.fs.Path(checkpoint).getFileSystem(conf).getUri().getScheme() == "file"
        is_chosen = any(conf.get(name) is not None for name in LOCAL_CHECKPOINT)
    except Exception:  # A vendor's session may not let Python ask.
        return {}
    return LOCAL_CHECKPOINT if is_local and not is_chosen else {}
