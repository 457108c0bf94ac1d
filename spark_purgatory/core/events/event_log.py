"""Completion events by key and time, kept as long as an operation may need them.

A *segment* is immutable: events sorted by key hash, key and time, with a *group* ``start[g] .. start[g + 1]`` for each
key. A batch becomes a segment, and segments are merged geometrically like runs. The relevant events of an operation on
one key are a *span*, a range of a group that is found by bisection on time. Nothing is kept per operation and event: a
hot key stores its events once for a million operations. Two keys with the same hash get a group each, and a lookup
compares the keys of all groups of a hash.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_purgatory.core.arrays import numbers
from spark_purgatory.core.arrays.numbers import Numbers
from spark_purgatory.core.arrays.sorted_runs import (
    EMPTY,
    MERGE_RATIO,
    PREFIX_MASK,
    Bools,
    Int64s,
    expand,
    hash_order,
    is_first,
)
from spark_purgatory.core.arrays.times import saturating_add
from spark_purgatory.core.arrays.value_column import ValueColumn, equal_values, value_ranks

FORGET_FLOOR = 1024  # events below which a pass to forget single ones does not pay


def bisect_within(values: npt.NDArray[np.generic], low: Int64s, high: Int64s, targets: object, after: bool) -> Int64s:
    """Return the first place in ``low[i] .. high[i]`` with a value >= ``targets[i]`` (> if ``after``), else its end."""
    low, high = low.copy(), high.copy()
    longest = int((high - low).max()) if len(low) else 0
    for _ in range(longest.bit_length()):
        middle = (low + high) >> 1
        probe = values[np.minimum(middle, len(values) - 1)]
        below = (probe <= targets) if after else (probe < targets)
        below &= low < high
        low = np.where(below, middle + 1, low)
        high = np.where(below, high, np.maximum(middle, low))
    return low


@dataclass(frozen=True)
class EventSegment:
    """Events sorted by (key hash, key, time); G groups, E events."""

    group_hash: Int64s  # (G,) ascending
    group_keys: pa.Array  # (G,)
    start: Int64s  # (G + 1,)
    time_us: Int64s  # (E,) ascending within a group
    value: Numbers | None  # (E,) microseconds for extensions
    event_ids: pa.Array | None = None  # (E,) null: the event has no id
    columns: pa.StructArray | None = None  # (E,) the columns that outcomes carry

    def __len__(self) -> int:
        return len(self.time_us)

    @property
    def group(self) -> Int64s:
        return np.repeat(np.arange(len(self.group_hash)), np.diff(self.start))

    @property
    def hashes(self) -> Int64s:
        return np.repeat(self.group_hash, np.diff(self.start))

    @property
    def keys(self) -> pa.Array:
        return self.group_keys.take(pa.array(self.group))

    @cached_property
    def running_max(self) -> Numbers:
        """The largest value of the event's key up to and including the event, (E,)."""
        assert self.value is not None, "bug: a rule reads values, and the events have none"
        running, lowest = self.value.copy(), numbers.lowest(self.value)
        if numbers.is_double(running):
            running[np.isnan(running)] = lowest
        group = self.group
        longest, step = int(np.diff(self.start).max()) if len(self) else 0, 1
        while step < longest:
            earlier = np.where(group[step:] == group[:-step], running[:-step], lowest)
            running[step:] = numbers.larger(running[step:], earlier)
            step *= 2
        return running

    @cached_property
    def summable(self) -> EventSegment:
        """The events that a sum can take, without negative values, which also stand for NaN."""
        fine = np.ones(len(self), bool) if self.value is None else ~numbers.is_negative(self.value)
        return self if fine.all() else self.where(fine)

    @cached_property
    def repeated(self) -> tuple[Int64s, Int64s]:
        """Ascending positions of the events whose id occurs again, and a number for each id."""
        return (EMPTY, EMPTY) if self.event_ids is None else repeated_ids(self.event_ids)

    @staticmethod
    def build(
        keys: pa.Array,
        hashes: Int64s,
        time_us: Int64s,
        value: Numbers | None = None,
        event_ids: pa.Array | None = None,
        columns: pa.StructArray | None = None,
    ) -> EventSegment:
        """Sort events given in any order, all (E,), and keep the upper 36 bits of their hashes."""
        if event_ids is not None and value is not None:
            # If an event is delivered with several values at one time, the smallest counts in any order of arrival.
            first = np.argsort(numbers.or_zero(value), kind="stable")
            keys, event_ids = keys.take(pa.array(first)), event_ids.take(pa.array(first))
            hashes, time_us, value = hashes[first], time_us[first], value[first]
            columns = None if columns is None else columns.take(pa.array(first))
        hashes = hashes & PREFIX_MASK
        order = hash_order(hashes)
        sorted_hash, sorted_time = hashes[order], time_us[order]
        same = sorted_hash[1:] == sorted_hash[:-1]
        if bool((same & (sorted_time[1:] < sorted_time[:-1])).any()):
            order = np.lexsort((time_us, hashes))
            sorted_hash, sorted_time = hashes[order], time_us[order]
            same = sorted_hash[1:] == sorted_hash[:-1]
        repeated = np.flatnonzero(same)
        if len(repeated) and not bool(equal_values(keys, order[repeated], keys, order[repeated + 1]).all()):
            codes = keys.dictionary_encode().indices.to_numpy()
            order = np.lexsort((time_us, codes, hashes))
            sorted_hash, sorted_time, sorted_code = hashes[order], time_us[order], codes[order]
            same = (sorted_hash[1:] == sorted_hash[:-1]) & (sorted_code[1:] == sorted_code[:-1])
        first = np.flatnonzero(np.concatenate(([True], ~same))) if len(order) else EMPTY
        return EventSegment(
            group_hash=sorted_hash[first],
            group_keys=keys.take(pa.array(order[first])),
            start=np.append(first, len(order)),
            time_us=sorted_time,
            value=None if value is None else value[order],
            event_ids=None if event_ids is None else event_ids.take(pa.array(order)),
            columns=None if columns is None else columns.take(pa.array(order)),
        )

    def level_base(self, floor_us: int | Int64s) -> Bools:
        """Flag each key's first event with the largest value up to ``floor_us``, by id and columns if alike; (E,)."""
        group = self.group
        fresh = np.concatenate(([True], group[1:] != group[:-1]))
        rises = fresh | np.concatenate(([True], self.running_max[1:] > self.running_max[:-1]))
        old = np.flatnonzero(rises & (self.time_us <= floor_us))
        base = np.zeros(len(self), bool)
        if len(old):
            base[old[np.concatenate((group[old][1:] != group[old][:-1], [True]))]] = True
        if (self.event_ids is None and self.columns is None) or not len(old):
            return base
        of_group = np.full(len(self.group_hash), -1)
        of_group[group[base]] = np.flatnonzero(base)
        like, value = of_group[group], self.value
        assert value is not None, "bug: a rule reads values, and the events have none"
        alike = (like >= 0) & (self.time_us == self.time_us[like]) & (value == value[like]) | base
        tied = np.flatnonzero(alike)
        if len(tied) > np.count_nonzero(base):
            ranks = [
                value_ranks(each.take(pa.array(tied))) for each in (self.columns, self.event_ids) if each is not None
            ]
            order = tied[np.lexsort((*ranks, group[tied]))]
            base[:] = False
            base[order[is_first(group[order])]] = True
        return base

    def after(self, floor_us: int) -> EventSegment:
        """Drop the events up to ``floor_us`` if they are at least half of the segment."""
        kept = self.time_us > floor_us
        return self.where(kept) if 2 * int(np.count_nonzero(kept)) <= len(self) else self

    def where(self, kept: Bools) -> EventSegment:
        counts = np.add.reduceat(kept, self.start[:-1], dtype=np.int64) if len(self) else EMPTY
        groups = np.flatnonzero(counts)
        return EventSegment(
            group_hash=self.group_hash[groups],
            group_keys=self.group_keys.take(pa.array(groups)),
            start=np.concatenate(([0], np.cumsum(counts[groups]))).astype(np.int64),
            time_us=self.time_us[kept],
            value=None if self.value is None else self.value[kept],
            event_ids=None if self.event_ids is None else self.event_ids.filter(pa.array(kept)),
            columns=None if self.columns is None else self.columns.filter(pa.array(kept)),
        )


