"""Events delivered again on another of an operation's keys, or once by key and once by operation id.

The event id identifies an event. An operation counts it once, at its first delivery on any of its keys. `redelivery`
handles deliveries on the same key, and this module the first delivery on each other key. Worked example, an operation
on keys a and b::

    a    x at 12   y at 13   x at 15       x at 15 is a redelivery on the same key
    b    x at 14   z at 16                 x at 14 is a redelivery on another key: 3 events count, x at 12

First deliveries are laid out one by one for each operation; later ones on the same key are not. Only ids on two keys
matter, so a stream in which each id has one key costs one pass over its ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays.exact_sums import LIMBS, limbs_of
from spark_purgatory.core.arrays.numbers import Numbers, addends, joined
from spark_purgatory.core.arrays.sorted_runs import Bools, Int64s
from spark_purgatory.core.events.event_log import EventSegment, Spans, bisect_within
from spark_purgatory.core.events.redelivery import first_in_ranges, shared_ids

MAX_DELIVERIES = 1 << 25  # laid out together, 2 GB of columns; operations with more are resolved in parts


@dataclass(frozen=True)
class CrossKeyRedeliveries:
    """Redeliveries on other keys, of n operations, sorted by operation and time."""

    start: Int64s  # (n + 1,)
    time_us: Int64s  # (e,)
    sums: Int64s  # (1 + LIMBS, e + 1) the number of those before each, and the limbs of their sum

    def total(self, operations: Int64s, until_us: Int64s) -> Int64s:
        """Return the number of each operation's redeliveries up to ``until_us[i]``, and their sum: (1 + LIMBS, n)."""
        start, end = self.start[operations], self.start[operations + 1]
        return self.sums[:, bisect_within(self.time_us, start, end, until_us, after=True)] - self.sums[:, start]


@dataclass(frozen=True)
class CrossKeyDeliveries:
    """Deliveries to n operations of events whose id is on several keys, to be compared for redeliveries."""

    spans: list[tuple[Int64s, Spans]]  # spans of events with ids, and the operation of each span
    several: Bools  # (n,) the operation has more than one span
    # By ``id`` of a segment: ascending positions of events whose id is on several keys, and a number for each id.
    shared: dict[int, tuple[Int64s, Int64s]]

    @staticmethod
    def of(n: int, spans: list[tuple[Int64s, Spans]]) -> CrossKeyDeliveries | None:
        """Find the deliveries to n operations in their spans; None if there are none."""
        named = [(operation, span) for operation, span in spans if span.segment.event_ids is not None]
        if not named:
            return None
        several = np.bincount(np.concatenate([operation for operation, _ in named]), minlength=n) > 1
        if not several.any():
            return None
        segments = {id(span.segment): span.segment for _, span in named}
        shared = dict(zip(segments, _shared(list(segments.values())), strict=True))
        return CrossKeyDeliveries(named, several, shared) if any(len(at) for at, _ in shared.values()) else None

    def most(self) -> Int64s:
        """Return an upper bound of each operation's first deliveries, (n,) int64."""
        most = np.zeros(len(self.several), np.int64)
        for operation, span in self.spans:
            at, codes = self.shared[id(span.segment)]
            deliveries = at.searchsorted(span.high) - at.searchsorted(span.low)
            np.add.at(most, operation, np.minimum(deliveries, np.count_nonzero(np.bincount(codes))))
        return np.where(self.several, most, 0)

    def redeliveries(self) -> CrossKeyRedeliveries:
        """Compare the deliveries. Each operation counts the first one of an event; the others are redeliveries."""
        valued = all(span.segment.value is not None for _, span in self.spans)
        found = [
            _firsts(operation, span, np.flatnonzero(self.several[operation]), *self.shared[id(span.segment)], valued)
            for operation, span in self.spans
        ]
        *columns, values = zip(*found, strict=True)
        operation, code, time_us = map(np.concatenate, columns)
        value = joined(list(values))
        order = np.lexsort((value, time_us, code, operation))
        again = (operation[order][1:] == operation[order][:-1]) & (code[order][1:] == code[order][:-1])
        later = order[1:][again]
        later = later[np.lexsort((time_us[later], operation[later]))]
        weights = np.concatenate((np.ones((1, len(later)), np.int64), limbs_of(value[later])))
        sums = np.zeros((1 + LIMBS, len(later) + 1), np.int64)
        np.cumsum(weights, axis=1, out=sums[:, 1:])
        start = operation[later].searchsorted(np.arange(len(self.several) + 1))
        return CrossKeyRedeliveries(start, time_us[later], sums)


def _shared(segments: list[EventSegment]) -> list[tuple[Int64s, Int64s]]:
    """Return ascending positions and id codes of the events of each segment whose id is in two groups of all."""
    if len(segments) == 1:
        return [segments[0].shared]
    ids, groups, first_group = [], [], 0
    for segment in segments:
        assert segment.event_ids is not None, "bug: redeliveries of events without ids"
        ids.append(segment.event_ids)
        groups.append(segment.group + first_group)
        first_group += len(segment.group_hash)
    at, codes = shared_ids(np.concatenate(groups), pa.concat_arrays(ids))
    ends = np.cumsum([len(segment) for segment in segments])
    cuts = at.searchsorted(ends[:-1])
    starts = ends - np.diff(ends, prepend=0)
    parts = zip(np.split(at, cuts), np.split(codes, cuts), starts, strict=True)
    return [(part - start, code) for part, code, start in parts]


def _firsts(
    operation: Int64s, span: Spans, chosen: Int64s, at: Int64s, codes: Int64s, valued: bool
) -> tuple[Int64s, Int64s, Int64s, Numbers]:
    """Return operation, code, time and value of the first deliveries in chosen spans of the events ``at`` positions."""
    segment, low = span.segment, span.low[chosen]
    ends = at.searchsorted(span.high[chosen])
    row, which = first_in_ranges(segment.previous[at], at.searchsorted(low), ends, low)
    value: Numbers = np.zeros(len(which))
    if valued and segment.value is not None:
        value = addends(segment.value[at[which]])
    return operation[chosen[row]], codes[which], segment.time_us[at[which]], value
