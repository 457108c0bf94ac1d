"""The reference oracle of ``emit="early"``: micro-batch after micro-batch, as semantics 3.5 to 3.7 read.

What becomes of one operation is the oracle's own reading (`oracle`). What is added here is arrival: an operation sees
the events that have come by then, it is resolved as soon as its criterion is met by these, and of two rows of one id
the first that came is accepted. Within a micro-batch there is no order of arrival:

 1. Operations whose deadline the watermark has reached leave, before any row of the micro-batch is looked at.
 2. All events of the micro-batch are heard.
 3. Operations that wait are looked at.
 4. The micro-batch's operations are taken in the order of created, deadline and `row`, one after the other.

By hand: a row [10, 20] named x and another [10, 20] named y of one id, in one micro-batch: x is accepted. Where y comes
in an earlier one, y is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.oracle import (
    BARE_EVENT,
    BARE_OPERATION,
    Evidence,
    Fate,
    Row,
    _fate,
    _on_its_keys,
    _outcome,
    _precedence,
    why_event_rejected,
    why_operation_rejected,
)


@dataclass
class Standing:
    """A row that was accepted."""

    op: Row
    begins_us: int  # the first time at which events count
    until_us: int  # how long its id is remembered
    waits: bool = True


@dataclass
class EarlyOracle:
    """A query under ``emit="early"``, with the options of `decide`."""

    criterion: Mapping[str, Any]
    lookback_us: int
    doubles: bool
    whole_operations: bool
    value_types: set[type]
    evidence: Evidence | None = None
    watermark_us: int = 0  # 0: none yet
    heard: list[Row] = field(default_factory=list)
    accepted: list[Standing] = field(default_factory=list)

    def step(self, operations: Sequence[Row], events: Sequence[Row], watermark_ms: int) -> list[Row]:
        self.watermark_us = max(self.watermark_us, watermark_ms * 1000)
        out = [self._left(one) for one in self.accepted if one.waits and self._is_past(one.until_us)]
        for event in ({**BARE_EVENT, **event} for event in events):
            event["kind"] = "complete" if event["kind"] is None else event["kind"]
            if why_event_rejected(event, None, self.whole_operations) is None:
                self.heard.append({**event, "place": len(self.heard)})
        for one in self.accepted:
            out += self._looked_at(one) if one.waits else []
        rows = [{**BARE_OPERATION, **self.criterion, **operation} for operation in operations]
        faults = [(op, why_operation_rejected(op, self.doubles)) for op in rows]
        out += [{**_outcome(op, "REJECTED", None, why=why), "late": False} for op, why in faults if why is not None]
        for op in sorted((op for op, why in faults if why is None), key=_precedence):
            out += self._arrived(op)
        return out

    def _arrived(self, op: Row) -> list[Row]:
        late = self._is_past(op["created"])
        remembered = (one for one in self.accepted if one.op["id"] == op["id"] and not self._is_past(one.until_us))
        if any(op["created"] <= one.until_us for one in remembered):
            return [{**_outcome(op, "DUPLICATE", op["created"], why="duplicate"), "late": late}]
        begins_us = op["created"] - self.lookback_us
        if late:
            begins_us = max(begins_us, self.watermark_us + 1 - self.lookback_us)
        one = Standing({**op, "late": late}, begins_us, op["deadline"])
        self.accepted.append(one)
        out = self._looked_at(one)
        return out if out or not self._is_past(one.until_us) else [self._left(one)]

    def _looked_at(self, one: Standing) -> list[Row]:
        """The outcome of an operation that waits, if it is resolved ahead of its deadline."""
        fate = self._fate_of(one)
        one.until_us = fate.remembered_until_us
        status, at_us = fate.outcome["status"], fate.outcome["resolved_at"]
        by_deadline = one.op["rule"] == "until_deadline" and at_us == one.until_us and fate.outcome["matched"] > 0
        awaits = status == "EXPIRED" or (status == "COMPLETED" and by_deadline and not self._is_past(at_us))
        return [] if awaits else [self._left(one)]

    def _left(self, one: Standing) -> Row:
        one.waits = False
        return {**self._fate_of(one).outcome, "late": one.op["late"]}

    def _fate_of(self, one: Standing) -> Fate:
        on_key: dict[Any, list[Row]] = {}
        for event in sorted(self.heard, key=lambda event: event["time"]):
            place = event["key"] if event["key"] is not None else (event["operation_id"],)
            on_key.setdefault(place, []).append(event)
        lookback_us = one.op["created"] - one.begins_us
        return _fate(one.op, _on_its_keys(one.op, on_key), lookback_us, self.value_types, self.evidence)

    def _is_past(self, time_us: int) -> bool:
        return 0 < self.watermark_us >= time_us
