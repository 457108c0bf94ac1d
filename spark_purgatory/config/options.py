"""The options of an input, of a purgatory, and of the sink that needs no Spark."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

from spark_purgatory.config.declared import ColumnLike, Columns, Names, Options, Shown, TimeOut, is_column
from spark_purgatory.config.units import Duration, Size, is_duration, not_a_duration, reads_like_a_duration
from spark_purgatory.core.spec.criteria import ByRow, Criterion
from spark_purgatory.core.spec.engine_spec import Orphans
from spark_purgatory.errors import ConfigError


@dataclass(frozen=True, kw_only=True, repr=False)
class Operations(Options):
    """The stream of operations: their ids, their keys, and the times at which they start and end.

    Args:
        id: The operation's id.
        keys: The keys on which its events arrive: one column, a list of columns, or an array column.
        created: The timestamp from which it waits.
        timeout: A duration, or a column of day-time intervals (a day is 24 hours) or of whole numbers of
            ``timeout_unit``. Give this or ``deadline``.
        timeout_unit: The unit of a ``timeout`` column of whole numbers.
        deadline: The timestamp until which it waits.
        watermark: How far operations may arrive out of order (the delay). A stream must have one; a batch needs none.
        idle_after: After a silence this long, the watermark advances without this input (see `Purgatory.resolve`).
        outcomes_of: The `Purgatory` whose outcomes this input is, in the same query (docs/how-to/several_stages.md).
            ``watermark`` is then how far its outcomes may be behind the query's watermark.
        removed_columns: Columns of the checkpoint that the query has dropped. Needed if a new one has the same type, or
            it could be a rename. A struct's field is named by its path ("address.city", "lines.element.city").
        exclude: Columns that outcomes leave out, such as a ``timeout`` of intervals, which Delta cannot store.

    Ids and keys are strings (of the collation UTF8_BINARY), whole numbers, decimals, booleans, dates, timestamps or
    binary. Compared columns must have one type; whole numbers may differ in size, decimals in precision. A timestamp is
    compared by its instant and shown in UTC: "2026-10-25 00:30:00.5Z".

    Raises:
        ConfigError: A field has a wrong value, or ``timeout`` and ``deadline`` are both given, or neither.

    Example:
        >>> orders = Operations(id="order", keys="order", created="at", timeout="30 minutes")
        >>> parcels = Operations(id="parcel", keys=["depot", "customs"], created="sent", deadline="due")
        >>> rides = Operations(id="id", keys="id", created="at", timeout="free", timeout_unit="minutes")
    """

    id: ColumnLike
    keys: Columns
    created: ColumnLike
    timeout: TimeOut | None = None
    timeout_unit: Literal["milliseconds", "seconds", "minutes", "hours", "days"] | None = None
    deadline: ColumnLike | None = None
    watermark: Duration | None = None
    idle_after: Duration | None = None
    outcomes_of: PurgatoryOptions | None = None
    removed_columns: Names = ()
    exclude: Names = ()

    section: ClassVar[str] = "operations."
    python_only: ClassVar[tuple[str, ...]] = ("outcomes_of",)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [name for name in ("timeout", "deadline") if getattr(self, name) is not None]
        if len(given) != 1:
            was = " and ".join(given) or "neither"
            raise ConfigError(f"operations: give exactly one of timeout and deadline, got {was}")
        text = f"operations.timeout={self.timeout!r}"
        if self.timeout is not None and not is_column(self.timeout) and not is_duration(self.timeout):
            raise ConfigError(
                f"{text} must be a duration, or name a column of day-time intervals or of whole numbers: "
                f"{not_a_duration(self.timeout)}"
            )
        if isinstance(self.timeout, str) and reads_like_a_duration(self.timeout) and not is_duration(self.timeout):
            raise ConfigError(
                f"{text} is not a duration: {not_a_duration(self.timeout)}. Rename a column whose name begins like a "
                "number, or give it as a Column"
            )
        if is_duration(self.timeout):
            self.us_of("timeout")
        if self.timeout_unit is not None and self.timeout_column is None:
            raise ConfigError(
                f"operations.timeout_unit={self.timeout_unit!r} is the unit of a column of whole numbers, but {text} "
                "names no column: remove timeout_unit, or name such a column in timeout="
            )

    @property
    def timeout_column(self) -> ColumnLike | None:
        """The column with each row's timeout; None if all rows have the same, or a deadline."""
        return None if self.timeout is None or is_duration(self.timeout) else cast("ColumnLike", self.timeout)


