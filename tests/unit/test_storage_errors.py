"""Which errors of a drain are worth another try; the texts are Spark's and Delta's own."""

from __future__ import annotations

import pytest

from spark_purgatory.spark.storage.storage_errors import is_lasting

LASTING = [
    "java.lang.RuntimeException: java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem",
    'org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "foo"',
    "delta.DeltaUnsupportedTableFeatureException: [DELTA_UNSUPPORTED_FEATURES_FOR_WRITE] Unsupported",
    "[DELTA_MISSING_NOT_NULL_COLUMN_VALUE] Column must, which has a NOT NULL constraint, is missing from the data",
    "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta.",
]
PASSING = [
    "java.io.FileNotFoundException: /lake/table/part-0.parquet (File too large)",
    "org.apache.hadoop.security.AccessControlException: Permission denied: user=spark",
    "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint few (n < 15) violated by row with values",
    "[DELTA_METADATA_CHANGED] MetadataChangedException: The metadata of the Delta table has been changed",
    "java.lang.InterruptedException: caused by ClassNotFoundException",
]


@pytest.mark.parametrize("text", LASTING)
def test_what_no_further_try_can_mend(text: str) -> None:
    assert is_lasting(RuntimeError(text))


@pytest.mark.parametrize("text", PASSING)
def test_what_may_pass(text: str) -> None:
    assert not is_lasting(RuntimeError(text))
