"""What Spark raises, and what of it is the storage's fault.

Of a failed drain only one line is reported, without its further causes: Delta's further lines hold the values of a row
that its table does not take.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from spark_purgatory.errors import StagingError, StateError, StateUnreadableError

try:
    from py4j.protocol import Py4JJavaError

    JAVA_FAULTS: tuple[type[Exception], ...] = (Py4JJavaError,)
except ModuleNotFoundError:  # pyspark-client speaks Spark Connect alone, and brings no py4j
    JAVA_FAULTS = ()
SPARK_FAULTS: tuple[type[Exception], ...] = (PySparkException, *JAVA_FAULTS)
"""`JAVA_FAULTS` where a file system's own exception comes through."""
WRITE_FAULTS: tuple[type[Exception], ...] = (*SPARK_FAULTS, OSError)
MAX_SAID = 300
_STORAGE = re.compile(r"\b(?:java\.nio\.file|java\.io|org\.apache\.hadoop)\.[\w.$]*(?:Exception|Error)\b[^\n]*")

_INTERRUPTION = re.compile(r"\b(?:Interrupted(?:IO)?|ClosedByInterrupt)Exception\b")
_QUOTED = re.compile(r"'[^']*'")
_NO_CLASS = r"\b(?:ClassNotFoundException|NoClassDefFoundError|NoSuchMethodError|UnsupportedFileSystemException)\b"
_OUT_OF_REACH = re.compile(
    _NO_CLASS
    + r"|\b(?:AccessControl|AccessDenied|NoAuthWithAWS|UnknownHost|Connect|NoRouteToHost|SocketTimeout)Exception\b"
)
"""Errors of a session that does not reach its storage, whatever lies there."""
_LASTING = re.compile(
    _NO_CLASS
    + r"|\[(?:DELTA_UNSUPPORTED_FEATURES_FOR_(?:READ|WRITE)|DELTA_INVALID_PROTOCOL_VERSION|DATA_SOURCE_NOT_FOUND"
    r"|DELTA_MISSING_NOT_NULL_COLUMN_VALUE|DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG)\b"
)
"""What a session says for as long as it lives. A constraint may be dropped, and a permission given, while we wait."""
DAMAGED_ROW = "spark_purgatory: a staged row differs from its hash"
_UNREADABLE = re.compile(r"\b(?:FAILED_READ_FILE|CANNOT_READ_FILE_FOOTER|FILE_NOT_EXIST|PARQUET_\w+)\b")
_PARQUET = re.compile(r"org\.apache\.parquet\.|is not a Parquet file|parquet\.io\.|ParquetDecodingException")
_FILE_PATH = re.compile(r"[\w./+=:%-]*part-\d+-[\w.-]+\.parquet")
_STATE = re.compile(r"CANNOT_LOAD_STATE_STORE|\bStateStoreId\b|FAILED_TO_READ_(?:DELTA|SNAPSHOT)_FILE|/state/\d+/\d+/")


def is_interruption(error: BaseException) -> bool:
    """Whether the query was stopped; Spark must get that error unchanged."""
    return _INTERRUPTION.search(str(error)) is not None


def is_lasting(error: BaseException) -> bool:
    """Whether a drain that failed so will fail in this session however often it is tried."""
    return not is_interruption(error) and _LASTING.search(str(error)) is not None


def without_reach(error: BaseException) -> str | None:
    """What to do where the session does not reach the storage: a jar is missing, or a permission, or the network. None
    where something else failed, and what lies in the storage may be damaged.
    """
    if _OUT_OF_REACH.search(str(error)) is None:
        return None
    return (
        "give the session what its storage needs: jars (spark.jars.packages), settings, permissions, the network. "
        "Nothing says that what is stored is damaged: keep it"
    )


def storage_fault(error: BaseException) -> str | None:
    """The message of a failed file system, the innermost cause; None if none failed."""
    found = [] if is_interruption(error) else _STORAGE.findall(str(error))
    return found[-1][:MAX_SAID] if found else None


def said(error: BaseException) -> str:
    """One line: the innermost cause, without quoted text, which may be a value of a row."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    # The first line of this one says which method was called.
    first = lines[min(1, len(lines) - 1)].removeprefix(": ") if isinstance(error, JAVA_FAULTS) else lines[0]
    told = storage_fault(error) or (causes[-1] if causes else f"{type(error).__name__}: {first}")
    return _QUOTED.sub("'...'", told)[:MAX_SAID]


def read_fault(error: BaseException) -> str | None:
    """In one line why a file could not be read; None if that is not what failed."""
    text = str(error)
    if DAMAGED_ROW in text:
        return "the values of a row differ from their hash, the file is damaged"
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    found = _UNREADABLE.search(f"{condition or ''} {text}")
    if found is None and storage_fault(error) is None and not _PARQUET.search(text):
        return None
    path = _FILE_PATH.search(text)
    return f"{said(error)}{f' ({path[0]})' if path else ''}"


def state_fault(error: BaseException) -> StateError | None:
    """The error to raise where a query's state could not be read; None if that is not what failed."""
    found = _STATE.search(str(error))
    if found is None or is_interruption(error):
        return None
    remedy = without_reach(error) or (
        "bring the missing or damaged files of the checkpoint's folder 'state' back from a copy, or start with a new "
        "checkpoint, which reads the sources again"
    )
    return StateUnreadableError(
        f"the state of the query cannot be read from its checkpoint: {said(error)}. Nothing was lost and nothing was "
        f"staged. {remedy[0].upper()}{remedy[1:]}"
    )


@contextmanager
def writing(what: str, folder: str) -> Iterator[None]:
    """Name what could not be written. It may be there or not: only a restart can tell."""
    try:
        yield
    except WRITE_FAULTS as error:
        if is_interruption(error):
            raise
        raise StagingError(
            f"{what} could not be written below {folder}: {said(error)}. Nothing was lost, staged rows wait. Mend the "
            "storage of the checkpoint and start again"
        ) from error
