"""What users write, validated once at the door: frozen, with errors that name field, value and remedy.

Durations take "30 minutes", "1 hour 30 minutes", a ``timedelta``, or an int in the argument that ends in ``_ms``; sizes
take "128 MiB" or an int in the argument that ends in ``_bytes``. Columns take a name or a ``pyspark.sql.Column``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
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

_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*")

Duration = str | timedelta
ColumnLike = Any
"""A column's name, or a ``pyspark.sql.Column``; pyspark is not imported here."""


def parse_duration(value: object, field: str) -> int:
    """A duration in microseconds. Raises ConfigError naming ``field``."""
    if isinstance(value, timedelta):
        us = value // timedelta(microseconds=1)
    elif isinstance(value, str) and is_duration(value):
        us = round(sum(float(n) * US_OF_UNIT[_unit(u)] for n, u in _PART.findall(value)))
    else:
        hint = f"; for a bare number use {field}_ms=" if isinstance(value, (int, float)) else ""
        raise ConfigError(f'{field}={value!r} is not a duration: write "30 minutes" or a timedelta{hint}')
    if not 0 <= us <= MAX_DURATION_US:
        raise ConfigError(f"{field}={value!r} must lie between 0 and 1000 years")
    return us


def is_duration(text: str) -> bool:
    """Whether ``text`` reads as a duration, such as "1 hour 30 minutes"."""
    parts = _PART.findall(text)
    return bool(parts) and _PART.sub("", text) == "" and all(_unit(unit) in US_OF_UNIT for _, unit in parts)


def _unit(word: str) -> str:
    word = word.lower()
    return word if word in US_OF_UNIT else word.removesuffix("s")


def parse_size(value: object, field: str) -> int:
    """A size in bytes. Raises ConfigError naming ``field``."""
    match = _PART.fullmatch(value) if isinstance(value, str) else None
    factor = BYTES_OF_UNIT.get(match[2].lower()) if match else None
    if match is None or factor is None:
        hint = f"; for a bare number use {field}_bytes=" if isinstance(value, (int, float)) else ""
        raise ConfigError(f'{field}={value!r} is not a size: write "128 MiB" or "10 MB"{hint}')
    return round(float(match[1]) * factor)


def duration_us(owner: object, field: str) -> int:
    """The duration of ``owner.field`` or ``owner.field_ms``, whichever is given, in microseconds."""
    value, value_ms = getattr(owner, field), getattr(owner, f"{field}_ms")
    if value_ms is None:
        return parse_duration(value, field)
    if isinstance(value_ms, bool) or not isinstance(value_ms, int):
        raise ConfigError(f"{field}_ms={value_ms!r} must be an int of milliseconds")
    return parse_duration(timedelta(milliseconds=value_ms), f"{field}_ms")


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

    ``id``: one column, any atomic type. ``keys``: one column, a list of columns, or an array column. ``created``: a
    timestamp column. Exactly one of ``timeout`` (a duration, or a day-time interval column), ``timeout_ms`` (an int,
    or an integer column) and ``deadline`` (a timestamp column). ``watermark``: how far operations may arrive out of
    order. ``idle_after``: once the stream has been silent for that long, time goes on without it (see
    `Purgatory.resolve`).
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
        if self.deadline is not None:
            require_column(self.deadline, "operations.deadline")
        duration_us(self, "watermark")


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

    ``path`` or ``table``: the table; made by the first drain if need be. ``partition_by``: columns that partition it.
    ``batch_size``: the size of file wanted, for each partition (``batch.size``). ``linger``: how long a row may wait
    for its file (``linger.ms``). ``buffer_memory``: the most bytes that may be staged (``buffer.memory``).
    ``max_block``: how long a micro-batch waits for room, or a flush for a failing table (``max.block.ms``).
    ``retry_backoff``: the first wait after a failed drain, doubled each time up to ten times it (``retry.backoff.ms``).
    ``delivery_timeout``: how long rows may wait for a failing table before the query stops; they stay staged
    (``delivery.timeout.ms``). ``max_request_size``: the most bytes in one transaction, but for a single file
    (``max.request.size``).
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
