"""What users write, declared once: each option has a name, a type, a default and a description.

`Purgatory`, `RecordAccumulator`, the job's YAML file and docs/configuration.md are views of these classes. Durations
take "30 minutes", a ``timedelta``, or an int in the argument that ends in ``_ms``. Sizes take "128 MiB", or an int in
the argument that ends in ``_bytes``. Columns take a name or a ``pyspark.sql.Column``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal, Protocol

from spark_purgatory.config.units import Duration, parse_duration, parse_ms, parse_size
from spark_purgatory.errors import ConfigError


@dataclass(frozen=True)
class Option:
    """What an option is, beside its Python type."""

    kind: Literal[
        "column", "columns", "column or duration", "column or ms", "duration", "ms", "size", "bytes", "name", "names",
        "text", "choice", "flag", "flag or all", "count", "criterion", "part",
    ]  # fmt: skip
    text: str
    """One sentence for the reference."""
    choices: tuple[str, ...] = ()


class ColumnExpression(Protocol):
    """A ``pyspark.sql.Column``, of classic Spark or Spark Connect; pyspark is not imported here."""

    def alias(self, *alias: str, **kwargs: Any) -> Any:
        """The column under another name."""

    def cast(self, dataType: Any) -> Any:
        """The column as another type."""


ColumnLike = str | ColumnExpression
"""A column's name, or a ``pyspark.sql.Column``."""

WATERMARK = "How far rows may arrive out of order."
IDLE_AFTER = "After a silence this long the watermark advances without this input."
IN_MS = "The same in milliseconds."
IN_BYTES = "The same in bytes."


def duration_us(owner: object, field: str) -> int:
    """The duration of ``owner.field`` or ``owner.field_ms``, whichever is given, in microseconds."""
    value, value_ms = getattr(owner, field), getattr(owner, f"{field}_ms")
    name = f"{type(owner).__name__.lower()}.{field}" if isinstance(owner, (Operations, Completions)) else field
    return parse_duration(value, name) if value_ms is None else parse_ms(value_ms, f"{name}_ms")


def is_column(value: object) -> bool:
    """Whether a value can name a column: a non-empty string, or a Column."""
    return (isinstance(value, str) and bool(value)) or (hasattr(value, "alias") and hasattr(value, "cast"))


def require_column(value: object, field: str) -> None:
    """Raise ConfigError unless ``value`` can name a column."""
    if not is_column(value):
        raise ConfigError(f"{field}={value!r} must be a column's name or a Column")


def checked_names(given: object, field: str) -> tuple[str, ...]:
    """Names of columns as a tuple. Raises ConfigError unless each is a text that is given once."""
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (None,)
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise ConfigError(f"{field}={given!r} must be names of columns, each once")
    return names


def idle_after_us(side: Operations | Completions) -> int | None:
    """The side's ``idle_after`` in microseconds, None where it is not set."""
    return None if side.idle_after is None and side.idle_after_ms is None else duration_us(side, "idle_after")


