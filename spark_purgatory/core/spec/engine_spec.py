"""The specification of an engine: it is sent to the workers, and a checkpoint keeps its fingerprint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from typing import Any, Literal

import pyarrow as pa

from spark_purgatory.core.arrays.numbers import DOUBLE, LARGEST_SCALE, MOST_UNITS, scale_of, units_up
from spark_purgatory.core.spec.codes import Rule
from spark_purgatory.core.spec.criteria import ADDING, ByRow, Criterion
from spark_purgatory.errors import ConfigError

Orphans = Literal["none", "control", "all"]  # events that become ORPHAN rows if they count for no operation
ROLES = ("id", "keys", "created_us", "deadline_us")  # engine columns that may be payload columns and are stored once
AS_THEY_ARE = (  # Fields that a fingerprint has under their names
    "lookback_us tick_ms identity_width operation_ids whole_operations event_ids orphans key_prefix evidence_order"
).split()
MOVABLE = ("need", "tick_ms")  # fields of a fingerprint that a move may change
OPTION = {"need": "criterion", "key_prefix": "scope", "identity_width": "id or keys", "whole_operations": "keys, scope"}
MOVES = "or move the checkpoint (spark-purgatory move)"


@dataclass(frozen=True)
class Evidence:
    has_value: bool = False  # the first of the events' columns is their value
    lists_all: bool = False  # outcomes carry all relevant events, and not only the one that decided
    most: int = 100  # events that one outcome lists at most: the first in its order


VALUE = "value"  # the field of an event in an outcome that has its value
# The first fields of every event in an outcome.
EVENT_KEY_AND_TIME = (pa.field("key", pa.string()), pa.field("time", pa.timestamp("us", "UTC")))


@dataclass(frozen=True)
class EngineSpec:
    """The settings and columns of an engine. Equal specs read each other's state.

    ``control_events``, ``evidence`` and ``clock_delay_ms`` are not part of the fingerprint: they may change at any
    restart.
    """

    criterion: Criterion | ByRow
    final: bool = False
    lookback_us: int = 0
    tick_ms: int = 1
    identity_width: int = 1  # 1: the id identifies an operation; 2: the id and its watch key, if rows go by key
    operation_ids: bool = False  # events may apply to one operation, by its id
    whole_operations: bool = False  # an event may apply to one operation with all its keys, by its id and a null key
    event_ids: bool = False  # events have ids: an event counts once for an operation, however often it is delivered
    orphans: Orphans = "none"
    control_events: bool = True  # there may be other kinds than complete; else deadlines stay and rows have no id_slot
    key_prefix: int = 0  # characters (or bytes) of a partition's value before every key, if it scopes keys
    number: str = DOUBLE  # the type in which values and needs are compared: double, bigint or decimal(precision,scale)
    id_prefix: int = 0  # characters (or bytes) before every id, which may have another type than keys
    deadline_is_sum: bool = False  # deadlines are created + timeout; MAX_TIME_US is one that int64 does not hold
    roles: tuple[tuple[str, int], ...] = ()  # `ROLES` that are payload columns, with the payload's position
    columns: pa.Schema | None = field(default=None, hash=False)  # the payload's columns; None: the checkpoint's
    case_sensitive: bool = False  # names that differ only in case are two names
    sources: tuple[tuple[str, tuple[str, ...]], ...] = ()  # columns (not expressions) that `Operations` names
    texts: tuple[tuple[str, str], ...] = ()  # argument, type behind its texts; equal if equal values have one text
    zone: str | None = None  # the session's time zone, if created, deadline or time is without one and is read in it
    evidence: Evidence | None = None  # None: outcomes carry no events
    evidence_order: Literal["time", "value"] = "time"  # of these events; by value the largest is first
    event_columns: pa.Schema | None = field(default=None, hash=False)  # the columns kept of events besides key and time
    clock_delay_ms: int = 0  # how far its clock is behind the query's watermark: the delay of `outcomes_of`
    removed_columns: tuple[str, ...] = ()  # columns that the query gives up (`Operations.removed_columns`)
    max_pending: int = 10_000_000  # a shard's waiting operations: at 100 bytes each, more than a state store can write
    max_state_bytes: int = 1 << 30  # of one shard: a JVM array ends at 2 GiB, and two versions are on the heap

    def __post_init__(self) -> None:
        if not isinstance(self.criterion, Criterion) or not self.criterion.reads_values:
            return
        scale, need = self.scale, self.criterion.need
        if scale is None:
            self.criterion.check_double()
        elif abs(units_up(need, scale)) >= MOST_UNITS:
            raise ConfigError(
                f"criterion needs {need}, and completions.value ({self.number}) has {scale} decimal places. "
                "Together these are more than 38 digits: cast completions.value to a decimal with fewer of them"
            )

    def fingerprint(self) -> dict[str, str | float | int | bool | None]:
        """Return the settings that must equal those of the checkpoint, by name."""
        criterion: dict[str, str | float | int | bool | None] = {"criterion": "by_row", "need": 1.0}
        if isinstance(self.criterion, Criterion):
            criterion = {"criterion": self.criterion.rule, "need": self._need()}
        return {
            **criterion,
            "emit": "final" if self.final else "early",
            "scale": self.scale,
            **{name: getattr(self, name) for name in AS_THEY_ARE},
        }

    def _need(self) -> float | str:
        """Return the criterion's need: a double, or an exact decimal as text."""
        assert isinstance(self.criterion, Criterion), "bug: operations bring their own needs"
        if self.scale is None or not self.criterion.reads_values:
            return float(self.criterion.need)
        with localcontext(prec=2 * LARGEST_SCALE):
            return f"{Decimal(units_up(self.criterion.need, self.scale)).scaleb(-self.scale):f}"

    @property
    def scale(self) -> int | None:
        """Digits behind the point of the values' units; None for doubles."""
        return scale_of(self.number)

    @property
    def sum_scale(self) -> int | None:
        """`scale` if an operation may add values up, else None."""
        return self.scale if self.may_have(ADDING) else None

    @property
    def keeps_ids(self) -> bool:
        """True if rows need an id of their own: they are looked up by it, and no payload column has it."""
        return (self.final or self.operation_ids) and self.role("id") is None

    @property
    def by_row(self) -> bool:
        return isinstance(self.criterion, ByRow)

    def may_have(self, rules: tuple[Rule, ...]) -> bool:
        return not isinstance(self.criterion, Criterion) or self.criterion.code in rules

    def event_type(self) -> pa.StructType:
        """Return the type of one event in an outcome: key, time, value and id if there are any, then its columns."""
        assert self.evidence is not None and self.event_columns is not None, "bug: outcomes carry no events"
        own = [each.with_nullable(True) for each in self.event_columns]
        values = int(self.evidence.has_value)
        name = [pa.field("event_id", pa.string())] if self.event_ids else []
        return pa.struct([*EVENT_KEY_AND_TIME, *own[:values], *name, *own[values:]])

    def role(self, name: str) -> int | None:
        """Return the position of the payload column with the role; None if the engine has a column of its own."""
        return dict(self.roles).get(name)


