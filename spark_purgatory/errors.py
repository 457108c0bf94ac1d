"""Every error this package raises: whose fault it is, with all the numbers, never with payload.

``PurgatoryError`` is the root. Below it, by fault: ``ConfigError`` the caller's, ``StateError`` the state's,
``StorageError`` the storage's, ``BugError`` ours. `sentence_of` is what a person may read of any error, Spark's too.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, NamedTuple

START_OVER = (
    "start over with a new checkpoint and a new table, because the sources are then read from their beginning and the "
    "table would get rows that it has a second time"
)
"""The last way out. A new checkpoint alone would double the table."""


class PurgatoryError(Exception):
    """Root of all errors of this package."""


class ConfigError(PurgatoryError, ValueError):
    """The caller gave something that cannot work; names the field, the value and what is allowed."""


class EmptyWatchKeysError(ConfigError):
    """An operation was given no watch keys (Kafka: IllegalArgumentException of ``tryCompleteElseWatch``)."""


class LimitError(PurgatoryError):
    """A limit was reached; nothing was lost; names the limit, the figure and the remedy."""


class StateError(PurgatoryError):
    """State read from a checkpoint cannot be used; names what differs."""


class StateCorruptError(StateError):
    """The state's bytes are not what was written: magic, length, checksum or content."""


class StateVersionError(StateError):
    """The state was written in a format that this version does not read."""


class StateMismatchError(StateError):
    """The state belongs to a query with another shard count, criterion or schema."""


class StateUnreadableError(StateError):
    """Spark cannot read the state's files from the checkpoint: one is missing or damaged. Bring it back from a copy."""


class StorageError(PurgatoryError):
    """The sink's storage refused or holds something unexpected."""


class SourceError(PurgatoryError):
    """A source of a job cannot be read: a topic is not there, or no broker answers."""


class BugError(PurgatoryError, AssertionError):
    """One of our own invariants is broken; the message starts with ``bug:``."""

    def __init__(self, message: str) -> None:
        super().__init__(f"bug: {message}; please report it with this message")


class BufferExhaustedError(LimitError):
    """buffer_memory is full and the table took nothing for max_block (Kafka: BufferExhaustedException)."""


class BatchStateError(ConfigError):
    """A batch got an event that its state does not allow; names the batch, its state and the event."""


class DeliveryTimeoutError(StorageError):
    """A batch could not be delivered within the delivery time-out (Kafka: TimeoutException)."""


class StagingError(StorageError):
    """The staging folder is damaged, lost, or not this query's; names the entry or the batch that is missing."""


class TableLostError(StorageError):
    """The target was dropped, replaced or restored, or has forgotten what the query committed (txnVersion)."""


class TableForgetsError(StorageError):
    """The target is set to forget transactions (``delta.setTransactionRetentionDuration``)."""


class ForeignWriterError(StorageError):
    """Someone else commits under this query's app id, or writes into its staging folder."""


class SkippedWriteError(StorageError):
    """Delta took a write without an error, and the table's history does not have it: its app id is another's, too."""


class SchemaMismatchError(StorageError):
    """The target's columns are not those of the staged rows."""


# --- what a person may read of an error ------------------------------------------------------------------------------
#
# Messages of Spark and Delta, and of functions that run in Python workers, hold values of rows, quoted or not, in any
# line. So what is shown of them is: our own sentence, where there is one; a file system's or a broker's message without
# what a path says behind "="; of a Python traceback the class and the place; of an error with a condition Spark's text
# for it, without those parameters that are not names.