@dataclass(frozen=True, kw_only=True, repr=False)
class Completions(Options):
    """The stream of completion events: their keys, times and values.

    Args:
        key: The key on which the event completes operations. It may be null if ``operation_id`` is not.
        time: The timestamp of the event.
        value: The number that sums and levels read: double, whole number or decimal, compared exactly. For an
            ``extend`` event, seconds.
        kind: A column of ``complete`` (or null) or control events: ``fail`` (the key has failed), ``cancel``, ``force``
            (completes) or ``extend`` (moves the deadline to the event's time + value). Without it all are ``complete``.
        operation_id: The event applies only to this operation, on the event's key; if it is null, to every operation on
            the key. A control event without a key applies to all keys of the operation (semantics 4.5).
        event_id: Events with one id count once for an operation, even on several of its keys. Each delivery satisfies
            its own key.
        columns: Columns of the deciding event that outcomes have in a struct ``event``, after its key, time, value and
            event id.
        watermark: How far events may arrive out of order, as in `Operations`.
        idle_after: As in `Operations`.
        outcomes_of: The `Purgatory` whose outcomes this input is, in the same query (docs/how-to/several_stages.md).
            ``watermark`` is then how far its outcomes may be behind the query's watermark.

    Raises:
        ConfigError: A field has a wrong value; the message names it and the remedy.

    Example:
        >>> payments = Completions(key="order_id", time="paid_at", watermark="10 minutes")
        >>> scans = Completions(key="depot", time="scanned_at", kind="what", event_id="scan_id")
    """

    key: ColumnLike
    time: ColumnLike
    value: ColumnLike | None = None
    kind: ColumnLike | None = None
    operation_id: ColumnLike | None = None
    event_id: ColumnLike | None = None
    columns: Names = ()
    watermark: Duration | None = None
    idle_after: Duration | None = None
    outcomes_of: PurgatoryOptions | None = None

    section: ClassVar[str] = "completions."
    python_only: ClassVar[tuple[str, ...]] = ("outcomes_of",)


MAX_NAME_BYTES = 1024  # of a path or table name: the longest key of object stores, with room for files below it


NO_WATERMARK = (
    'is not set: give the delay with which its rows arrive out of order, for example "10 minutes". Rows that come '
    "later may be decided wrongly, and outcomes wait as long as the delay. Give "
    '"0 seconds" if rows arrive in the order of their times'
)


def watermark_ms(side: Operations | Completions) -> int:
    """Return the side's ``watermark`` in milliseconds. Raises ConfigError if it is not set: a stream must have one."""
    if side.watermark is None:
        raise ConfigError(f"{side.section}watermark {NO_WATERMARK}")
    return side.ms_of("watermark")


