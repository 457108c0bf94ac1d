"""What Spark raises, and what of it is the storage's fault.

Messages of Spark and Delta hold values of rows, quoted or not, in any line: those that a constraint refuses, a number
that cannot be cast, the value of a partition in a path. So of an error only names are reported: its class, its
condition (``CAST_OVERFLOW_IN_TABLE_INSERT``), and those parameters of its message that name something of the table or
the session. A file system's message is reported as it is, without what a path says behind ``=``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.errors import PySparkException

from spark_purgatory.errors import START_OVER, StagingError, StateError, StateUnreadableError

try:
    from py4j.protocol import Py4JError, Py4JJavaError

    JAVA_FAULTS: tuple[type[Exception], ...] = (Py4JJavaError,)
    _NO_METHOD: tuple[type[Exception], ...] = (Py4JError, TypeError)
except ModuleNotFoundError:  # pyspark-client speaks Spark Connect alone, and brings no py4j
    JAVA_FAULTS = _NO_METHOD = ()
SPARK_FAULTS: tuple[type[Exception], ...] = (PySparkException, *JAVA_FAULTS)
"""`JAVA_FAULTS` where a file system's own exception comes through."""
WRITE_FAULTS: tuple[type[Exception], ...] = (*SPARK_FAULTS, OSError)
MAX_SAID = 300
_STORAGE = re.compile(r"\b((?:java\.nio\.file|java\.io|org\.apache\.hadoop)\.[\w.$]*(?:Exception|Error))\b([^\n]*)")
_TELLING = re.compile(
    r"No space left|[Pp]ermission denied|Read-only|[Tt]oo many open|[Tt]oo large|Input/output error|[Qq]uota|Stale"
    r"|[Cc]onnection|[Tt]imed? ?out|Mkdirs failed|[Rr]ename|Not a directory|Is a directory|Is a file|No such file"
)
"""What tells a fault of the storage in a plain IOException, whose message may be anybody's."""
_CLASS_NAME = re.compile(r"\bjava\.lang\.(?:ClassNotFoundException|NoClassDefFoundError|NoSuchMethodError)\b[^\n]*")
_FOLDER_VALUE = re.compile(r"(?<!generation)(?<!epoch)(?<!batch)=[^/\n]*")
_NAMES = re.compile(
    r"(?:names?|col(?:umn)?s?|fields?|path|types?|table|config|features?|constraint|operation|schema)$", re.IGNORECASE
)
"""Parameters of a message whose values are names; of all others nobody knows."""
_OF_TABLE = re.compile(r"DELTA_|CAST_OVERFLOW_IN_TABLE_INSERT|EXCEED_LIMIT_LENGTH|NOT_NULL_ASSERT_VIOLATION")
_OWN = re.compile(r"\bspark_purgatory\.errors\.(\w+: [^\n]*)")
_INTERRUPTION = re.compile(r"\b(?:Interrupted(?:IO)?|ClosedByInterrupt)Exception\b")
_QUOTED = re.compile(r"'.*'")
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
_FILE_PATH = re.compile(r"[\w./+=:%-]*/staging/[\w./+=:%-]*part-\d+-[\w.-]+\.parquet")
_STATE = re.compile(
    r"CANNOT_LOAD_STATE_STORE|STDS_FAILED_TO_READ_(?:STATE_SCHEMA|OPERATOR_METADATA)"
    r"|Partition should start with 0"  # folders of state partitions are missing
    r"|\bStateStoreId\b|FAILED_TO_READ_(?:DELTA|SNAPSHOT)_FILE|/state/\d+/\d+/"
)
RESTORE_STATE = f"bring back the checkpoint's folder 'state' from a copy, or {START_OVER}"
"""What to do where a query's state is missing or damaged."""


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
    if not found:
        return None
    name, text = found[-1]
    if name == "java.io.IOException" and not _TELLING.search(text):
        return str(name)
    return _without_values(name + text)


def said(error: BaseException) -> str:
    """One line of names: what the innermost cause is, and what it is about."""
    if fault := storage_fault(error):
        return fault
    if found := _CLASS_NAME.findall(str(error)):
        return _without_values(found[-1])
    name, condition, parameters = cause_of(error)
    about = [f"{key} {value}" for key, value in parameters.items() if _NAMES.search(key)]
    words = [name, *([f"[{condition}]"] if condition else []), ", ".join(about)]
    return _without_values(" ".join(filter(None, words)).splitlines()[0])


def cause_of(error: BaseException) -> tuple[str, str | None, dict[str, str]]:
    """Class, condition and parameters of the innermost cause that has a condition; of the innermost, if none has."""
    found: tuple[str, str | None, dict[str, str]] = (type(error).__name__, None, {})
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        if isinstance(error, PySparkException) and error.getCondition():
            return found[0], error.getCondition(), dict(error.getMessageParameters() or {})
        return found
    while java is not None:
        name = java.getClass().getSimpleName()
        condition, parameters = _spark_facts(java)
        if condition is not None or found[1] is None:
            found = (name, condition, parameters)
        java = java.getCause()
    return found


def _spark_facts(java: Any) -> tuple[str | None, dict[str, str]]:
    """Condition and parameters of a Java exception, if it is Spark's."""
    try:
        return java.getCondition(), {str(key): str(value) for key, value in dict(java.getMessageParameters()).items()}
    except _NO_METHOD:  # It is not Spark's, or has no parameters.
        return None, {}


def own_words(error: BaseException | None) -> str:
    """What this package said, in a query or in a worker, or the names in what Spark said."""
    found = _OWN.findall(str(error))
    return str(found[0]) if found else "it was stopped" if error is None else said(error)


def is_of_table(error: BaseException) -> bool:
    """Whether the table did not take a row; all else may be of the stream that computes the rows."""
    return _OF_TABLE.match(cause_of(error)[1] or "") is not None


def _without_values(text: str) -> str:
    return _QUOTED.sub("'...'", _FOLDER_VALUE.sub("=...", text))[:MAX_SAID]


def read_fault(error: BaseException) -> str | None:
    """Why, in one line, a file could not be read; None if that is not what failed."""
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
    remedy = without_reach(error) or RESTORE_STATE
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