MAX_SAID = 300
_OWN = re.compile(
    r"(?:^[ \t]*|\[USER_RAISED_EXCEPTION\] )spark_purgatory\.errors\.(\w+): (.*?)(?: SQLSTATE: \w+)*$", re.MULTILINE
)
"""One of ours in a traceback, or raised by an expression of ours. In a plan it stands inside a line."""
_TRACEBACK = re.compile(
    r'^  File "([^"\n]*)", line (\d+), in (\S+)\n(?: {3,}.*\n|  \[Previous .*\n)*'
    r"([A-Za-z_][\w.]*)(?:: (\[[A-Z][A-Z_.]+\]|No module named '[\w.]+'))?",
    re.MULTILINE,
)
"""The last call of a Python traceback, and the class of the exception. What follows it may be anybody's words."""
_JAVA = re.compile(
    r"^(?:: |Caused by: )(?:java|org\.apache|io\.delta|com\.databricks)\.(?:\w+\.)*([\w$]+)"
    r"(?:: (\[[A-Z][A-Z0-9_.]+\]))?",
    re.MULTILINE,
)
"""Of the pages of a Py4JJavaError, each cause."""
_STREAM = re.compile(
    r"(?:\[STREAM_FAILED\] Query \[[^]]*\] terminated with exception: |\(STREAM_FAILED\) )\[([A-Z0-9_.]+)\]"
)
"""Why a stream ended, where Spark Connect gives no more than its text."""
_STORAGE = re.compile(r"\b((?:java\.nio\.file|java\.io|org\.apache\.hadoop)\.[\w.$]*(?:Exception|Error))\b([^\n]*)")
_TELLING = re.compile(
    r"No space left|[Pp]ermission denied|Read-only|[Tt]oo many open|[Tt]oo large|Input/output error|[Qq]uota|Stale"
    r"|[Cc]onnection|[Tt]imed? ?out|Mkdirs failed|[Rr]ename|Not a directory|Is a directory|Is a file|No such file"
)
"""What tells a fault of the storage in a plain IOException, whose message may be anybody's."""
_CLASS_NAME = re.compile(r"\bjava\.lang\.(?:ClassNotFoundException|NoClassDefFoundError|NoSuchMethodError)\b[^\n]*")
_OF_BROKER = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(?:Timeout|RecordTooLarge|\w*Authorization|\w*Authentication|Disconnect"
    r"|UnknownTopicOrPartition|InvalidTopic|NotEnoughReplicas|OffsetOutOfRange)Exception"
)
_OF_CODE = ("PARSE_", "UNRESOLVED_", "DATATYPE_MISMATCH")
"""Conditions of the text of a query, before any row is read."""
_NAMES = re.compile(
    r"(?:names?|col(?:umn)?s?|fields?|path|types?|table|config|features?|constraint|schema|proposal)$", re.IGNORECASE
)
"""Parameters of a message whose values are names; of all others nobody knows."""
_FOLDER_VALUE = re.compile(r"(?<!generation)(?<!epoch)(?<!batch)=[^/\n]*")
_LOGIN = re.compile(r"(?<=://)[^/@:\s]*:[^/@\s]*@")
_QUOTED = re.compile(r"'.*'")
_INTERRUPTION = re.compile(r"\b(?:Interrupted(?:IO)?|ClosedByInterrupt)Exception\b")
_OF_WORKERS = re.compile(r"'(?:spark_purgatory|numpy|pandas|pyarrow)\b")
_DIED = {
    "Python worker exited unexpectedly": "a Python worker of Spark died; it may have run out of memory",
    "Answer from Java side is empty": "Spark's JVM does not answer; it may have run out of memory",
}


class Cause(NamedTuple):
    """What an error says of its cause: the class, Spark's condition with its parameters, the message."""

    name: str
    condition: str | None
    parameters: dict[str, str]
    message: str


def sentence_of(error: BaseException) -> str:
    """Return one line about an error that a person may read: what happened, without any value of a row.

    Spark wraps an error of this package in pages of its own, and its own messages quote rows. Here is our sentence,
    wherever it is in these pages; else the class and the condition of the cause, with what names columns, types and
    files; of a Python function that failed, the class of the exception and its place.

    Example::

        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            print(sentence_of(error))
    """
    if (own := own_error(error)) is not None:
        return str(own)
    text = _text(error)
    if died := next((said for words, said in _DIED.items() if words in text), None):
        return died
    if fault := storage_fault(error):
        return fault
    if found := _CLASS_NAME.findall(text):
        return _without_values(found[-1])
    if raised := [*_TRACEBACK.finditer(text)]:
        if raised[-1][4].endswith("Py4JJavaError") and (causes := _JAVA.findall(text, raised[-1].end())):
            return " ".join(filter(None, causes[-1]))
        return _raised(*raised[-1].groups(""))
    cause = cause_of(error)
    if cause.condition == "STREAM_FAILED" or (cause.condition is None and text.startswith("(STREAM_FAILED)")):
        inner = _STREAM.match(text)
        return f"{cause.name} [{inner[1] if inner else 'STREAM_FAILED'}]"
    if cause.condition is not None:
        return _of_condition(cause)
    if isinstance(error, OSError) and error.strerror:
        return f"{cause.name}: {error.strerror}"
    if _OF_BROKER.fullmatch(cause.name):
        return _without_values(f"{cause.name}: {cause.message}".splitlines()[0])
    return cause.name.rpartition(".")[2]