@dataclass(frozen=True)
class Spans:
    """Ranges of one segment's events; all arrays (s,)."""

    segment: EventSegment
    owner: Int64s  # the span's watch entry, by position in the request
    group_start: Int64s
    low: Int64s
    high: Int64s

    def where(self, chosen: Bools) -> Spans:
        at = np.flatnonzero(chosen)
        return Spans(self.segment, self.owner[at], self.group_start[at], self.low[at], self.high[at])

    def until(self, times_us: Int64s) -> Int64s:
        """Return the end of each span if it is cut after ``times_us[i]``, (s,) int64."""
        return bisect_within(self.segment.time_us, self.low, self.high, times_us, after=True)


class EventLog:
    """Events in segments, the oldest and longest first."""

    def __init__(self, segments: list[EventSegment] | None = None, kept: int = 0) -> None:
        self.segments = segments or []
        self.kept = kept  # events left by the last full pass of `forget`

    def __len__(self) -> int:
        return sum(map(len, self.segments))

    def summable(self) -> EventLog:
        return EventLog([segment.summable for segment in self.segments])

    def append(self, segment: EventSegment) -> None:
        if not len(segment):
            return
        self.segments.append(segment)
        while len(self.segments) > 1 and len(self.segments[-2]) <= MERGE_RATIO * len(self.segments[-1]):
            self.segments[-2:] = [_merge(*self.segments[-2:])]

    def forget(
        self, floor_us: int, needed_from: Callable[[EventSegment], Int64s] | None = None, levels: bool = False
    ) -> None:
        """Forget events with ``time <= floor_us``, except those from ``needed_from(segment)``, (G,), of their group.

        With ``levels`` the first event with a key's largest value up to the floor stays, and up to the needed time.
        Segments are rewritten only if it pays, so forgotten events may be here, and readers bring their ``from_us``.
        """
        if needed_from is None and not levels:
            self.segments = [kept for s in self.segments if len(kept := s.after(floor_us))]
            return
        if len(self) <= 2 * self.kept + FORGET_FLOOR:
            return
        left = []
        for segment in self.merged():
            needed = segment.time_us > floor_us
            if levels:
                needed |= segment.level_base(floor_us)
            if needed_from is not None:
                from_us = np.repeat(needed_from(segment), np.diff(segment.start))
                needed |= segment.time_us >= from_us
                if levels:
                    needed |= segment.level_base(np.minimum(saturating_add(from_us, -1), floor_us))
            left.append(segment.where(needed))
        self.segments = [segment for segment in left if len(segment)]
        self.kept = len(self)

    def merged(self) -> list[EventSegment]:
        while len(self.segments) > 1:
            self.segments[-2:] = [_merge(*self.segments[-2:])]
        return self.segments

    def spans(self, keys: ValueColumn, entries: Int64s, hashes: Int64s, from_us: Int64s, to_us: Int64s) -> list[Spans]:
        """Return the events of each entry's key with ``from_us <= time <= to_us``; owners are places in ``entries``."""
        order = hash_order(hashes)
        ascending = hashes[order] & PREFIX_MASK  # Segments keep 36 bits of a hash; the keys are compared below
        found = []
        for segment in self.segments:
            group, owner = _groups_of(segment, ascending, order)
            same = keys.equal(entries[owner], segment.group_keys, group)
            group, owner = group[same], owner[same]
            start, end = segment.start[group], segment.start[group + 1]
            low = bisect_within(segment.time_us, start, end, from_us[owner], after=False)
            high = bisect_within(segment.time_us, low, end, to_us[owner], after=True)
            kept = np.flatnonzero(low < high)
            if len(kept):
                found.append(Spans(segment, owner[kept], start[kept], low[kept], high[kept]))
        return found


