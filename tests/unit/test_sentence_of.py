"""What a person may read of an error, our own sentence, names and never a value of a row; and which errors may pass."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.errors import PySparkException

from spark_purgatory.errors import (
    BugError,
    ConfigError,
    LimitError,
    PurgatoryError,
    StateCorruptError,
    StateMismatchError,
    again,
    own_error,
    sentence_of,
)
from spark_purgatory.spark.storage.storage_errors import (
    lasting_remedy,
    out_of_batch,
    read_fault,
    state_fault,
    without_reach,
)

FILE = Path(__file__).resolve().parents[1] / "data" / "recorded_errors.yaml"
RECORDED = yaml.safe_load(FILE.read_text(encoding="utf-8"))
STREAM = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_EXCEPTION] An exception was thrown "
    'from the Python worker: Traceback (most recent call last):\n  File "/jobs/parse.py", line 39, in parse\n'
    "    return float(text)\n           ^^^^^^^^^^^\n{}\n SQLSTATE: 38000 SQLSTATE: XXKST\n=== Streaming Query ===\n"
    "Logical Plan:\n~Project [raise_error(concat(spark_purgatory.errors.SourceError: , SECRET))]\n"
)
SENTENCE = "max_pending_per_shard=1 is reached: set it higher"


@pytest.mark.parametrize("recorded", RECORDED["functions"])
def test_of_a_function_that_failed_its_class_and_place_are_shown_or_our_own_sentence(recorded: dict[str, str]) -> None:
    assert sentence_of(RuntimeError(STREAM.format(recorded["last"]))) == recorded["shown"]


@pytest.mark.parametrize(
    ("file", "said", "shown"),
    [
        ("/lib/spark_purgatory/core/log.py", "bug: no value", "bug: no value; please report it with this message"),
        (
            "/lib/spark_purgatory/core/log.py",
            "SECRET",
            "AssertionError in read (/lib/spark_purgatory/core/log.py, line 8)",
        ),
        ("/jobs/parse.py", "bug: SECRET", "AssertionError in read (/jobs/parse.py, line 8)"),
    ],
)
def test_an_assertion_of_ours_that_fails_in_a_worker_is_shown_and_asks_for_a_report(
    file: str, said: str, shown: str
) -> None:
    frame = f'Traceback (most recent call last):\n  File "{file}", line 8, in read\n    assert x\n           ^\n'
    error = RuntimeError(f"[STREAM_FAILED] Query: {frame}AssertionError: {said}\n SQLSTATE: 38000\n")
    assert sentence_of(error) == shown
    assert isinstance(own_error(error), BugError) == shown.startswith("bug")


@pytest.mark.parametrize("recorded", RECORDED["conditions"])
def test_of_a_condition_the_text_is_shown_without_values(recorded: dict[str, Any]) -> None:
    (condition,) = re.findall(r"^\[([A-Z_.]+)\]", recorded["message"])
    text = recorded["message"].removeprefix(f"[{condition}] ")
    error = PySparkException(message=text, errorClass=condition, messageParameters=recorded["parameters"])
    assert sentence_of(error) == recorded["shown"]


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (LimitError(SENTENCE), SENTENCE),
        (BugError("x"), "bug: x; please report it with this message"),
        (RuntimeError(f"\nspark_purgatory.errors.BugError: {BugError('x')}"), str(BugError("x"))),
        (ValueError("SECRET"), "ValueError"),
        (OSError(28, "No space left on device", "/t/p=SECRET"), "OSError: No space left on device"),
        (RuntimeError("Python worker exited unexpectedly (crashed): java.io.EOFException"), "a Python worker of Spark"),
        (RuntimeError("Answer from Java side is empty"), "Spark's JVM does not answer"),
        (RuntimeError("(STREAM_FAILED) [CAST_INVALID_INPUT] The value 'SECRET'"), "RuntimeError [CAST_INVALID_INPUT]"),
    ],
)
def test_of_other_errors_no_value_is_shown(error: BaseException, shown: str) -> None:
    assert sentence_of(error).startswith(shown)
    assert "SECRET" not in sentence_of(error)


def test_our_errors_keep_their_class_through_sparks_pages() -> None:
    found = own_error(RuntimeError(STREAM.format("spark_purgatory.errors.StateMismatchError: shards: 8, not 4")))
    assert type(found) is StateMismatchError and str(found) == "shards: 8, not 4"
    assert own_error(RuntimeError(STREAM.format("KeyError: 1"))) is None


def test_a_batch_of_the_sink_raises_an_error_without_its_causes() -> None:
    try:
        try:
            raise RuntimeError("py4j.protocol.Py4JJavaError: An error occurred while calling o1.save\n" * 1000)
        except RuntimeError as cause:
            try:
                raise ConfigError(SENTENCE) from cause
            except ConfigError as error:
                raise out_of_batch(error) from None
    except ConfigError as error:
        assert "Py4JJavaError" not in "".join(traceback.format_exception(error))
    stopped = out_of_batch(RuntimeError("java.lang.InterruptedException\n" * 1000))
    # What Spark looks for (StreamExecution.PROXY_ERROR); it is short.
    assert re.search(
        r"py4j.protocol.Py4JJavaError: An error occurred while calling((.|\r\n|\r|\n)*)java.lang.InterruptedException",
        str(stopped),
    )
    assert len(str(stopped)) < 200


@pytest.mark.parametrize("kind", [BugError, StateCorruptError])
def test_an_error_that_is_raised_again_has_its_remedy_once(kind: type[PurgatoryError]) -> None:
    """The class adds the remedy to a message; a message from another process has it already."""
    told = str(kind("x"))
    assert told.count("report it") + told.count("bring back the checkpoint's folder 'state'") == 1
    assert (type(again(kind.__name__, told)), str(again(kind.__name__, told))) == (kind, told)
    assert sentence_of(RuntimeError(f"\nspark_purgatory.errors.{kind.__name__}: {told}")) == told


@pytest.mark.parametrize(
    "value",
    [
        "x\nspark_purgatory.errors.StagingError: SECRET",
        "[USER_RAISED_EXCEPTION] spark_purgatory.errors.ConfigError: SECRET",
        'x\n  File "/a", line 1, in SECRET\nValueError',
        "x\njava.io.IOException: No space left SECRET",
        "x\nCaused by: java.lang.NoSuchMethodError SECRET",
    ],
)
def test_a_value_that_looks_like_an_error_is_not_shown_as_one(value: str) -> None:
    parameters = {"expression": f"'{value}'", "sourceType": '"STRING"', "targetType": '"INT"'}
    text = f'The value \'{value}\' of the type "STRING" cannot be cast to "INT" because it is malformed.'
    error = PySparkException(message=text, errorClass="CAST_INVALID_INPUT", messageParameters=parameters)
    assert sentence_of(error) == (
        '[CAST_INVALID_INPUT] The value ... of the type "STRING" cannot be cast to "INT" because it is malformed'
    )


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


@pytest.mark.parametrize(("status", "is_damaged"), [(503, False), (403, False), (404, True)])
def test_a_staged_file_that_a_store_does_not_give_now_is_not_damaged(status: int, is_damaged: bool) -> None:
    error = RuntimeError(
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file s3a://lake/c/staging/rows/part-0.parquet.\n"
        "Caused by: java.io.IOException: Server error accessing s3://lake/c/staging/rows/part-0.parquet, request "
        f"failed with: Reduce your request rate (Service: S3, Status Code: {status}, Request ID: null)"
    )
    assert (read_fault(error) is not None) is is_damaged
    assert f"Status Code: {status}" in sentence_of(error)


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
