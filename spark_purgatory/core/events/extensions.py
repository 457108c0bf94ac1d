"""The deadlines that follow from ``extend`` events.

An extension moves the deadline to the event's time + value seconds if that is later, and if the event's time is not
past the deadline at that time. One extension may make the next one count. The *reach* of an extension is the last
deadline of the chain that it starts. Worked example, deadline 10::

    extensions      8 + 4 s   11 + 9 s   25 + 9 s
    reach           20        20         34
    deadline 10     -> 20: the first counts, and reaches 20 by the second; the third comes too late

Reaches are computed once for each key. If extensions on one key make those on another count, the keys are read in
rounds. After `ROUNDS` rounds, the extensions of the operation's keys are put together in the order of their times, and
their reaches are computed over all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays.sorted_runs import EMPTY, Bools, Int64s, expand, first_of_each, parts_of
from spark_purgatory.core.arrays.times import saturating_add
from spark_purgatory.core.events.event_log import EventSegment, Spans, bisect_within

ROUNDS = 8  # a round reads the spans of all operations; chains over several keys are seldom longer
MOST_TOGETHER = 1 << 19  # extensions that are put together at a time: their tables take 20 * 8 bytes each


def extended(extensions: list[Spans], deadline_us: Int64s) -> Int64s:
    """Return the deadlines, (n,), after all extensions; the spans are owned by operations."""
    reaches = [_reach(span.segment) for span in extensions]
    for _ in range(ROUNDS):
        given_us, deadline_us = deadline_us, _furthest(extensions, reaches, deadline_us, deadline_us)
        moved = deadline_us > given_us
        if not moved.any():
            return deadline_us
    for span in _Together.of(extensions, moved).spans():
        deadline_us = _furthest([span], [_reach(span.segment)], deadline_us, deadline_us)
    return deadline_us


def extended_at(extensions: list[Spans], given_us: Int64s, until_us: Int64s) -> Int64s:
    """Return the deadlines, (n,), after all extensions up to a time for each operation."""
    tables = [_tables(_moved_to(span.segment)) for span in extensions]
    return _furthest(extensions, tables, given_us, until_us)


def _furthest(extensions: list[Spans], tables: list[Int64s], deadline_us: Int64s, until_us: Int64s) -> Int64s:
    """Return each deadline, or the latest time that its extensions up to ``until_us`` reach by tables, (n,)."""
    latest_us = deadline_us.copy()
    for span, table in zip(extensions, tables, strict=True):
        high = span.until(until_us[span.owner])
        some = np.flatnonzero(high > span.low)
        np.maximum.at(latest_us, span.owner[some], _largest(table, span.low[some], high[some]))
    return latest_us


@dataclass(frozen=True)
class _Together:
    """k operations with s spans, whose extensions in several groups are put together."""

    owner: Int64s  # (k,) ascending
    from_us: Int64s  # (k,) the first extension that counts
    chosen: Int64s  # (s,) the groups of each, operation after operation
    first: Int64s  # (k + 1,) the start of each operation's groups in `chosen`
    group_start: Int64s  # (g,) the start of each group's events
    group_size: Int64s  # (g,)
    time_us: Int64s  # (e,)
    granted_us: Int64s  # (e,)

    @staticmethod
    def of(extensions: list[Spans], moved: Bools) -> _Together:
        """Put together the extensions of operations that moved, (n,) bool."""
        first_group = np.cumsum([0, *(len(span.segment.group_hash) for span in extensions)])
        chosen = []
        for whole, group in zip(extensions, first_group, strict=False):
            span = whole.where(moved[whole.owner])
            place = span.segment.start.searchsorted(span.group_start) + group
            chosen.append((place, span.owner, span.segment.time_us[span.low]))
        group, owner, from_us = map(np.concatenate, zip(*chosen, strict=True))
        order = np.lexsort((group, owner))
        first = first_of_each(owner[order])
        size = np.concatenate([np.diff(span.segment.start) for span in extensions])
        return _Together(
            owner=owner[order][first],
            from_us=np.minimum.reduceat(from_us[order], first),
            chosen=group[order],
            first=np.append(first, len(order)),
            group_start=np.cumsum(size) - size,
            group_size=size,
            time_us=np.concatenate([span.segment.time_us for span in extensions]),
            granted_us=np.concatenate([_granted(span.segment) for span in extensions]),
        )

    def spans(self) -> Iterator[Spans]:
        """Yield one span for each operation. Operations with the same groups share their events."""
        which, examples = self._same_groups()
        start, end = self.first[examples], self.first[examples + 1]
        costs = np.add.reduceat(self.group_size[self.chosen], self.first[:-1])[examples]
        for part in parts_of(costs, MOST_TOGETHER):
            places, of = expand(start[part], (end - start)[part])
            group = self.chosen[places]
            events, place = expand(self.group_start[group], self.group_size[group])
            segment = self._segment(events, of[place], part.stop - part.start)
            mine = np.flatnonzero((which >= part.start) & (which < part.stop))
            begin, finish = (segment.start[which[mine] - part.start + i] for i in (0, 1))
            low = bisect_within(segment.time_us, begin, finish, self.from_us[mine], after=False)
            yield Spans(segment, self.owner[mine], begin, low, finish)

    def _segment(self, events: Int64s, group: Int64s, n: int) -> EventSegment:
        """Build a segment of events in n groups, each by time."""
        order = np.lexsort((self.time_us[events], group))
        events, start = events[order], group[order].searchsorted(np.arange(n + 1))
        return EventSegment(np.arange(n), pa.nulls(n), start, self.time_us[events], self.granted_us[events])

    def _same_groups(self) -> tuple[Int64s, Int64s]:
        """Number each operation's set of groups, (k,); also return an operation for each set."""
        codes, counts = np.zeros(len(self.owner), np.int64), np.diff(self.first)
        for place in range(int(counts.max(initial=0))):
            more = np.flatnonzero(counts > place)
            pairs = codes[more] * len(self.group_size) + self.chosen[self.first[more] + place]
            codes[more] = np.unique(pairs, return_inverse=True)[1] + codes.max() + 1
        _, examples, which = np.unique(codes, return_index=True, return_inverse=True)
        return which, examples


