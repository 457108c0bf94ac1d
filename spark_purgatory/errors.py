"""The errors of this package, with all numbers and without payload.

``PurgatoryError`` is the root. Below it, ``ConfigError`` is the caller's fault, ``StateError`` the state's,
``StorageError`` the storage's, and ``BugError`` ours. `sentence_of` makes a line for people of any error, also Spark's.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import reduce
from typing import Any, NamedTuple

START_OVER = (
    "start over with a new checkpoint and a new table, because the sources are then read from their beginning and the "
    "old table would get its rows a second time"
)
RESTORE_STATE = f"bring back the checkpoint's folder 'state' from a copy, or {START_OVER}"


class PurgatoryError(Exception):
    """The root of all errors of this package. Its message has no login of an address."""

    def __init__(self, message: str = "") -> None:
        super().__init__(without_login(message))


class ConfigError(PurgatoryError, ValueError):
    """The caller gave something that cannot work. The message has the field, the value and the values allowed."""


class EmptyWatchKeysError(ConfigError):
    """An operation was given no watch keys (Kafka: IllegalArgumentException of ``tryCompleteElseWatch``)."""


class LimitError(PurgatoryError):
    """A limit was reached, and nothing was lost. The message has the limit, the number and the remedy."""


class StateError(PurgatoryError):
    """The state in a checkpoint cannot be used. The message has the differences."""


class StateCorruptError(StateError):
    """The state's bytes are not those that were written: magic, length, checksum or content."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}: {RESTORE_STATE}")


class StateVersionError(StateError):
    """The state was written in a format that this version does not read."""


class StateMismatchError(StateError):
    """The state belongs to a query with another shard count, criterion or schema."""


class StateUnreadableError(StateError):
    """Spark cannot read the state's files from the checkpoint: one is missing or damaged. Bring it back from a copy."""


class StorageError(PurgatoryError):
    """The sink's storage refused a request or contains something unexpected."""


class SourceError(PurgatoryError):
    """A source of a job cannot be read: a topic does not exist, or no broker answers."""


class BugError(PurgatoryError, AssertionError):
    """One of our own invariants is broken; the message starts with ``bug:``."""

    def __init__(self, message: str) -> None:
        super().__init__(f"bug: {message}; please report it with this message")


class BufferExhaustedError(LimitError):
    """buffer_memory is full and the table took nothing for max_block (Kafka: BufferExhaustedException)."""


class BatchStateError(ConfigError):
    """A batch got an event that its state does not allow. The message has the batch, its state and the event."""


class DeliveryTimeoutError(StorageError):
    """A batch could not be delivered within the delivery timeout (Kafka: TimeoutException)."""


class StagingError(StorageError):
    """The staging folder is damaged, lost, or another query's. The message has the entry or batch that is missing."""


class TableLostError(StorageError):
    """The target was dropped, replaced or restored, or no longer has the query's commits (txnVersion)."""


class TableForgetsError(StorageError):
    """The target drops transactions after a time (``delta.setTransactionRetentionDuration``)."""


class ForeignWriterError(StorageError):
    """Another writer commits under this query's app id, or writes into its staging folder."""


class SkippedWriteError(StorageError):
    """Delta accepted a write that the table's history does not have: another writer has the same app id."""


class SchemaMismatchError(StorageError):
    """The target's columns differ from those of the staged rows."""


# --- the line of an error for people ---------------------------------------------------------------------------------
#
# Messages of Spark and Delta, and of functions in Python workers, may contain values of rows. So a line has our own
# sentence, if there is one. Else it has the message of a file system or broker, with partition values masked in paths;
# the class and place of a Python traceback; or Spark's text for a condition, with only parameters that are names.

