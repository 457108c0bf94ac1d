"""Settings that a purgatory's query has of its own, where its session has not set them.

Spark runs a query in a clone of the session, which it makes when the query starts. So a setting that the session has
at that moment alone is the query's, and the session is as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession

from spark_purgatory.config.purgatory_options import LOG_HOST
from spark_purgatory.spark.host.requirements import COUNT_ROWS, PROVIDER, TRANSFORM_WITH_STATE_SETTINGS
from spark_purgatory.spark.operator.stream_plan import Query
from spark_purgatory.spark.placement import PARTITIONS, most_shards, state_partitions
from spark_purgatory.spark.storage.spark_access import cores_of


def settings_of(spark: SparkSession, queries: Sequence[Query], kept: Mapping[str, str]) -> dict[str, str]:
    """Return the settings to start a query with that holds these purgatories.

    ``kept`` are those that its checkpoint fixes: Spark takes them in any case, and with others it logs a warning.
    """
    if not queries:
        return {}
    # Spark has no adaptive execution where there is state, and says so twice at each start unless it is off.
    wanted = {"spark.sql.adaptive.enabled": "false"}
    if PARTITIONS in kept:
        wanted[PARTITIONS] = kept[PARTITIONS]
    elif (partitions := state_partitions(most_shards(query.shards for query in queries), cores_of(spark))) is not None:
        wanted[PARTITIONS] = str(partitions)
    return wanted | store_settings(spark, any(query.host == LOG_HOST for query in queries))


def store_settings(spark: SparkSession, is_log_host: bool) -> dict[str, str]:
    """Return the settings of the state store; those of RocksDB do nothing to another one."""
    if not is_log_host:
        return {COUNT_ROWS: TRANSFORM_WITH_STATE_SETTINGS[COUNT_ROWS]}
    has_one = "RocksDB" in (spark.conf.get(PROVIDER) or "")  # a vendor's own, by default
    return {name: value for name, value in TRANSFORM_WITH_STATE_SETTINGS.items() if name != PROVIDER or not has_one}
