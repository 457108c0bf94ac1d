"""The evidence that the reference oracle gives with an outcome: the event that decided, and all that counted.

Read from the documentation alone, as the oracle is. Events of one time are taken in the order of the operation's watch
keys, then of event ids, then of content: column by column, null first, a float by its bits. By hand, for an operation
on the keys a and b that needs both::

    a at 12, b at 15, a at 15 again     decides: b at 15; all of them are listed

With `largest` the events that counted are taken by their values instead, and the first of them is shown.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Evidence:
    """What outcomes carry of events: columns by name, and at most so many events."""

    columns: Sequence[str] = ()
    most: int = 100
    largest: bool = False

    def in_order(self, op: Row, events: Sequence[Row]) -> list[Row]:
        """The events as evidence takes them."""
        return sorted(events, key=lambda event: self._rank(op, event))

    def deciding(
        self, op: Row, taken: Sequence[Row], resolved: int, control: str | None, holds: Callable[[list[Row]], bool]
    ) -> Row | None:
        """The event at the resolution with which the criterion was met, or the first control event of that kind."""
        here = self.in_order(op, [event for event in taken if event["time"] == resolved])
        if control is not None:
            return next((self.shown(event) for event in here if event["kind"] == control), None)
        so_far = [event for event in taken if event["time"] < resolved]
        if holds(so_far):
            return None  # it held before: at the created time no event decides
        for event in here:
            so_far.append(event)
            if holds(so_far):
                return self.shown(event)
        return None

    def firsts(self, ordered: Sequence[Row]) -> list[Row]:
        """The events in order without those that were delivered before."""
        seen: set[Any] = set()
        kept = []
        for event in ordered:
            if event["event_id"] is None or event["event_id"] not in seen:
                kept.append(event)
            seen.add(event["event_id"])
        return kept

    def listed(self, op: Row, once: Sequence[Row]) -> list[Row]:
        """The first events that counted, or the largest."""
        ordered = self.in_order(op, once)
        if self.largest:
            # Sorting is stable: equals stay in their order.
            ordered = sorted(ordered, key=lambda event: _size(event["value"]), reverse=True)
        return [self.shown(event) for event in ordered[: self.most]]

    def shown(self, event: Row) -> Row:
        """An event as an outcome has it."""
        names = ("key", "time", "value", "event_id", *self.columns)
        return {name: event.get(name) for name in names}

    def _rank(self, op: Row, event: Row) -> tuple[Any, ...]:
        key = -1 if event["key"] is None else op["keys"].index(event["key"])
        content = [event.get(name) for name in ("value", *self.columns)]
        return event["time"], key, _comparable(event["event_id"]), *map(_comparable, content)


def _size(value: Any) -> tuple[bool, Any]:
    """Null and NaN below every number."""
    is_number = value is not None and value == value
    return is_number, value if is_number else 0


def _comparable(value: Any) -> tuple[bool, Any]:
    """Null before everything; a float by its bits."""
    if isinstance(value, float):
        value = struct.unpack(">q", struct.pack(">d", value))[0]
    if isinstance(value, Decimal):
        value = int(value.scaleb(9))
    return value is not None, 0 if value is None else value
