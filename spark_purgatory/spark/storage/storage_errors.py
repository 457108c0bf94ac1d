"""Spark's errors, and those that are faults of a storage. `errors.sentence_of` has the text that a person may read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import AnalysisException, PySparkException

from spark_purgatory.errors import (
    RESTORE_STATE,
    StagingError,
    StateError,
    StateUnreadableError,
    StorageError,
    cause_of,
    is_interruption,
    own_error,
    sentence_of,
    storage_fault,
)

try:
    from py4j.protocol import Py4JJavaError

    JAVA_FAULTS: tuple[type[Exception], ...] = (Py4JJavaError,)
except ModuleNotFoundError:  # pyspark-client has only Spark Connect, without py4j.
    JAVA_FAULTS = ()
SPARK_FAULTS: tuple[type[Exception], ...] = (PySparkException, *JAVA_FAULTS)
"""Errors of Spark. A file system's own exception is one of `JAVA_FAULTS`."""
WRITE_FAULTS: tuple[type[Exception], ...] = (*SPARK_FAULTS, OSError)
_NO_CLASS = r"\b(?:ClassNotFoundException|NoClassDefFoundError|NoSuchMethodError|UnsupportedFileSystemException)\b"
_OUT_OF_REACH = re.compile(
    _NO_CLASS
    + r"|\b(?:AccessControl|AccessDenied|NoAuthWithAWS|UnknownHost|Connect|NoRouteToHost|Socket\w*|SSL\w*)Exception\b"
    r"|\b(?:AWS(?:ServiceThrottled|Status500|ClientIO|ApiCallTimeout|NoResponse|BadRequest)|NoAwsCredentials)Exception\b"
    r"|\bStatus Code: (?!404|416)[45]\d\d\b|\bOperation failed: [^\n]*, (?:403|429|5\d\d), |\bServerBusy\b"
)
"""Errors of a session that does not reach its storage, or that its storage refuses or slows down. They say nothing
about the stored files."""
_LASTING = re.compile(
    _NO_CLASS
    + r"|\[(?:DELTA_UNSUPPORTED_FEATURES_FOR_(?:READ|WRITE)|DELTA_INVALID_PROTOCOL_VERSION|DATA_SOURCE_NOT_FOUND"
    r"|DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG)\b"
)
"""Errors that a session repeats for as long as it lives. Permissions may change while we wait."""
_RULE_BROKEN = re.compile(
    r"\[(?:DELTA_(?:VIOLATE_CONSTRAINT_WITH_VALUES|NOT_NULL_CONSTRAINT_VIOLATED|MISSING_NOT_NULL_COLUMN_VALUE"
    r"|EXCEED_CHAR_VARCHAR_LIMIT)|NOT_NULL_ASSERT_VIOLATION)\b|SQLSTATE: 2[23]\d"
)
"""A rule of the table does not take the staged rows, or fails on their values (classes 22 and 23 of SQL's states)."""
BROKEN_RULE = (
    "Remove the rule that its rows break from the table (ALTER TABLE ... DROP CONSTRAINT, ALTER COLUMN ... DROP NOT "
    "NULL, or a wider TYPE) and start again. Then you may correct the rows in the table, and set the rule again"
)
DAMAGED_ROW = "spark_purgatory: a staged row differs from its hash"
_UNREADABLE = re.compile(r"\b(?:FAILED_READ_FILE|CANNOT_READ_FILE_FOOTER|FILE_NOT_EXIST|PARQUET_\w+)\b")
_PARQUET = re.compile(r"org\.apache\.parquet\.|is not a Parquet file|parquet\.io\.|ParquetDecodingException")
_FILE_PATH = re.compile(r"[\w./+=:%-]*/staging/[\w./+=:%-]*part-\d+-[\w.-]+\.parquet")
_STATE = re.compile(
    r"CANNOT_LOAD_STATE_STORE|STDS_FAILED_TO_READ_(?:STATE_SCHEMA|OPERATOR_METADATA)"
    r"|Partition should start with 0"  # folders of state partitions are missing
    r"|\bStateStoreId\b|FAILED_TO_READ_(?:DELTA|SNAPSHOT)_FILE|MALFORMED_LOG_FILE"
    r"|/state/\d+/(?:\d+|_metadata|_stateSchema)/"
)
_STATE_READERS = re.compile(r"\bOperatorStateMetadataUtils\$|\bStateSchemaCompatibilityChecker\$\.readSchemaFile")
STOPPED = "java.lang.InterruptedException"


