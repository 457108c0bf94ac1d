"""Which errors of a drain are worth another try; the texts are Spark's and Delta's own."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from spark_purgatory.errors import sentence_of
from spark_purgatory.spark.storage.storage_errors import lasting_remedy, state_fault, without_reach

RULES = [
    "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint few (n < 15) violated by row with values",
    "[DELTA_NOT_NULL_CONSTRAINT_VIOLATED] NOT NULL constraint violated for column: n",
    "[DELTA_MISSING_NOT_NULL_COLUMN_VALUE] Column must, which has a NOT NULL constraint, is missing from the data",
    '[DELTA_EXCEED_CHAR_VARCHAR_LIMIT] Value "..." exceeds char/varchar type length limitation',
    "java.lang.NullPointerException: [NOT_NULL_ASSERT_VIOLATION] NULL value appeared in non-nullable field: n",
    "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012",
]
LASTING = [
    "java.lang.RuntimeException: java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem",
    'org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "foo"',
    "delta.DeltaUnsupportedTableFeatureException: [DELTA_UNSUPPORTED_FEATURES_FOR_WRITE] Unsupported",
    "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta.",
]
PASSING = [
    "java.io.FileNotFoundException: /lake/table/part-0.parquet (File too large)",
    "org.apache.hadoop.security.AccessControlException: Permission denied: user=spark",
    "[DELTA_METADATA_CHANGED] MetadataChangedException: The metadata of the Delta table has been changed",
    "java.lang.InterruptedException: caused by ClassNotFoundException",
]


@pytest.mark.parametrize("text", LASTING)
def test_what_no_further_try_can_mend(text: str) -> None:
    assert lasting_remedy(RuntimeError(text)) == "Correct the session and start again"


@pytest.mark.parametrize("text", RULES)
def test_a_rule_of_the_table_that_rows_break_is_dropped_and_not_waited_for(text: str) -> None:
    assert "DROP CONSTRAINT" in lasting_remedy(RuntimeError(f"Job aborted\nCaused by: {text}"))


@pytest.mark.parametrize("text", PASSING)
def test_what_may_pass(text: str) -> None:
    assert not lasting_remedy(RuntimeError(text))


DAMAGED = [
    "[CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS] Error reading delta file /c/state/0/1/2.delta",
    "java.io.FileNotFoundException: /c/state/0/1/2.delta does not exist",
]


@pytest.mark.parametrize("text", DAMAGED)
def test_what_is_missing_from_the_storage_is_brought_back_or_left(text: str) -> None:
    assert without_reach(RuntimeError(text)) is None
    assert "start over with a new checkpoint and a new table" in str(state_fault(RuntimeError(text)))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "java.io.FileNotFoundException: /lake/t/city=O'Brien SECRET/part-0.parquet (File too large)",
            "java.io.FileNotFoundException: /lake/t/city=.../part-0.parquet (File too large)",
        ),
        ("java.io.IOException: cannot parse SECRET", "java.io.IOException"),
        ("java.io.IOException: No space left on device", "java.io.IOException: No space left on device"),
        (
            "org.apache.hadoop.fs.ParentNotDirectoryException: file:/lake/t/p=SECRET%3D",
            "org.apache.hadoop.fs.ParentNotDirectoryException: file:/lake/t/p=...",
        ),
        ("[CAST_OVERFLOW] The value 77123000L of the type BIGINT cannot be cast", "RuntimeError"),
        ("x: '...'Brien SECRET' cannot be represented\nCaused by: a.b.C: 7712338561.5 is SECRET", "RuntimeError"),
        (
            "java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
            "java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
        ),
    ],
)
def test_of_an_error_names_alone_are_shown(text: str, shown: str) -> None:
    assert sentence_of(RuntimeError(text)) == shown


def test_of_sparks_own_errors_the_condition_and_names_are_shown() -> None:
    parameters = {"columnName": "`n`", "targetType": "int", "value": "SECRET", "expression": "n < 77123"}
    error = PySparkException(
        message="n is SECRET", errorClass="CAST_OVERFLOW_IN_TABLE_INSERT", messageParameters=parameters
    )
    assert sentence_of(error) == "PySparkException [CAST_OVERFLOW_IN_TABLE_INSERT] columnName `n`, targetType int"


def test_metadata_and_schemas_of_a_state_that_end_too_early_are_faults_of_the_state() -> None:
    """Java says nothing at the end of a file: only the trace, which PySpark keeps, has the reader."""
    error = PySparkException(message="")
    assert state_fault(error) is None
    error._stackTrace = "java.io.EOFException\n\tat o.a.s.StateSchemaCompatibilityChecker$.readSchemaFile(S.scala:329)"
    assert "bring back the checkpoint's folder 'state'" in str(state_fault(error)).lower()
    text = "JsonEOFException: Unexpected end-of-input\n\tat o.a.s.OperatorStateMetadataUtils$.deserialize(S.scala:163)"
    assert state_fault(RuntimeError(text)) is not None


@pytest.mark.parametrize(
    "text",
    [
        "Checksum error: file:/c/state/0/_metadata/v2/0 at 0 exp: -1290175453 got: 909583422",
        "[MALFORMED_LOG_FILE] Log file was malformed: failed to read correct log version from {}.",
        "File file:/c/state/0/_stateSchema/default/0_400cbe60-4708-4e42-8095-8cba989603fd does not exist",
    ],
)
def test_damaged_metadata_and_schemas_of_a_state_are_faults_of_the_state(text: str) -> None:
    assert "bring back the checkpoint's folder 'state'" in str(state_fault(RuntimeError(text))).lower()