@dataclass(frozen=True, kw_only=True)
class Operations:
    """The stream of operations: what waits, for what, since when and for how long.

    Args:
        id: The column that identifies an operation.
        keys: The keys that it waits for: one column, a list of columns, or an array column.
        created: The timestamp column from which it waits.
        timeout: How long it waits: a duration, or a column of day-time intervals (a day is 24 hours). Give exactly one
            of ``timeout``, ``timeout_ms`` and ``deadline``.
        timeout_ms: The same in milliseconds: an int, or an integer column.
        deadline: The timestamp column until which it waits.
        watermark: How far operations may arrive out of order.
        watermark_ms: The same in milliseconds.
        idle_after: After a silence this long, the watermark advances without this input (see `Purgatory.resolve`).
        idle_after_ms: The same in milliseconds.
        dropped: Columns of the checkpoint that you give up although the query has a new column of the same type.
            Without this the query is refused: it looks as if a column was renamed, and its values would be lost. Fields
            of structs are named by their path ("address.city", "lines.element.city").

    Ids and keys are strings (of the collation UTF8_BINARY), whole numbers, decimals, booleans, dates, timestamps or
    binary. What is compared with them has the same type. A timestamp is compared by its instant and shown in UTC:
    "2026-10-25 00:30:00.5Z".

    Raises:
        ConfigError: A field has a wrong value, or not exactly one of ``timeout``, ``timeout_ms`` and ``deadline`` is
            given.

    Example:
        >>> orders = Operations(id="order_id", keys="order_id", created="ordered_at", timeout="30 minutes")
        >>> parcels = Operations(id="parcel", keys=["depot", "customs"], created="sent_at", deadline="due_at")
    """

    id: Annotated[ColumnLike, Option("column", "The operation's id.")]
    keys: Annotated[
        ColumnLike | Sequence[ColumnLike], Option("columns", "Watch keys: a column, several, or an array column.")
    ]
    created: Annotated[ColumnLike, Option("column", "The time from which the operation waits: a timestamp.")]
    timeout: Annotated[
        ColumnLike | Duration | None,
        Option("column or duration", "How long it waits: a duration, or a column of day-time intervals."),
    ] = None
    timeout_ms: Annotated[
        ColumnLike | int | None, Option("column or ms", "The same in milliseconds: an int, or a column of them.")
    ] = None
    deadline: Annotated[
        ColumnLike | None, Option("column", "Until when it waits: a timestamp, in place of a time-out.")
    ] = None
    watermark: Annotated[Duration, Option("duration", WATERMARK)] = "0 seconds"
    watermark_ms: Annotated[int | None, Option("ms", IN_MS)] = None
    idle_after: Annotated[Duration | None, Option("duration", IDLE_AFTER)] = None
    idle_after_ms: Annotated[int | None, Option("ms", IN_MS)] = None
    dropped: Annotated[
        str | Sequence[str], Option("names", "Columns of the checkpoint to give up, which a new column looks like.")
    ] = ()

    def __post_init__(self) -> None:
        idle_after_us(self)
        object.__setattr__(self, "dropped", checked_names(self.dropped, "operations.dropped"))
        require_column(self.id, "operations.id")
        require_column(self.created, "operations.created")
        if isinstance(self.keys, (list, tuple)):
            if not self.keys:
                raise ConfigError("operations.keys is an empty list: name at least one column")
            for i, key in enumerate(self.keys):
                require_column(key, f"operations.keys[{i}]")
        else:
            require_column(self.keys, "operations.keys")
        given = [n for n in ("timeout", "timeout_ms", "deadline") if getattr(self, n) is not None]
        if len(given) != 1:
            was = " and ".join(given) or "none"
            raise ConfigError(f"operations: give exactly one of timeout, timeout_ms and deadline, got {was}")
        if isinstance(self.timeout, (int, float)):
            raise ConfigError(
                f'operations.timeout={self.timeout!r} has no unit: write "30 minutes", or use timeout_ms='
            )
        self._check_end()
        duration_us(self, "watermark")

    def _check_end(self) -> None:
        if self.deadline is not None:
            require_column(self.deadline, "operations.deadline")
        if isinstance(self.timeout_ms, int):
            parse_ms(self.timeout_ms, "operations.timeout_ms")
        elif self.timeout_ms is not None and not is_column(self.timeout_ms):
            raise ConfigError(
                f"operations.timeout_ms={self.timeout_ms!r} must be an int of milliseconds, or name a column of them"
            )
        if isinstance(self.timeout, timedelta):
            parse_duration(self.timeout, "operations.timeout")
        elif self.timeout is not None and not is_column(self.timeout):
            raise ConfigError(
                f'operations.timeout={self.timeout!r} must be a duration, such as "30 minutes" or a timedelta, or name '
                "a column of day-time intervals"
            )


@dataclass(frozen=True, kw_only=True)
class Completions:
    """The stream of completion events: on which key, when, and with what value.

    Args:
        key: The column of the key on which the event completes operations.
        time: The timestamp column of the event's time.
        value: The column of the number that sums and levels read, exact in its own type: double, whole number or
            decimal. Of an ``extend`` event it is seconds.
        kind: A column of ``complete`` (null means the same), ``fail`` (the key has failed), ``cancel``, ``force``
            (completes) and ``extend`` (moves the deadline to the event's time + value). Without it all are
            ``complete``.
        operation_id: Where not null, the event applies to that operation alone, on its key.
        event_id: An event of one id counts once for an operation, however often it is delivered and on whichever of its
            keys. A key is satisfied by any delivery on it.
        watermark: How far events may arrive out of order.
        watermark_ms: The same in milliseconds.
        idle_after: After a silence this long, the watermark advances without this input (see `Purgatory.resolve`).
        idle_after_ms: The same in milliseconds.

    Raises:
        ConfigError: A field has a wrong value; the message names it and the remedy.

    Example:
        >>> payments = Completions(key="order_id", time="paid_at", watermark="10 minutes")
        >>> scans = Completions(key="depot", time="scanned_at", kind="what", event_id="scan_id")
    """

    key: Annotated[ColumnLike, Option("column", "The key on which the event completes operations.")]
    time: Annotated[ColumnLike, Option("column", "The event time: a timestamp.")]
    value: Annotated[
        ColumnLike | None,
        Option(
            "column", "The number that `sum_at_least` and `level` read. In an extend event it is a number of seconds."
        ),
    ] = None
    kind: Annotated[ColumnLike | None, Option("column", "complete (or null), fail, cancel, force or extend.")] = None
    operation_id: Annotated[
        ColumnLike | None, Option("column", "The one operation that the event applies to; null: all on its key.")
    ] = None
    event_id: Annotated[ColumnLike | None, Option("column", "An id: an event that is delivered again counts once.")] = (
        None
    )
    watermark: Annotated[Duration, Option("duration", WATERMARK)] = "0 seconds"
    watermark_ms: Annotated[int | None, Option("ms", IN_MS)] = None
    idle_after: Annotated[Duration | None, Option("duration", IDLE_AFTER)] = None
    idle_after_ms: Annotated[int | None, Option("ms", IN_MS)] = None

    def __post_init__(self) -> None:
        idle_after_us(self)
        require_column(self.key, "completions.key")
        require_column(self.time, "completions.time")
        for field in ("value", "kind", "operation_id", "event_id"):
            if getattr(self, field) is not None:
                require_column(getattr(self, field), f"completions.{field}")
        duration_us(self, "watermark")


