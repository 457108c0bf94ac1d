"""Tables whose commits a catalog keeps, without a catalog service: with the coordinator that is in Delta's own jar.

A commit is ratified by the coordinator, in the memory of the session, and lies in ``_delta_log/_staged_commits``. It is
published, as a file of the log, with every `PUBLISHED_EACH`-th one. Delta reads such a table by its name alone.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import SparkSession

CATALOG = "spark_catalog"
PUBLISHED_EACH = 5


def make_catalog_managed(spark: SparkSession, name: str, columns: str, folder: Path) -> None:
    """Make a table, partitioned by ``part``, and hand its commits to the coordinator.

    Delta makes such a table only at the request of a catalog: here its first commit is rewritten.
    """
    jvm = spark._jvm
    assert jvm is not None
    commits = jvm.org.apache.spark.sql.delta.coordinatedcommits
    if commits.CatalogOwnedCommitCoordinatorProvider.getBuilder(CATALOG).isEmpty():
        builder = commits.InMemoryCommitCoordinatorBuilder(PUBLISHED_EACH)
        commits.CatalogOwnedCommitCoordinatorProvider.registerBuilder(CATALOG, builder)
    spark.sql(
        f"CREATE TABLE {name} ({columns}) USING delta PARTITIONED BY (part) LOCATION '{folder}' TBLPROPERTIES "
        "('delta.enableInCommitTimestamps' = 'true', 'delta.feature.vacuumProtocolCheck' = 'supported')"
    )
    log = folder / "_delta_log"
    first = log / f"{0:020d}.json"
    actions = [json.loads(line) for line in first.read_text(encoding="utf-8").splitlines()]
    for action in actions:
        if "protocol" in action:
            for features in ("readerFeatures", "writerFeatures"):
                action["protocol"][features].append("catalogManaged")
    for checksum in log.glob("*.crc"):  # Delta's own, and Hadoop's hidden ones.
        checksum.unlink()
    first.write_text("".join(f"{json.dumps(action)}\n" for action in actions), encoding="utf-8")
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def published(folder: Path) -> int:
    """The last version that is a file of the log."""
    return max(int(path.stem) for path in (folder / "_delta_log").glob("*.json"))
