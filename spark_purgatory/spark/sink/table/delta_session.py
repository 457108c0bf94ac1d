"""Checks that the session has Delta, and that its Delta can write a table with these features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark_purgatory.errors import StorageError
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS

EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_SETTINGS: Mapping[str, str] = {  # A session must be started with these and Delta's jars.
    "spark.sql.extensions": EXTENSION,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
TESTED_DELTA = "4.4.0"  # For the name of the package where only the client of Spark Connect is installed.
# Conditions of DESCRIBE DETAIL without the extension, and without the catalog.
WITHOUT_DELTA = ("PARSE_SYNTAX_ERROR", "DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG")
# Features of a table that Delta 4.4 writes. A statement shows if Delta can write others.
KNOWN_FEATURES = frozenset(
    "allowColumnDefaults appendOnly catalogManaged changeDataFeed checkConstraints checkpointProtection clustering "
    "columnMapping coordinatedCommits-preview deletionVectors domainMetadata generatedColumns icebergCompatV1 "
    "icebergCompatV2 identityColumns inCommitTimestamp invariants materializePartitionColumns rowTracking timestampNtz "
    "typeWidening typeWidening-preview v2Checkpoint vacuumProtocolCheck variantShredding variantShredding-preview "
    "variantType variantType-preview".split()
)


def is_without_delta(error: BaseException) -> bool:
    """Return True if a statement failed because the session does not have Delta."""
    return isinstance(error, AnalysisException) and error.getCondition() in WITHOUT_DELTA


def delta_package(spark_version: str) -> str:
    major, minor = spark_version.split(".")[:2]
    try:
        delta = version("delta-spark")
    except PackageNotFoundError:
        delta = TESTED_DELTA
    return f"io.delta:delta-spark_{major}.{minor}_2.13:{delta}"


def what_lacks(spark: SparkSession) -> str:
    """Return the error text for a session without Delta, with the settings to add."""
    lacks = [name for name, value in DELTA_SETTINGS.items() if value not in (spark.conf.get(name, None) or "")]
    found = f"Delta is not in {' and '.join(lacks)}" if lacks else "its settings name Delta, but its jars are missing"
    lines = [f"--packages {delta_package(spark.version)}"]
    lines += [f"--conf {name}={value}" for name, value in DELTA_SETTINGS.items()]
    return (
        f"this Spark session cannot write Delta tables: {found}. Nothing was started. Start the session, or the server "
        "of Spark Connect, with all of\n    " + "\n    ".join(lines) + "\nIn Python, "
        "delta.configure_spark_with_delta_pip(builder) adds the package. Settings of a session that runs cannot be "
        "changed. For an Iceberg table set format='iceberg'"
    )


def check_features(spark: SparkSession, name: str, place: str, features: Iterable[str]) -> None:
    """Raise StorageError if Delta cannot write a table with these features. ``place``: the table in SQL."""
    unknown = sorted(set(features) - KNOWN_FEATURES)
    if not unknown:
        return
    try:
        # It needs the same permissions and features as an append, and commits nothing.
        spark.sql(
            f"MERGE INTO {place} AS old USING (SELECT * FROM {place} WHERE false) AS new ON false "
            "WHEN NOT MATCHED THEN INSERT *"
        ).collect()
    except SPARK_FAULTS as error:
        if "DELTA_UNSUPPORTED_FEATURES_FOR_WRITE" not in str(error):
            return  # Not allowed to merge: the first drain will show.
        raise StorageError(
            f"table {name} has the table features {', '.join(unknown)}, which this session's Delta cannot write. "
            "Nothing was started. Use a version of Delta that has them"
        ) from None