def own_error(error: BaseException) -> PurgatoryError | None:
    """Return the error of this package that another one is, or tells of in its text; None if there is none."""
    if isinstance(error, PurgatoryError):
        return error
    for name, said in reversed(_OWN.findall(_text(error))):
        if isinstance(kind := globals().get(name), type) and issubclass(kind, PurgatoryError):
            own = kind.__new__(kind)
            own.args = (said,)  # not by __init__: BugError's adds to it
            return own
    return None


def is_interruption(error: BaseException) -> bool:
    """Whether the query was stopped; Spark must get that error unchanged."""
    return _INTERRUPTION.search(_text(error)) is not None


def storage_fault(error: BaseException) -> str | None:
    """The message of a failed file system, the innermost cause; None if none failed."""
    found = [] if is_interruption(error) else _STORAGE.findall(_text(error))
    if not found:
        return None
    name, text = found[-1]
    if name == "java.io.IOException" and not _TELLING.search(text):
        return str(name)
    return _without_values(name + text)


def cause_of(error: BaseException) -> Cause:
    """The innermost cause that has a condition; the innermost, if none has."""
    causes = [_facts(error, type(error).__name__)]
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    with suppress(Exception):  # the JVM may be gone
        while java is not None:
            causes.append(_facts(java, java.getClass().getName()))
            java = java.getCause()
    return next((cause for cause in reversed(causes) if cause.condition is not None), causes[-1])


def _facts(error: Any, name: str) -> Cause:
    condition, parameters, message = None, {}, ""
    with suppress(Exception):  # not Spark's, or without parameters
        message = str(error.getMessage())
        condition, parameters = error.getCondition(), dict(error.getMessageParameters() or {})
    return Cause(name, condition, {str(key): str(value) for key, value in parameters.items()}, message)


def _of_condition(cause: Cause) -> str:
    """Return Spark's text for a condition without values; names alone, where values cannot be told apart."""
    head, text = f"[{cause.condition}] ", cause.message.strip()
    shown = re.compile("") if head.startswith(tuple(f"[{start}" for start in _OF_CODE)) else _NAMES
    hidden = sorted((value for key, value in cause.parameters.items() if value and not shown.search(key)), key=len)
    for i, value in reversed(list(enumerate(hidden))):
        if text.count(value) == 1:
            text = text.replace(value, "...")
        elif text.count(value) or not any(value in longer for longer in hidden[i + 1 :]):
            text = ""
            break
    if text.startswith(head):
        line = re.sub(r"(?<!\.)\.$", "", re.sub(r" SQLSTATE: \w+;?$", "", text.splitlines()[0]))
        return without_login(_FOLDER_VALUE.sub("=...", line))[:MAX_SAID]
    about = ", ".join(f"{key} {value}" for key, value in cause.parameters.items() if _NAMES.search(key))
    return _without_values(f"{cause.name.rpartition('.')[2]} {head}{about}".strip().splitlines()[0])


def without_login(text: str) -> str:
    """A text without users and passwords in the addresses that it has."""
    return _LOGIN.sub("", text)


def _raised(file: str, line: str, function: str, name: str, said: str) -> str:
    short = name.rpartition(".")[2]
    if name.startswith("pyspark.errors.") and said.startswith("["):
        return f"{short} {said}"
    if said.startswith("No module") and short == "ModuleNotFoundError":
        lacking = ": Spark's workers do not have it (spark-purgatory doctor --spark; docs/shipping.md)"
        return f"{short}: {said}{lacking if _OF_WORKERS.search(said) else ''}"
    return f"{short} in {function} ({file}, line {line})"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # py4j asks the JVM for it, which may be gone
        return ""


def _without_values(text: str) -> str:
    return _LOGIN.sub("", _QUOTED.sub("'...'", _FOLDER_VALUE.sub("=...", text)))[:MAX_SAID]
