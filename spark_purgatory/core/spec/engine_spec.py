"""What an engine does, as data: it travels to the workers, and a checkpoint remembers it."""

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

Orphans = Literal["none", "control", "all"]
"""Which events that count for no operation become ORPHAN rows: none, control events, all."""
ROLES = ("id", "keys", "created_us", "deadline_us")
"""Engine columns that may be payload columns, and then are not stored twice."""
AS_THEY_ARE = (
    "lookback_us tick_ms wheel_size identity_width operation_ids whole_operations event_ids orphans key_prefix"
).split()
"""Fields that a fingerprint has under their name."""
MOVABLE = ("need", "tick_ms", "wheel_size")
"""Fields of a fingerprint of which a moved state may have other values: what they decide is decided anew."""
MOVES = "or move the checkpoint (spark-purgatory move)"


@dataclass(frozen=True)
class Evidence:
    """How outcomes carry events."""

    has_value: bool = False
    """True if the first of the events' columns is their value."""
    lists_all: bool = False
    """True if outcomes carry all relevant events too, and not the deciding one alone."""
    most: int = 100
    """Events that one outcome lists at most: the first in its order."""
    largest: bool = False
    """True if events are taken by their values, the largest first, and not by their times."""


EVENT_KEY_AND_TIME = (pa.field("key", pa.string()), pa.field("time", pa.timestamp("us", "UTC")))
"""What every event in an outcome has first."""


@dataclass(frozen=True)
class EngineSpec:
    """What an engine does; equal specs read each other's state."""

    criterion: Criterion | ByRow
    final: bool = False
    lookback_us: int = 0
    tick_ms: int = 1
    wheel_size: int = 20
    identity_width: int = 1
    """Columns that identify an operation: 1, the id; 2, the id and its watch key, where rows are routed by key."""
    operation_ids: bool = False
    """Events may apply to one operation, by its id."""
    whole_operations: bool = False
    """An event may apply to one operation with all its keys, by its id and a null key."""
    event_ids: bool = False
    """Events bring ids: an event counts once for an operation, however often it is delivered."""
    orphans: Orphans = "none"
    control_events: bool = True
    """Events may be of other kinds than complete. If not, no deadline moves, and rows need no slot of their id.
    Not part of the fingerprint: it may change at any restart."""
    key_prefix: int = 0
    """Characters (bytes, if binary) before the key itself in every key and id: where they are scoped by a partition."""
    number: str = DOUBLE
    """Type in which values and what they must reach are compared: double, bigint or decimal(precision,scale)."""
    id_prefix: int = 0
    """Characters (bytes, if binary) before the id itself in every id, which may be of another type than keys."""
    deadline_is_sum: bool = False
    """Deadlines are sums, created + time-out: MAX_TIME_US represents one that does not fit into int64."""
    roles: tuple[tuple[str, int], ...] = ()
    """Engine columns that are payload columns already, by the payload's position: `ROLES`, stored and sent once."""
    columns: pa.Schema | None = field(default=None, hash=False)
    """The payload's columns, which a checkpoint's are compared with by name; None: they are those of the checkpoint."""
    case_sensitive: bool = False
    """True if names that differ in case alone are two names."""
    sources: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Columns that `Operations` names, by its argument (``operations.id``); without those that are expressions."""
    texts: tuple[tuple[str, str], ...] = ()
    """The type that the texts of keys and ids are made of, by argument; equal where equal values have one text."""
    evidence: Evidence | None = None
    """How outcomes carry events, None: not at all. Not part of the fingerprint: it may change at any restart."""
    event_columns: pa.Schema | None = field(default=None, hash=False)
    """What is kept of each event for it, besides its key and time, by name."""
    removed_columns: tuple[str, ...] = ()
    """Columns of the checkpoint that the query gives up (`Operations.removed_columns`)."""
    max_pending: int = 10_000_000
    """Operations waiting in one shard: at 100 bytes each 1 GB of state, past what a state store can write."""
    max_state_bytes: int = 1 << 30
    """Bytes of one shard's state: a JVM array ends at 2 GiB, and two versions are on the heap."""

    def __post_init__(self) -> None:
        if not isinstance(self.criterion, Criterion) or not self.criterion.reads_values:
            return
        scale, need = self.scale, self.criterion.need
        if scale is None:
            self.criterion.check_double()
        elif abs(units_up(need, scale)) >= MOST_UNITS:
            raise ConfigError(
                f"criterion needs {need}, and completions.value ({self.number}) has {scale} digits behind the point: "
                "together these are more than 38 digits, cast completions.value to a decimal with fewer of them"
            )

    def fingerprint(self) -> dict[str, str | float | int | bool | None]:
        """What must not change against a checkpoint, by name."""
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
        """The criterion's need: a double, or an exact decimal as text."""
        assert isinstance(self.criterion, Criterion), "bug: operations bring their own needs"
        if self.scale is None or not self.criterion.reads_values:
            return float(self.criterion.need)
        with localcontext(prec=2 * LARGEST_SCALE):
            return f"{Decimal(units_up(self.criterion.need, self.scale)).scaleb(-self.scale):f}"

    @property
    def scale(self) -> int | None:
        """Digits behind the point of the units that values are counted in, None where they are doubles."""
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
        """True if operations bring their own rules."""
        return isinstance(self.criterion, ByRow)

    def may_have(self, rules: tuple[Rule, ...]) -> bool:
        """True if an operation may have one of the rules."""
        return not isinstance(self.criterion, Criterion) or self.criterion.code in rules

    def event_type(self) -> pa.StructType:
        """The type of one event in an outcome: key, time, value and id where there are, then its columns."""
        assert self.evidence is not None and self.event_columns is not None, "bug: outcomes carry no events"
        own = [each.with_nullable(True) for each in self.event_columns]
        values = int(self.evidence.has_value)
        name = [pa.field("event_id", pa.string())] if self.event_ids else []
        return pa.struct([*EVENT_KEY_AND_TIME, *own[:values], *name, *own[values:]])

    def role(self, name: str) -> int | None:
        """The payload column that plays ``name``, None where the engine has a column of its own."""
        return dict(self.roles).get(name)


def spec_of(fingerprint: Mapping[str, Any]) -> EngineSpec:
    """A spec with this fingerprint; what a fingerprint leaves out has its default."""
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
    """What an error says of a field that the checkpoint was written with another value of, with the remedy."""
    if name == "scale":
        name, then, now = "number", _number_type(then), _number_type(now)
    if name == "number" and then == DOUBLE:
        return (
            f"number: the checkpoint was written with 'double', the query has {now!r}: values are rounded to doubles "
            "already: cast completions.value to double"
        )
    remedy = "cast completions.value" if name == "number" else "set it back"
    moves = f", {MOVES}" if name in MOVABLE else ""
    return f"{name}: the checkpoint was written with {then!r}, the query has {now!r}: {remedy} to {then!r}{moves}"


def _number_type(scale: object) -> str:
    return DOUBLE if scale is None else f"decimal of scale {scale}" if scale else "whole numbers"