MAX_SAID = 300
# One of our errors in a traceback, or raised by an expression of ours. In a plan it is inside a line.
_OWN = re.compile(
    r"(?:^[ \t]*|\[USER_RAISED_EXCEPTION\] )spark_purgatory\.errors\.(\w+): (.*?)(?: SQLSTATE: \w+)*$", re.MULTILINE
)
# An assertion of ours in a traceback.
_BROKEN = re.compile(
    r'^  File "[^"\n]*\bspark_purgatory\b[^"\n]*", line \d+, in \S+\n(?: {3,}.*\n)*AssertionError: bug: ([^\n]+)',
    re.MULTILINE,
)
# The last call of a Python traceback, and the class of the exception. The text after it may be anything.
_TRACEBACK = re.compile(
    r'^  File "([^"\n]*)", line (\d+), in (\S+)\n(?: {3,}.*\n|  \[Previous .*\n)*'
    r"([A-Za-z_][\w.]*)(?:: (\[[A-Z][A-Z_.]+\]|No module named '[\w.]+'))?",
    re.MULTILINE,
)
# The causes in the text of a Py4JJavaError.
_JAVA = re.compile(
    r"^(?:: |Caused by: )(?:java|org\.apache|io\.delta|com\.databricks)\.(?:\w+\.)*([\w$]+)"
    r"(?:: (\[[A-Z][A-Z0-9_.]+\]))?",
    re.MULTILINE,
)
# The condition that ended a stream, in the text that Spark Connect gives.
_STREAM = re.compile(
    r"(?:\[STREAM_FAILED\] Query \[[^]]*\] terminated with exception: |\(STREAM_FAILED\) )\[([A-Z0-9_.]+)\]"
)
_STORAGE = re.compile(r"\b((?:java\.nio\.file|java\.io|org\.apache\.hadoop)\.[\w.$]*(?:Exception|Error))\b([^\n]*)")
# Texts of the storage in a plain IOException, whose message may otherwise be anything.
_TELLING = re.compile(
    r"No space left|[Pp]ermission denied|Read-only|[Tt]oo many open|[Tt]oo large|Input/output error|[Qq]uota|Stale"
    r"|[Cc]onnection|[Tt]imed? ?out|Mkdirs failed|[Rr]ename|Not a directory|Is a directory|Is a file|No such file"
    r"|Status Code: \d"
)
_CLASS_NAME = re.compile(r"\bjava\.lang\.(?:ClassNotFoundException|NoClassDefFoundError|NoSuchMethodError)\b[^\n]*")
_OF_BROKER = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(?:Timeout|RecordTooLarge|\w*Authorization|\w*Authentication|Disconnect"
    r"|UnknownTopicOrPartition|InvalidTopic|NotEnoughReplicas|OffsetOutOfRange)Exception"
)
_OF_CODE = ("PARSE_", "UNRESOLVED_", "DATATYPE_MISMATCH")  # conditions of a query's text, before a row is read
# Parameters of a message, after its condition, whose values are names or of the code; others may be values of rows.
_NAMES = re.compile(
    r"(?i)(?:names?|col(?:umn)?s?|fields?|path|types?|table|config|features?|constraint|schema|proposal|\bexpr"
    r"|CONSTRAINT\w*\.expression)$"
)
_RULE = re.compile(r"CONSTRAINT|CHAR_VARCHAR")  # Conditions with expressions, which may have "=", and without paths.
_WRAPPING = re.compile(r"(?i)(?:message|msg|error|reason|cause|exception|params|trace(?:back)?)$")  # Another error.
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
    """The cause of an error: its class, Spark's condition with its parameters, and the message."""

    name: str
    condition: str | None
    parameters: dict[str, str]
    message: str


