"""Events delivered again on another of an operation's keys, or once by key and once by operation id.

An event is identified by its event id. An operation counts it once, at its first delivery, on whichever of its keys.
`redelivery` handles deliveries on the same key, for any number of operations at once. This module handles the first
deliveries on each further key. Worked example, an operation on keys a and b::

    a    x at 12   y at 13   x at 15       x at 15 is a redelivery on the same key
    b    x at 14   z at 16                 x at 14 is a redelivery on another key: 3 events count, x at 12

They are laid out one by one for each operation. An event can be one only if its id is on two keys, so a stream whose
ids belong to one key each has none, and costs one pass over its ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays.exact_sums import LIMBS, limbs_of
from spark_purgatory.core.arrays.numbers import Numbers, addends, joined
from spark_purgatory.core.arrays.sorted_runs import Int64s, expand
from spark_purgatory.core.events.event_log import EventSegment, Spans, bisect_within
from spark_purgatory.core.events.redelivery import shared_ids
from spark_purgatory.errors import LimitError

MAX_DELIVERIES = 1 << 25
"""Deliveries of ids that are on several keys, over all operations of one call: 2 GB of columns."""


@dataclass(frozen=True)
class CrossKeyRedeliveries:
    """Redeliveries on other keys, of n operations, sorted by operation and time."""

    start: Int64s  # (n + 1,)
    time_us: Int64s  # (e,)
    sums: Int64s  # (1 + LIMBS, e + 1) how many, and the limbs of what they add up to, before each

    def total(self, operations: Int64s, until_us: Int64s) -> Int64s:
        """Number and sum of each operation's redeliveries up to ``until_us[i]``: (1 + LIMBS, n), the number first."""
        start, end = self.start[operations], self.start[operations + 1]
        return self.sums[:, bisect_within(self.time_us, start, end, until_us, after=True)] - self.sums[:, start]

    @staticmethod
    def of(n: int, heard: list[tuple[Int64s, Spans]]) -> CrossKeyRedeliveries | None:
        """Those of n operations, from their spans; None where there is none."""
        named = [(operation, spans) for operation, spans in heard if spans.segment.event_ids is not None]
        if not named:
            return None
        several = np.bincount(np.concatenate([operation for operation, _ in named]), minlength=n) > 1
        if not several.any():
            return None
        segments = {id(spans.segment): spans.segment for _, spans in named}
        shared = dict(zip(segments, _shared(list(segments.values())), strict=True))
        if not any(len(at) for at, _ in shared.values()):
            return None
        found, left = [], MAX_DELIVERIES
        valued = all(spans.segment.value is not None for _, spans in named)
        for operation, spans in named:
            at, codes = shared[id(spans.segment)]
            found.append(_firsts(operation, spans, np.flatnonzero(several[operation]), at, codes, left, valued))
            left -= len(found[-1][0])
        *columns, values = zip(*found, strict=True)
        operation, code, time_us = map(np.concatenate, columns)
        value = joined(list(values))
        order = np.lexsort((value, time_us, code, operation))
        again = (operation[order][1:] == operation[order][:-1]) & (code[order][1:] == code[order][:-1])
        echo = order[1:][again]
        echo = echo[np.lexsort((time_us[echo], operation[echo]))]
        weights = np.concatenate((np.ones((1, len(echo)), np.int64), limbs_of(value[echo])))
        sums = np.zeros((1 + LIMBS, len(echo) + 1), np.int64)
        np.cumsum(weights, axis=1, out=sums[:, 1:])
        return CrossKeyRedeliveries(operation[echo].searchsorted(np.arange(n + 1)), time_us[echo], sums)


def _shared(segments: list[EventSegment]) -> list[tuple[Int64s, Int64s]]:
    """For each segment, the events whose id is in two groups of all segments: positions, ascending, and id codes."""
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
    operation: Int64s, spans: Spans, chosen: Int64s, at: Int64s, codes: Int64s, at_most: int, valued: bool
) -> tuple[Int64s, Int64s, Int64s, Numbers]:
    """(operation, code, time, value) of each first delivery, in each chosen span, of events at positions ``at``."""
    first = at.searchsorted(spans.low[chosen])
    counts = at.searchsorted(spans.high[chosen]) - first
    if (deliveries := int(counts.sum())) > at_most:
        raise LimitError(
            f"{deliveries:,} deliveries or more, of events that come on several keys under one event_id, would have to "
            f"be compared for {len(operation):,} keys of operations, at most {MAX_DELIVERIES:,}: use more shards (a "
            "new checkpoint), or give an event an id of its own on each key; nothing was lost"
        )
    which, row = expand(first, counts)
    row, segment = chosen[row], spans.segment
    kept = segment.previous[at[which]] < spans.low[row]
    which, row = which[kept], row[kept]
    value: Numbers = np.zeros(len(which))
    if valued and segment.value is not None:
        value = addends(segment.value[at[which]])
    return operation[row], codes[which], segment.time_us[at[which]], value