def spec_of(fingerprint: Mapping[str, Any]) -> EngineSpec:
    """Return a spec with this fingerprint; fields that it does not include have their defaults."""
    scale, need = fingerprint["scale"], fingerprint["need"]
    criterion: Criterion | ByRow = ByRow("rule")
    if fingerprint["criterion"] != "by_row":
        criterion = Criterion(fingerprint["criterion"], Decimal(need) if isinstance(need, str) else need)
    return EngineSpec(
        criterion=criterion,
        final=fingerprint["emit"] == "final",
        number=DOUBLE if scale is None else f"decimal({LARGEST_SCALE},{scale})",
        **{name: fingerprint[name] for name in AS_THEY_ARE},
    )


def difference(name: str, then: object, now: object) -> str:
    """Return the text of an error about a setting that differs from the checkpoint's, with the remedy."""
    if name == "scale":
        name, then, now = "completions.value", _number_type(then), _number_type(now)
    moves, about = f", {MOVES}" if name in MOVABLE else "", f"{OPTION[name]} ({name})" if name in OPTION else name
    if name in ("event_ids", "operation_ids"):
        about = f"completions.{name[:-1]}"
        then, now = ("a column" if value else None for value in (then, now))
    elif name.endswith(("_us", "_ms")):
        about, unit = name.rsplit("_", 1)
        then, now = f"{then} {unit}", f"{now} {unit}"
    differs = f"{about}: the checkpoint was written with {then!r}, but the query has {now!r}"
    if name == "completions.value" and then == DOUBLE:
        return f"{differs}. Its values are rounded to doubles already: cast completions.value to double"
    return f"{differs}: {'cast completions.value' if name == 'completions.value' else 'set it back'} to {then!r}{moves}"


def other_zone(then: str, now: str) -> str:
    """Return the text of an error about times without a time zone that would be other instants than before."""
    return (
        f"spark.sql.session.timeZone: the checkpoint was written with {then!r}, but the session has {now!r}, in which "
        f"dates and timestamps without a time zone are other instants: set it back to {then!r}"
    )


def _number_type(scale: object) -> str:
    return DOUBLE if scale is None else f"decimal of scale {scale}" if scale else "whole numbers"
