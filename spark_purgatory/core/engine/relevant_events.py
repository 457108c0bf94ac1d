"""The inputs of an evaluation: operations with their criteria, and their relevant events.

**Redeliveries.** An event may come again on the same key, on another of an operation's keys, or once by key and once by
operation id. An operation counts it once, at its first delivery. Worked example, an operation on keys a and b::

    a    x at 12   y at 13   x at 15       x at 15 is a redelivery on the same key
    b    x at 14   z at 16                 x at 14 is a redelivery on another key: 3 events count, x at 12

Only events whose id occurs again are laid out, one by one for each operation. A stream in which each id comes once
costs one pass over its ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays.numbers import LIMBS, Floats, Numbers, addends, joined, limbs_of
from spark_purgatory.core.arrays.sorted_runs import Bools, Int64s, expand, parts_of
from spark_purgatory.core.events.control_log import ControlEffects
from spark_purgatory.core.events.event_log import EventSegment, Spans, bisect_within, repeated_ids
from spark_purgatory.core.spec.codes import Rule, among
from spark_purgatory.core.spec.criteria import ADDING

MAX_DELIVERIES = 1 << 22  # laid out together, 700 MB of columns; operations with more are resolved in parts


@dataclass(frozen=True)
class Redeliveries:
    """Redeliveries to n operations, sorted by operation and time."""

    start: Int64s  # (n + 1,)
    time_us: Int64s  # (e,)
    sums: Int64s  # (1 + LIMBS, e + 1) the number of those before each, and the limbs of their sum

    def total(self, operations: Int64s, until_us: Int64s) -> Int64s:
        """Return the number of each operation's redeliveries up to ``until_us[i]``, and their sum: (1 + LIMBS, n)."""
        start, end = self.start[operations], self.start[operations + 1]
        return self.sums[:, bisect_within(self.time_us, start, end, until_us, after=True)] - self.sums[:, start]


@dataclass(frozen=True)
class RepeatedDeliveries:
    """Deliveries to n operations of events whose id occurs again, to be compared for redeliveries."""

    n: int
    spans: list[tuple[Int64s, Spans]]  # spans of events with ids, and the operation of each span
    # By ``id`` of a segment: ascending positions of events whose id occurs again, and a number for each id.
    repeated: dict[int, tuple[Int64s, Int64s]]

    @staticmethod
    def of(n: int, spans: list[tuple[Int64s, Spans]]) -> RepeatedDeliveries | None:
        """Find the deliveries to n operations in their spans; None if there are none."""
        named = [(operation, span) for operation, span in spans if span.segment.event_ids is not None]
        segments = {id(span.segment): span.segment for _, span in named}
        repeated = dict(zip(segments, _repeated(list(segments.values())), strict=True))
        return RepeatedDeliveries(n, named, repeated) if any(len(at) for at, _ in repeated.values()) else None

    def counts(self) -> Int64s:
        """Return the number of deliveries to each operation, (n,)."""
        counts = np.zeros(self.n, np.int64)
        for operation, span in self.spans:
            at, _ = self.repeated[id(span.segment)]
            np.add.at(counts, operation, at.searchsorted(span.high) - at.searchsorted(span.low))
        return counts

    def redeliveries(self) -> Redeliveries:
        """Compare the deliveries. Each operation counts the first one of an event; the others are redeliveries."""
        found = [_laid_out(operation, span, *self.repeated[id(span.segment)]) for operation, span in self.spans]
        *columns, values = zip(*found, strict=True)
        operation, code, time_us = map(np.concatenate, columns)
        value = joined(list(values))
        order = np.lexsort((value, time_us, code, operation))
        again = (operation[order][1:] == operation[order][:-1]) & (code[order][1:] == code[order][:-1])
        later = order[1:][again]
        later = later[np.lexsort((time_us[later], operation[later]))]
        sums = np.zeros((1 + LIMBS, len(later) + 1), np.int64)
        sums[0] = np.arange(len(later) + 1)
        if any(span.segment.value is not None for _, span in self.spans):
            np.cumsum(limbs_of(value[later]), axis=1, out=sums[1:, 1:])
        start = operation[later].searchsorted(np.arange(self.n + 1))
        return Redeliveries(start, time_us[later], sums)