@dataclass(frozen=True, kw_only=True, repr=False)
class SinkOptions(Options):
    """The options that `spark_purgatory.RecordAccumulator` describes (Kafka: the producer's configuration).

    Raises:
        ConfigError: A field has a wrong value; the message names it and the remedy.
    """

    path: str | None = None
    table: str | None = None
    format: Literal["delta", "iceberg"] | None = None
    partition_by: Names = ()
    batch_size: Size = "128 MiB"
    linger: Duration = "5 minutes"
    buffer_memory: Size = "16 GiB"
    max_block: Duration = "1 minute"
    retry_backoff: Duration = "1 second"
    delivery_timeout: Duration = "30 minutes"
    max_request_size: Size = "4 GiB"
    shares_table: bool = False
    drain_at_end: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.path) == bool(self.table):
            raise ConfigError(f"give exactly one of path and table, got path={self.path!r}, table={self.table!r}")
        require_name(self.path or self.table, "path" if self.path else "table")
        if self.format == "iceberg" and self.path:
            raise ConfigError(f"format='iceberg' needs a name, not path={self.path!r}: set table='catalog.db.t'")
        buffer_bytes, batch_bytes = self.bytes_of("buffer_memory"), self.bytes_of("batch_size")
        if buffer_bytes < batch_bytes:
            raise ConfigError(
                f"buffer_memory ({buffer_bytes:,} bytes) must hold at least one file of batch_size "
                f"({batch_bytes:,} bytes)"
            )
        timeout_ms, linger_ms = self.ms_of("delivery_timeout"), self.ms_of("linger")
        if timeout_ms < linger_ms:
            raise ConfigError(f"delivery_timeout ({timeout_ms:,} ms) must be at least linger ({linger_ms:,} ms)")