def lasting_remedy(error: BaseException) -> str:
    """Return the remedy without which each further try of a drain would fail like this, "" if one may succeed."""
    if is_interruption(error):
        return ""
    if isinstance(error, AnalysisException):  # The table exists if another query has just made it.
        return "" if "ALREADY_EXISTS" in str(error.getCondition()) else "Correct the table and start again"
    cause = cause_of(error)
    if _RULE_BROKEN.search(f"[{cause.condition}] {cause.message} {error}"):
        return BROKEN_RULE
    return "Correct the session and start again" if _LASTING.search(str(error)) else ""


def without_reach(error: BaseException) -> str | None:
    """Return the remedy if a session does not reach its storage: a jar, a permission or the network is missing.

    It is None if something else failed, and stored files may be damaged.
    """
    if _OUT_OF_REACH.search(str(error)) is None:
        return None
    return (
        "give the session what its storage needs: jars (spark.jars.packages), settings, permissions, the network. "
        "Keep the stored files, because nothing shows that they are damaged"
    )


def read_fault(error: BaseException) -> str | None:
    """Return why a file is missing or damaged, in one line; None if another fault is the cause."""
    text = str(error)
    if is_interruption(error) or without_reach(error) is not None:
        return None
    if DAMAGED_ROW in text:
        return "the values of a row differ from their hash, the file is damaged"
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    found = _UNREADABLE.search(f"{condition or ''} {text}")
    if found is None and storage_fault(error) is None and not _PARQUET.search(text):
        return None
    path = _FILE_PATH.search(text)
    return f"{sentence_of(error)}{f' ({path[0]})' if path else ''}"


def state_fault(error: BaseException) -> StateError | None:
    """Return the error to raise if a query's state could not be read; None if another fault is the cause."""
    # The message of an error may be empty, for example at the end of a file, and only its stack trace tells.
    found = _STATE.search(str(error)) or _STATE_READERS.search(f"{error}{getattr(error, '_stackTrace', '')}")
    if found is None or is_interruption(error):
        return None
    remedy = without_reach(error) or RESTORE_STATE
    return StateUnreadableError(
        f"the state of the query cannot be read from its checkpoint: {sentence_of(error)}. Nothing was lost and "
        f"nothing was staged. {remedy[0].upper()}{remedy[1:]}"
    )


def out_of_batch(error: Exception) -> Exception:
    """Return the error to raise out of foreachBatch instead of another one, without its cause.

    Spark looks for an interruption in Python's traceback with an expression that takes a stack frame for each character
    after the name of a Py4JJavaError (SPARK-39218). Java's long stack trace there ends in a StackOverflowError.
    """
    if is_interruption(error):
        return InterruptedError("py4j.protocol.Py4JJavaError: An error occurred while calling: " + STOPPED)
    if isinstance(error, SPARK_FAULTS) and (own := own_error(error) or state_fault(error)) is not None:
        return own
    return StorageError(f"a micro-batch failed: {sentence_of(error)}") if isinstance(error, JAVA_FAULTS) else error


@contextmanager
def writing(what: str, folder: str) -> Iterator[None]:
    """Raise StagingError, naming ``what`` could not be written. Only a restart finds out if it was."""
    try:
        yield
    except WRITE_FAULTS as error:
        if is_interruption(error):
            raise
        raise StagingError(
            f"{what} could not be written below {folder}: {sentence_of(error)}. Nothing was lost, and staged rows "
            "wait. Repair the storage of the checkpoint and start again"
        ) from error