MAX_NAME_BYTES = 1024
"""Of a path or a table's name: what object stores take as a key, with room for files below it."""


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """How rows accumulate into files of a Delta table (Kafka: the producer's configuration).

    `spark_purgatory.RecordAccumulator` takes the same arguments and says what each does.

    Raises:
        ConfigError: A field has a wrong value; the message names it and the remedy.
    """

    path: Annotated[str | None, Option("name", "Folder of the Delta table; give this or table.")] = None
    table: Annotated[str | None, Option("name", "Name of the Delta table; give this or path.")] = None
    partition_by: Annotated[
        str | Sequence[str], Option("names", "Columns that partition the table, if the first drain creates it.")
    ] = ()
    batch_size: Annotated[str, Option("size", "Size of file wanted for each table partition (Kafka: batch.size).")] = (
        "128 MiB"
    )
    batch_size_bytes: Annotated[int | None, Option("bytes", IN_BYTES)] = None
    linger: Annotated[Duration, Option("duration", "How long a row may wait for its file (linger.ms).")] = "5 minutes"
    linger_ms: Annotated[int | None, Option("ms", IN_MS)] = None
    buffer_memory: Annotated[str, Option("size", "The most bytes that may be staged (buffer.memory).")] = "16 GiB"
    buffer_memory_bytes: Annotated[int | None, Option("bytes", IN_BYTES)] = None
    max_block: Annotated[
        Duration,
        Option(
            "duration",
            "How long a micro-batch waits for room in `buffer_memory`, or how long a flush "
            "waits for a table that cannot be written.",
        ),
    ] = "1 minute"
    max_block_ms: Annotated[int | None, Option("ms", IN_MS)] = None
    retry_backoff: Annotated[
        Duration,
        Option(
            "duration",
            "The first wait after a failed drain. Each further failure doubles the wait, up "
            "to ten times the first wait.",
        ),
    ] = "1 second"
    retry_backoff_ms: Annotated[int | None, Option("ms", IN_MS)] = None
    delivery_timeout: Annotated[
        Duration, Option("duration", "How long rows wait for a failing table before the query stops.")
    ] = "30 minutes"
    delivery_timeout_ms: Annotated[int | None, Option("ms", IN_MS)] = None
    max_request_size: Annotated[
        str,
        Option(
            "size", "The most bytes in one transaction, except that a single file may be larger (max.request.size)."
        ),
    ] = "4 GiB"
    max_request_size_bytes: Annotated[int | None, Option("bytes", IN_BYTES)] = None

    def __post_init__(self) -> None:
        place = {"path": self.path, "table": self.table}
        if bool(self.path) == bool(self.table):
            raise ConfigError(f"give exactly one of path and table, got path={self.path!r}, table={self.table!r}")
        for field, value in place.items():
            if value is not None:
                require_name(value, field)
        given = self.partition_by
        object.__setattr__(self, "partition_by", checked_names(given, "partition_by"))
        for field in ("batch_size", "buffer_memory", "max_request_size"):
            size_bytes = getattr(self, f"{field}_bytes")
            size_bytes = parse_size(getattr(self, field), field) if size_bytes is None else size_bytes
            if isinstance(size_bytes, bool) or not isinstance(size_bytes, int) or size_bytes < 1:
                raise ConfigError(f"{field}_bytes={size_bytes!r} must be an int of at least 1 byte")
            object.__setattr__(self, f"{field}_bytes", size_bytes)
        for field in ("linger", "max_block", "retry_backoff", "delivery_timeout"):
            object.__setattr__(self, f"{field}_ms", duration_us(self, field) // 1000)
        if self.bytes_of("buffer_memory") < self.bytes_of("batch_size"):
            raise ConfigError(
                f"buffer_memory ({self.buffer_memory_bytes:,} bytes) must hold at least one file of batch_size "
                f"({self.batch_size_bytes:,} bytes)"
            )
        if self.ms_of("delivery_timeout") < self.ms_of("linger"):
            raise ConfigError(
                f"delivery_timeout ({self.delivery_timeout_ms:,} ms) must be at least linger ({self.linger_ms:,} ms)"
            )

    def bytes_of(self, field: str) -> int:
        """A size in bytes, however it was given."""
        return int(getattr(self, f"{field}_bytes"))

    def ms_of(self, field: str) -> int:
        """A duration in milliseconds, however it was given."""
        return int(getattr(self, f"{field}_ms"))


def require_name(value: object, field: str) -> None:
    """Raise ConfigError unless ``value`` can be a path or a table's name."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{field}={value!r} must be a path or a name")
    if len(value.encode()) > MAX_NAME_BYTES:
        raise ConfigError(f"{field} has {len(value.encode()):,} bytes, at most {MAX_NAME_BYTES:,} are allowed")
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise ConfigError(f"{field}={value!r} holds a control character: name a place without")
    if ".." in value.split("/"):
        raise ConfigError(f"{field}={value!r} goes up by '..': write the place itself")
