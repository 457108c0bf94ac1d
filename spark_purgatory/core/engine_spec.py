"""What an engine does, as data: it travels to the workers, and a checkpoint remembers it."""

from __future__ import annotations

from dataclasses import dataclass

from spark_purgatory.core.criteria import ByRow, Criterion

ROLES = ("id", "keys", "created_us", "deadline_us")
"""Engine columns that a payload column may stand for."""
LATER_FIELDS: dict[str, str | float | int | bool] = {
    "identity_width": 1,
    "operation_ids": False,
    "event_ids": False,
    "orphans": False,
    "key_prefix": 0,
    "utc_fields": "",
}
"""What a checkpoint that does not name it was written with."""


@dataclass(frozen=True)
class EngineSpec:
    """What an engine does; equal specs read each other's state."""

    criterion: Criterion | ByRow
    final: bool = False
    lookback_us: int = 0
    tick_ms: int = 1
    wheel_size: int = 20
    identity_width: int = 1
    """Columns that tell operations apart: 1, the id; 2, the id and its watch key, where rows are routed by key."""
    operation_ids: bool = False
    """Events may speak to one operation, by its id."""
    event_ids: bool = False
    """Events bring ids: an event counts once for an operation, however often it is delivered."""
    orphans: bool = False
    """Control events that find no operation become ORPHAN rows."""
    key_prefix: int = 0
    """Characters (bytes, if binary) before the key itself in every key and id: where they are scoped by a partition."""
    utc_fields: str = ""
    """Names of the keys and ids that are timestamps: their texts are in UTC, once they were in the session's zone."""
    deadline_is_sum: bool = False
    """Deadlines are sums, created + time-out: NEVER stands for one that int64 does not hold."""
    roles: tuple[tuple[str, int], ...] = ()
    """Engine columns that are payload columns already, by the payload's position: `ROLES`, stored and sent once."""
    max_pending: int = 10_000_000
    """Operations waiting in one shard: at 100 bytes each 1 GB of state, past what a state store can write."""
    max_state_bytes: int = 1 << 30
    """Bytes of one shard's state: a JVM array ends at 2 GiB, and two versions stand on the heap."""

    def fingerprint(self) -> dict[str, str | float | int | bool]:
        """What must not change against a checkpoint, by name."""
        criterion: dict[str, str | float | int | bool] = {"criterion": "by_row", "need": 1.0}
        if isinstance(self.criterion, Criterion):
            criterion = {"criterion": self.criterion.rule, "need": float(self.criterion.need)}
        return {
            **criterion,
            "emit": "final" if self.final else "early",
            "lookback_us": self.lookback_us,
            "tick_ms": self.tick_ms,
            "wheel_size": self.wheel_size,
            "roles": ", ".join(f"{name} is payload column {i}" for name, i in self.roles),
            **{name: getattr(self, name) for name, was in LATER_FIELDS.items() if getattr(self, name) != was},
        }

    @property
    def keeps_ids(self) -> bool:
        """Whether rows need an id of their own: they are looked up by it, and no payload column has it."""
        return (self.final or self.operation_ids) and self.role("id") is None

    @property
    def by_row(self) -> bool:
        """Whether operations bring their own rules."""
        return isinstance(self.criterion, ByRow)

    def may_have(self, rule: int) -> bool:
        """Whether an operation may have the rule, a code of `RULES`."""
        return not isinstance(self.criterion, Criterion) or self.criterion.code == rule

    def role(self, name: str) -> int | None:
        """The payload column that plays ``name``, None where the engine has a column of its own."""
        return dict(self.roles).get(name)


def difference(name: str, then: object, now: object) -> str:
    """What is to be said where a checkpoint was written with another value of a spec's field, and the remedy."""
    if name == "utc_fields":
        return (
            f"timestamps as keys or ids: the checkpoint keeps them as text in UTC of {then or 'no field'}, the query "
            f"of {now or 'no field'}. Either the field's type has changed, or the checkpoint is of a release that kept "
            "such timestamps as text in the session's time zone, in which an hour a year has two instants for each "
            "text: bring columns of the types that the checkpoint was written with, or start a new checkpoint"
        )
    return (
        f"{name}: the checkpoint was written with {then!r}, the query has {now!r}: "
        f"set it back to {then!r}, or start a new checkpoint"
    )
