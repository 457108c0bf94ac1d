"""What users write, validated once at the door: frozen, with errors that name field, value and remedy.

Durations take "30 minutes", "1 hour 30 minutes", a ``timedelta``, or an int in the argument that ends in ``_ms``; sizes
take "128 MiB" or an int in the argument that ends in ``_bytes``. Columns take a name or a ``pyspark.sql.Column``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

from spark_purgatory.errors import ConfigError

US_OF_UNIT = {
    "microsecond": 1,
    "us": 1,
    "millisecond": 1_000,
    "ms": 1_000,
    "second": 1_000_000,
    "sec": 1_000_000,
    "s": 1_000_000,
    "minute": 60_000_000,
    "min": 60_000_000,
    "m": 60_000_000,
    "hour": 3_600_000_000,
    "h": 3_600_000_000,
    "day": 86_400_000_000,
    "d": 86_400_000_000,
    "week": 604_800_000_000,
}
BYTES_OF_UNIT = {
    "b": 1,
    "byte": 1,
    "bytes": 1,
    **{f"{p}b": 1000**i for i, p in enumerate("kmgt", 1)},
    **{f"{p}ib": 1024**i for i, p in enumerate("kmgt", 1)},
}
MAX_DURATION_US = 1000 * 366 * US_OF_UNIT["day"]
"""A thousand years: past any wait, and far from where int64 microseconds end."""

WITHOUT_LENGTH = ("month", "quarter", "year")
DURATIONS = (
    "A duration is one or more numbers, each with a unit: microseconds (us), milliseconds (ms), seconds (s), "
    'minutes (m), hours (h), days (d) or weeks; such as "30 minutes" or "1 hour 30 minutes"'
)
SIZES = "B, KB, MB, GB, TB, KiB, MiB, GiB and TiB"

_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*")

Duration = str | timedelta
ColumnLike = Any
"""A column's name, or a ``pyspark.sql.Column``; pyspark is not imported here."""


def parse_duration(value: object, field: str) -> int:
    """A duration in microseconds. Raises ConfigError naming ``field``."""
    if isinstance(value, timedelta):
        us = value // timedelta(microseconds=1)
    elif isinstance(value, str):
        wrong = not_a_duration(value)
        if wrong is not None:
            raise ConfigError(f"{field}={value!r} is not a duration: {wrong}")
        us = round(sum(Decimal(n) * US_OF_UNIT[_unit(u)] for n, u in _PART.findall(value)))
    else:
        hint = f"; for a bare number use {field}_ms=" if isinstance(value, (int, float)) else ""
        raise ConfigError(f'{field}={value!r} is not a duration: write "30 minutes" or a timedelta{hint}')
    return _checked_us(us, value, field)


def parse_ms(value: object, field: str) -> int:
    """An int of milliseconds, given for ``field``, whose name ends in ``_ms``, in microseconds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{field}={value!r} must be an int of milliseconds")
    return _checked_us(value * US_OF_UNIT["ms"], value, field)


def _checked_us(us: int, value: object, field: str) -> int:
    if us < 0:
        raise ConfigError(f"{field}={value!r} is negative: a duration is 0 or longer")
    if us > MAX_DURATION_US:
        raise ConfigError(f"{field}={value!r} is longer than 1000 years, the longest duration allowed")
    return us


def is_duration(text: str) -> bool:
    """Whether ``text`` reads as a duration, such as "1 hour 30 minutes"."""
    return not_a_duration(text) is None


def not_a_duration(text: str) -> str | None:
    """Why ``text`` does not read as a duration, and what does; None if it does."""
    rest = _PART.sub("", text).strip()
    units = [unit for _, unit in _PART.findall(text)]
    unknown = [unit for unit in units if _unit(unit) not in US_OF_UNIT]
    if re.match(r"\s*[-\u2212]\s*\d", text):
        return "it is negative; a duration is 0 or longer"
    if unknown and _unit(unknown[0]) in WITHOUT_LENGTH:
        wrong = f"{unknown[0]!r} has no fixed length; say it in days"
    elif unknown:
        wrong = f"{unknown[0]!r} is not a unit of time"
    elif rest and re.fullmatch(r"\d+(\.\d+)?", rest):
        wrong = f"{rest} has no unit"
    elif rest or not units:
        wrong = f"{rest!r} was not understood" if rest else "it is empty"
    else:
        return None
    return f"{wrong}. {DURATIONS}"


def reads_like_a_duration(text: str) -> bool:
    """Whether whoever wrote ``text`` may have meant a duration: it begins with a number."""
    return re.match(r"\s*[-+\u2212]?\s*\.?\d", text) is not None


def _unit(word: str) -> str:
    word = word.lower()
    return word if word in US_OF_UNIT else word.removesuffix("s")


def parse_size(value: object, field: str) -> int:
    """A size in bytes. Raises ConfigError naming ``field``."""
    match = _PART.fullmatch(value) if isinstance(value, str) else None
    factor = BYTES_OF_UNIT.get(match[2].lower()) if match else None
    if match is None or factor is None:
        hint = f"; for a bare number use {field}_bytes=" if isinstance(value, (int, float)) else ""
        raise ConfigError(
            f'{field}={value!r} is not a size: write a number and one of {SIZES}, such as "128 MiB"{hint}'
        )
    return round(Decimal(match[1]) * factor)


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


def idle_after_us(side: Operations | Completions) -> int | None:
    """The side's ``idle_after`` in microseconds, None where it is not set."""
    return None if side.idle_after is None and side.idle_after_ms is None else duration_us(side, "idle_after")