def _reach(segment: EventSegment) -> Int64s:
    """Return `_tables` of the times that extensions reach by themselves and through those that they make count."""
    reach = _moved_to(segment)
    at, group_end = np.arange(len(segment)), np.repeat(segment.start[1:], np.diff(segment.start))
    while True:
        largest = _tables(reach)  # Each round follows chains twice as far
        further = _largest(largest, at, bisect_within(segment.time_us, at, group_end, reach, after=True))
        if np.array_equal(further, reach):
            return largest
        reach = further


def _moved_to(segment: EventSegment) -> Int64s:
    """Return the deadline that each extension gives by itself, (E,) int64."""
    return saturating_add(segment.time_us, _granted(segment))


def _granted(segment: EventSegment) -> Int64s:
    return np.zeros(len(segment), np.int64) if segment.value is None else segment.value


def _tables(values: Int64s) -> Int64s:
    """Return (levels, E): at level k, the largest of the 2**k values that begin at each place."""
    tables, step = [values], 1
    while 2 * step <= len(values):
        wider = tables[-1].copy()
        np.maximum(wider[:-step], tables[-1][step:], out=wider[:-step])
        tables.append(wider)
        step *= 2
    return np.stack(tables)


def _largest(tables: Int64s, low: Int64s, high: Int64s) -> Int64s:
    """Return the largest value of each range ``low[i] .. high[i] - 1``, none of them empty."""
    if not len(low):
        return EMPTY
    level = np.frexp((high - low).astype(np.float64))[1] - 1
    return np.maximum(tables[level, low], tables[level, high - (1 << level)])