def require_name(value: object, field: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{field}={value!r} must be a path or a name")
    if len(value.encode()) > MAX_NAME_BYTES:
        raise ConfigError(f"{field} has {len(value.encode()):,} bytes: use one of at most {MAX_NAME_BYTES:,} bytes")
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise ConfigError(f"{field}={value!r} contains a control character: remove it")
    if ".." in value.split("/"):
        raise ConfigError(f"{field}={value!r} contains '..': write the full path")


LOG_HOST = "transformWithState"
MAX_SHARDS = 1 << 15  # each micro-batch scans shards for due timeouts, and 16 bits name one in the exchange
TWICE = "An event that is delivered twice counts twice: there is no event_id."
COMPLETES = {
    "any_key": "at the first event on any of its keys",
    "all_keys": "when each of its keys has had an event",
    "quorum": "when {need} of its keys have had an event",
    "count": "at event number {need} on its keys",
    "sum_at_least": "when the values of its events add up to {need}",
    "level": "when the largest value on each of its keys has reached {need}",
    "until_deadline": "at its deadline, if an event came by then",
}


@dataclass(frozen=True, kw_only=True, repr=False)
class PurgatoryOptions(Options):
    """The options of `Purgatory`, which describes them."""

    operations: Operations
    completions: Completions
    criterion: Criterion | ByRow
    emit: Literal["early", "final"] = "early"
    shards: int = 8
    lookback: Duration = "0 seconds"
    max_future: Duration = "1 day"
    tick: Duration = "1 millisecond"
    prefix: str = ""
    scope: ColumnLike | None = None
    orphans: Orphans = "none"
    evidence: Literal["none", "all"] = "none"
    max_evidence: int = 100
    evidence_order: Literal["time", "value"] = "time"
    max_pending_per_shard: int = 10_000_000
    max_state_bytes_per_shard: Size = "1 GiB"
    max_broadcast_bytes: Size = "128 MiB"
    host: Literal["applyInPandasWithState", "transformWithState"] = "applyInPandasWithState"
    max_warm_bytes: Size = "2 GiB"
    name: str = "spark_purgatory"

    @property
    def evidence_columns(self) -> tuple[str, ...]:
        """The names of the outcome's columns that carry events, without ``prefix``."""
        if self.evidence == "all":
            return "event", "events"
        return ("event",) if self.completions.names_of("columns") or self.evidence_order == "value" else ()

    @property
    def may_count_twice(self) -> bool:
        """True if a redelivered event changes a count or a sum."""
        adds_up = isinstance(self.criterion, ByRow) or self.criterion.rule in ("count", "sum_at_least")
        return adds_up and self.completions.event_id is None

    def explain(self) -> str:
        """Return the rules in words: what waits, what completes it, which events count, and when it expires."""
        texts = (f"{name:<10} {text}" for name, text in _rules(self).items())
        lines = (textwrap.fill(text, 88, subsequent_indent=" " * 11, break_on_hyphens=False) for text in texts)
        return Shown("\n".join(lines))

    def __post_init__(self) -> None:
        for field, kinds, made in (
            ("operations", (Operations,), "Operations(...)"),
            ("completions", (Completions,), "Completions(...)"),
            ("criterion", (Criterion, ByRow), "criteria.any_key() or another of criteria"),
        ):
            if not isinstance(getattr(self, field), kinds):
                raise ConfigError(f"{field}={getattr(self, field)!r} must be made with {made}")
        for side in (self.operations, self.completions):
            if side.outcomes_of is not None and not isinstance(side.outcomes_of, PurgatoryOptions):
                raise ConfigError(
                    f"{side.section}outcomes_of={side.outcomes_of!r} must be the Purgatory whose outcomes the input is"
                )
        super().__post_init__()
        if self.shards > MAX_SHARDS:
            raise ConfigError(f"shards={self.shards!r} must be between 1 and {MAX_SHARDS}")
        if self.us_of("tick") < 1000:
            raise ConfigError(f"tick={self.tick!r} must be at least 1 millisecond, the watermark's own resolution")
        if self.completions.value is None and isinstance(self.criterion, Criterion) and self.criterion.reads_values:
            raise ConfigError("completions.value is missing, but the criterion reads values: name their column")
        if self.evidence_order == "value" and self.completions.value is None:
            raise ConfigError(
                "evidence_order='value' compares event values, but Completions(value=...) is not set: set it, or "
                "remove evidence_order"
            )
        if not self.name:
            raise ConfigError(f"name={self.name!r} must be a name for the counters in observedMetrics")


def _rules(options: PurgatoryOptions) -> dict[str, str]:
    """Describe what waits, what completes it, when it expires, which events count, and when an outcome leaves."""
    operations, completions, criterion = options.operations, options.completions, options.criterion
    keys = operations.keys if isinstance(operations.keys, (list, tuple)) else [operations.keys]
    until = f"until `{operations.deadline}`" if operations.timeout is None else f"`{operations.timeout}`"
    until = f"{operations.timeout}" if is_duration(operations.timeout) else until
    unit = f" {operations.timeout_unit}" if operations.timeout_unit else ""
    by_row = isinstance(criterion, ByRow)
    met = "as its own columns say" if by_row else COMPLETES[criterion.rule].format(need=criterion.need)
    back = "" if options.us_of("lookback") == 0 else f"{options.lookback} before "
    by_id = "" if completions.event_id is None else f" An event of one `{completions.event_id}` counts once."
    once = f" {TWICE}" if options.may_count_twice else by_id
    kinds = "" if completions.kind is None else f" By `{completions.kind}` it may also fail, cancel, force or extend."
    delays = f"{operations.watermark} (operations), {completions.watermark} (completions)"
    silent = [each.section[:-1] for each in (operations, completions) if each.idle_after is None]
    rules = {
        "waits": f"each `{operations.id}` waits {until}{unit} from `{operations.created}` for events on "
        f"{', '.join(f'`{key}`' for key in keys)}",
        "completes": f"{met} ({criterion!r}); events come with `{completions.key}` and `{completions.time}`",
        "counts": f"an event from {back}`{operations.created}` to the deadline, both included.{once}{kinds}",
        "expires": "when the watermark reaches the deadline. In a stream it is the newest time of the slower input, "
        f"less its delay: {delays}."
        + (f" While {' or '.join(silent)} are silent, nothing expires: give idle_after." if silent else ""),
        "leaves": "in the micro-batch that sees its end"
        if options.emit == "early"
        else "when no earlier event can come, so that the order of arrival changes nothing",
    }
    return {name: f"{text.removesuffix('.')}." for name, text in rules.items()}