def _repeated(segments: list[EventSegment]) -> list[tuple[Int64s, Int64s]]:
    """Return positions and id codes of the events of each segment whose id occurs again in any of them."""
    if len(segments) < 2:
        return [segment.repeated for segment in segments]
    at, codes = repeated_ids(pa.concat_arrays([segment.event_ids for segment in segments]))
    ends = np.cumsum([len(segment) for segment in segments])
    cuts = at.searchsorted(ends[:-1])
    starts = ends - np.diff(ends, prepend=0)
    parts = zip(np.split(at, cuts), np.split(codes, cuts), starts, strict=True)
    return [(part - start, code) for part, code, start in parts]


def _laid_out(operation: Int64s, span: Spans, at: Int64s, codes: Int64s) -> tuple[Int64s, Int64s, Int64s, Numbers]:
    """Return operation, code, time and value of the deliveries in spans of the events ``at`` positions."""
    first = at.searchsorted(span.low)
    which, owner = expand(first, at.searchsorted(span.high) - first)
    value = span.segment.value
    values: Numbers = np.zeros(len(which)) if value is None else addends(value[at[which]])
    return operation[owner], codes[which], span.segment.time_us[at[which]], values


@dataclass(frozen=True)
class EvaluationInput:
    """n operations to evaluate, with m entries. The entries of one operation are adjacent and in order."""

    rule: Int64s  # (n,) codes of Rule
    need: Floats  # (n,)
    sum_need: Numbers  # (n,) the sum that values must reach
    created_us: Int64s  # (n,)
    from_us: Int64s  # (n,) earliest time that counts
    deadline_us: Int64s  # (n,)
    first_entry: Int64s  # (n,)
    owner: Int64s  # (m,) operation of each entry, ascending
    level_need: Numbers  # (m,) level that each entry's key must reach
    effects: ControlEffects | None = None  # None: no control event applies to any of them

    def has(self, rules: tuple[Rule, ...]) -> Bools:
        return among(self.rule, rules)

    @property
    def need_nothing(self) -> Bools:
        """Flags of operations that are complete at their created time, (n,) bool: they need a sum of 0."""
        return self.has(ADDING) & (self.need <= 0)


@dataclass(frozen=True)
class RelevantEvents:
    spans: list[Spans]
    repeated: list[RepeatedDeliveries]  # deliveries of events whose id occurs again

    @staticmethod
    def of(inputs: EvaluationInput, spans: list[Spans]) -> RelevantEvents:
        """Take the events of spans. Sums and the other rules may read the same events from different segments."""
        by_sum: dict[bool, list[tuple[Int64s, Spans]]] = {}
        for span in spans:
            if len(span.owner):
                operations = inputs.owner[span.owner]
                by_sum.setdefault(inputs.rule[operations[0]] in ADDING, []).append((operations, span))
        found = (RepeatedDeliveries.of(len(inputs.rule), each) for each in by_sum.values())
        return RelevantEvents(spans, [deliveries for deliveries in found if deliveries is not None])

    def parts(self, n: int) -> Iterator[slice]:
        """Yield parts of n operations, each with at most `MAX_DELIVERIES` of events whose id occurs again."""
        costs = np.zeros(n, np.int64)
        for deliveries in self.repeated:
            costs += deliveries.counts()
        return parts_of(costs, MAX_DELIVERIES)

    @cached_property
    def redeliveries(self) -> list[Redeliveries]:
        """The deliveries of events that are already counted."""
        return [deliveries.redeliveries() for deliveries in self.repeated]