def sentence_of(error: BaseException) -> str:
    """Return one line about an error for people, without values of rows.

    Spark wraps an error of this package in pages of text, and its own messages quote rows. The line is our sentence, if
    there is one in these pages. Else it is the class and condition of the cause, with names of columns, types and
    files; or the class and place of an exception in a Python function.

    Example::

        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            print(sentence_of(error))
    """
    if (own := own_error(error)) is not None:
        return str(own)
    text = _text(error)
    if died := next((sentence for words, sentence in _DIED.items() if words in text), None):
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
    """Return the error of this package that an error is or has in its text; None if there is none."""
    if isinstance(error, PurgatoryError):
        return error
    text = _text(error)
    for name, sentence in reversed(_OWN.findall(text)):
        if isinstance(kind := globals().get(name), type) and issubclass(kind, PurgatoryError):
            return again(name, sentence)
    return BugError(broken[-1]) if (broken := _BROKEN.findall(text)) else None


def again(name: str, message: str) -> PurgatoryError:
    """Return an error of this package by its name, with a whole message: an ``__init__`` may add to it."""
    error = PurgatoryError.__new__(globals()[name])
    error.args = (message,)
    return error


def is_interruption(error: BaseException) -> bool:
    """Return True if the query was stopped. Spark must get this error unchanged."""
    return _INTERRUPTION.search(_text(error)) is not None


def storage_fault(error: BaseException) -> str | None:
    """Return the message of a file system that failed, from the innermost cause; None if none failed."""
    found = [] if is_interruption(error) else _STORAGE.findall(_text(error))
    if not found:
        return None
    name, text = found[-1]
    if name == "java.io.IOException" and not _TELLING.search(text):
        return str(name)
    return _without_values(name + text)


def cause_of(error: BaseException) -> Cause:
    """Return the innermost cause with a condition, or the innermost one if none has a condition."""
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
    """Return Spark's text for a condition without values, or only names if values cannot be found in the text."""
    head, text = f"[{cause.condition}] ", cause.message.strip()
    shown = re.compile("") if head.startswith(tuple(f"[{start}" for start in _OF_CODE)) else _NAMES
    named = {key: value for key, value in cause.parameters.items() if shown.search(f"{cause.condition}.{key}")}
    hidden = sorted((value for key, value in cause.parameters.items() if value and key not in named), key=len)
    for i, value in reversed(list(enumerate(hidden))):
        if text.count(value) == 1:
            text = text.replace(value, "...")
        elif text.count(value) or not any(value in longer for longer in hidden[i + 1 :]):
            text = ""
            break
    if text.startswith(head):
        line = re.sub(r"(?<!\.)[.:]$", "", re.sub(r" SQLSTATE: \w+;?$", "", text.replace(": \n", ": ").splitlines()[0]))
        return without_login(line if _RULE.search(head) else _FOLDER_VALUE.sub("=...", line))[:MAX_SAID]
    about = ", ".join(f"{key} {value}" for key, value in named.items())
    return _without_values(f"{cause.name.rpartition('.')[2]} {head}{about}".strip().splitlines()[0])


def without_login(text: str) -> str:
    """Remove users and passwords from the addresses in a text."""
    return _LOGIN.sub("", text)


def _raised(file: str, line: str, function: str, name: str, message: str) -> str:
    short = name.rpartition(".")[2]
    if name.startswith("pyspark.errors.") and message.startswith("["):
        return f"{short} {message}"
    if message.startswith("No module") and short == "ModuleNotFoundError":
        lacking = ": Spark's workers do not have it (spark-purgatory doctor --spark; docs/shipping.md)"
        return f"{short}: {message}{lacking if _OF_WORKERS.search(message) else ''}"
    return f"{short} in {function} ({file}, line {line})"


def _text(error: BaseException) -> str:
    """Return an error's text without its condition's values, which may look like another error."""
    try:
        text = str(error)
    except Exception:  # py4j asks the JVM for it, which may be gone
        return ""
    given = cause_of(error).parameters.items()
    values = (value for key, value in given if value and not (_NAMES.search(key) or _WRAPPING.search(key)))
    return reduce(lambda left, value: left.replace(value, "..."), sorted(values, key=len, reverse=True), text)


def _without_values(text: str) -> str:
    return _LOGIN.sub("", _QUOTED.sub("'...'", _FOLDER_VALUE.sub("=...", text)))[:MAX_SAID]