@dataclass(frozen=True, kw_only=True)
class Operations:
    """The stream of operations: what waits, for what, since when and for how long.

    ``id``: one column. ``keys``: one column, a list of columns, or an array column. Keys and ids are strings (of the
    collation UTF8_BINARY), whole numbers, decimals, booleans, dates, timestamps or binary; what is compared with them
    has their type. A timestamp is compared by its instant, and shown in UTC, "2026-10-25 00:30:00.5Z". ``created``: a
    timestamp column. Exactly one of ``timeout`` (a duration, or a day-time interval column; a day is 24 hours),
    ``timeout_ms`` (an int, or an integer column) and ``deadline`` (a timestamp column). ``watermark``: how far
    operations may arrive out of order. ``idle_after``: once the stream has been silent for that long, time goes on
    without it (see `Purgatory.resolve`).
    """

    id: ColumnLike
    keys: ColumnLike
    created: ColumnLike
    timeout: ColumnLike | Duration | None = None
    timeout_ms: ColumnLike | int | None = None
    deadline: ColumnLike | None = None
    watermark: Duration = "0 seconds"
    watermark_ms: int | None = None
    idle_after: Duration | None = None
    idle_after_ms: int | None = None

    def __post_init__(self) -> None:
        idle_after_us(self)
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

    ``value``: for sums and levels, which are exact in its own type, double, whole numbers or decimal; of an ``extend``,
    seconds. ``kind``: a column of ``complete`` (as null is),
    ``fail`` (settles the key as failed), ``cancel``, ``force`` (completes) and ``extend`` (moves the deadline to the
    event's time + value); without it all events are ``complete``. ``operation_id``: where not null, the event speaks
    to that operation alone, on its key. ``event_id``: an event of one id counts once for an operation, however often it
    is delivered and on whichever of its keys; a key is satisfied by any delivery on it. ``watermark``, ``idle_after``:
    as in `Operations`.
    """

    key: ColumnLike
    time: ColumnLike
    value: ColumnLike | None = None
    kind: ColumnLike | None = None
    operation_id: ColumnLike | None = None
    event_id: ColumnLike | None = None
    watermark: Duration = "0 seconds"
    watermark_ms: int | None = None
    idle_after: Duration | None = None
    idle_after_ms: int | None = None

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

    ``path`` or ``table``: the table; made by the first drain if need be. ``partition_by``: columns that partition it;
    of a table that is there they need not be given. Rows wait together whose values differ only in a column that the
    table computes (GENERATED ALWAYS AS) and the stream lacks: then a drain writes a file for each of its values, and
    each is smaller than ``batch_size``. ``batch_size``: the size of file wanted, for each partition (``batch.size``).
    ``linger``: how long a row may wait for its file (``linger.ms``). ``buffer_memory``: the most bytes that may be
    staged (``buffer.memory``). ``max_block``: how long a micro-batch waits for room, or a flush for a failing table
    (``max.block.ms``). ``retry_backoff``: the first wait after a failed drain, doubled each time up to ten times it
    (``retry.backoff.ms``). ``delivery_timeout``: how long rows may wait for a failing table before the query stops;
    they stay staged (``delivery.timeout.ms``). ``max_request_size``: the most bytes in one transaction, but for a
    single file (``max.request.size``).
    """

    path: str | None = None
    table: str | None = None
    partition_by: tuple[str, ...] = ()
    batch_size: str = "128 MiB"
    batch_size_bytes: int | None = None
    linger: Duration = "5 minutes"
    linger_ms: int | None = None
    buffer_memory: str = "16 GiB"
    buffer_memory_bytes: int | None = None
    max_block: Duration = "1 minute"
    max_block_ms: int | None = None
    retry_backoff: Duration = "1 second"
    retry_backoff_ms: int | None = None
    delivery_timeout: Duration = "30 minutes"
    delivery_timeout_ms: int | None = None
    max_request_size: str = "4 GiB"
    max_request_size_bytes: int | None = None

    def __post_init__(self) -> None:
        place = {"path": self.path, "table": self.table}
        if bool(self.path) == bool(self.table):
            raise ConfigError(f"give exactly one of path and table, got path={self.path!r}, table={self.table!r}")
        for field, value in place.items():
            if value is not None:
                require_name(value, field)
        given = self.partition_by
        names = (given,) if isinstance(given, str) else tuple(given)
        if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
            raise ConfigError(f"partition_by={given!r} must be names of columns, each once")
        object.__setattr__(self, "partition_by", names)
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