def repeated_ids(event_ids: pa.Array) -> tuple[Int64s, Int64s]:
    """Return ascending positions of the events whose id occurs again, and a number for each id; null is no id."""
    codes = event_ids.dictionary_encode().indices.fill_null(-1).to_numpy().astype(np.int64)
    at = np.flatnonzero(np.bincount(codes + 1)[codes + 1] * (codes >= 0) > 1)
    return at, codes[at]


def _groups_of(segment: EventSegment, ascending: Int64s, order: Int64s) -> tuple[Int64s, Int64s]:
    """Return group and owner of every pair of equal hashes."""
    group = segment.group_hash.searchsorted(ascending)
    inside = np.flatnonzero(group < len(segment.group_hash))
    hit = inside[segment.group_hash[group[inside]] == ascending[inside]]
    group, owner = group[hit], order[hit]
    following = np.minimum(group + 1, len(segment.group_hash) - 1)
    if bool(((segment.group_hash[following] == ascending[hit]) & (following > group)).any()):
        counts = segment.group_hash.searchsorted(ascending[hit], side="right") - group
        group, which = expand(group, counts)
        owner = owner[which]
    return group, owner


def _merge(older: EventSegment, newer: EventSegment) -> EventSegment:
    both = (older, newer)
    values = None if older.value is None or newer.value is None else numbers.joined([older.value, newer.value])
    named = older.event_ids is not None and newer.event_ids is not None
    carried = [s.columns for s in both if s.columns is not None]
    return EventSegment.build(
        keys=pa.concat_arrays([s.keys for s in both]),
        hashes=np.concatenate([s.hashes for s in both]),
        time_us=np.concatenate([s.time_us for s in both]),
        value=values,
        event_ids=pa.concat_arrays([s.event_ids for s in both]) if named else None,
        columns=pa.concat_arrays(carried) if len(carried) == len(both) else None,
    )
