"""Whether a query can go on from a checkpoint, asked before it starts; and the settings that it starts with.

A shard refuses a state that is not of its query when it is next touched, which may be hours after the start, and when
others have gone on. So every shard's state is compared beforehand, by the same code. It is a Spark job that reads the
whole state, as the query itself does when it starts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from pyspark.sql import DataFrame, SparkSession, is_remote

from spark_purgatory import errors
from spark_purgatory.config.declared import refuses_wrong_calls
from spark_purgatory.config.purgatory_options import LOG_HOST
from spark_purgatory.core.spec.engine_spec import MOVES, EngineSpec
from spark_purgatory.core.state.engine_snapshot import differences, refuse
from spark_purgatory.core.state.step_log import ShardState
from spark_purgatory.errors import ConfigError, StateError, StateMismatchError, sentence_of
from spark_purgatory.spark.checkpoint.shard_states import (
    HERE,
    ShardStates,
    StateReaderError,
    is_checkpoint,
    shard_states,
    told_by_states,
)
from spark_purgatory.spark.host import requirements
from spark_purgatory.spark.operator.stream_plan import Query, queries_of
from spark_purgatory.spark.placement import PARTITIONS, most_shards, state_partitions, too_many
from spark_purgatory.spark.storage.checkpoint_files import check_files, fixed_settings
from spark_purgatory.spark.storage.spark_access import FORMAT_VERSION, cores_of, told
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS, state_fault

LOG = logging.getLogger(__name__)


@refuses_wrong_calls
def check_checkpoint(spark: SparkSession, outcomes: DataFrame, *, checkpoint: str) -> None:
    """Raise an error if a query over these outcomes could not go on from the checkpoint.

    What may change on a checkpoint is in docs/upgrading.md. `RecordAccumulator.write_stream` and ``spark-purgatory
    run`` check it themselves. Call it before you start a query with ``writeStream``: otherwise each shard compares its
    own state when it is next touched. It reads the state of all shards, as the query does when it starts, and warns of
    state partitions that only cost. If there is no checkpoint yet, it returns.

    Args:
        spark: The session.
        outcomes: The stream that `Purgatory.resolve` returned, or one made of it, in whatever way.
        checkpoint: The ``checkpointLocation`` that the query will have.

    Raises:
        StateMismatchError: The query is another one than the checkpoint's. The message lists every difference and what
            to do about it.
        StateCorruptError: A state is damaged.
        StateVersionError: A state is of a format that this version does not read.
        ConfigError: ``outcomes`` does not come from `Purgatory.resolve`, or the checkpoint is of a query without a
            purgatory.
        StorageError: A file of Spark's own in the checkpoint is missing or damaged.

    Example::

        checkpoint = "/lake/_checkpoints/console"
        check_checkpoint(spark, outcomes, checkpoint=checkpoint)
        query = outcomes.writeStream.format("console").option("checkpointLocation", checkpoint)
    """
    queries = queries_of(outcomes, needed=True)
    if is_checkpoint(spark, checkpoint):
        check_files(spark, checkpoint)
    states = _check(spark, checkpoint, queries, warns=True)
    if states is not None and states.settings[FORMAT_VERSION] == "2" != told(spark, FORMAT_VERSION):
        LOG.warning("checkpoint %s: %s", checkpoint, requirements.other_format("2"))


def settings_to_start(df: DataFrame, checkpoint: str) -> dict[str, str]:
    """Check the checkpoint of a stream that may come from a purgatory, and return what `settings_at_start` takes.

    Spark runs a query in a clone of the session, which it makes at the start: settings that the session has at that
    moment alone are the query's. Raises what `check_checkpoint` raises.
    """
    queries, spark = queries_of(df), df.sparkSession
    if not queries:
        return {}
    fixed = fixed_settings(spark, checkpoint) if is_checkpoint(spark, checkpoint) else {}
    try:
        # Elsewhere the session's listener warns (`query_watch`), of every query.
        _check(spark, checkpoint, queries, warns=is_remote())
    except StateReaderError as error:
        LOG.warning("the checkpoint is not compared with the query before it starts: %s", error)
    except SPARK_FAULTS as error:
        if state := state_fault(error):
            raise state from error
        # The state's reader may be refused where the query's own is not: shards compare their state themselves.
        LOG.warning(
            "the state in %s could not be compared with the query before it starts: %s", checkpoint, sentence_of(error)
        )
    shards = most_shards(each.shards for each in queries)
    partitions = fixed.get(PARTITIONS) or state_partitions(shards, cores_of(spark))
    # Spark has no adaptive execution where there is state, and says so twice at each start unless it is off.
    wanted = {"spark.sql.adaptive.enabled": "false"} | store_settings(spark, fixed)
    return wanted | ({} if partitions is None else {PARTITIONS: str(partitions)})


def _check(spark: SparkSession, checkpoint: str, queries: Sequence[Query], warns: bool) -> ShardStates | None:
    """Compare the states with the last purgatory of a query, and return them."""
    states = shard_states(spark, checkpoint) if is_checkpoint(spark, checkpoint) else None
    requirements.check_streaming(spark.conf.get, checkpoint, None if states is None else states.settings)
    if states is None:
        return None
    query = queries[0]
    if states.host != query.host:
        raise StateMismatchError(
            f"host: the checkpoint was written with host={states.host!r}, the query has host={query.host!r}: set "
            f"host={states.host!r}, {MOVES}"
        )
    if states.host == LOG_HOST and states.operator != HERE:
        raise StateMismatchError(
            f"host={LOG_HOST!r} was {states.operator} in the Spark that wrote the checkpoint, and is {HERE} in this "
            f"one: Spark 4.0 and later releases do not share it. Start the query with the Spark of before, {MOVES}"
        )
    found = told_by_states(states.whole, partial(_differences, query.spec, query.shards or 0))
    for fault, text in found:
        if fault is not None:
            raise getattr(errors, fault)(text)
    refuse(text for _, text in found)
    shards = most_shards(query.shards for query in queries)
    if warns and (why := too_many(states.partitions, shards, cores_of(spark))):
        LOG.warning("checkpoint %s: %s", checkpoint, why)
    return states


def _differences(spec: EngineSpec, shards: int, state: ShardState) -> Iterator[tuple[str | None, str]]:
    """Why the query cannot go on from a state: each difference, or the name of an error and its text."""
    try:
        yield from ((None, text) for text in differences(spec, state.blob(), shards))
    except StateError as error:
        yield type(error).__name__, str(error)


def store_settings(spark: SparkSession, fixed: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a query's state store; ``fixed`` are those of its checkpoint.

    A session, or a vendor's default, may have another store, which reads none of RocksDB's settings.
    """
    default = spark.conf.get(requirements.PROVIDER) or ""
    store = (
        fixed.get(requirements.PROVIDER)
        or told(spark, requirements.PROVIDER)
        or (default if "RocksDB" in default else requirements.ROCKSDB)
    )
    wanted = requirements.TRANSFORM_WITH_STATE_SETTINGS | {requirements.PROVIDER: store}
    best, given = wanted.pop(FORMAT_VERSION, "1"), told(spark, FORMAT_VERSION)
    version = fixed.get(FORMAT_VERSION) or given or (best if store == requirements.ROCKSDB and not is_remote() else "1")
    if version == (given or "1"):
        return wanted
    if is_remote():  # The sink's functions run there with the settings that the session has then.
        raise ConfigError(requirements.other_format(version))
    return wanted | {FORMAT_VERSION: version}
