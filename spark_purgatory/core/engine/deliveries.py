"""Single deliveries of events to operations: laid out from the logs' spans and put in order, each event once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays import numbers
from spark_purgatory.core.arrays.numbers import Numbers, addends
from spark_purgatory.core.arrays.sorted_runs import EMPTY, Bools, Int64s, expand
from spark_purgatory.core.arrays.value_ranks import number_ranks, value_ranks
from spark_purgatory.core.events.event_log import EventSegment, Spans

COLUMNS = ("segment", "at", "entry", "operation", "keyless")


@dataclass(frozen=True)
class Deliveries:
    """Single deliveries of events to operations; arrays (d,)."""

    segments: list[EventSegment]
    segment: Int64s  # position in `segments`
    at: Int64s  # the event's position in its segment
    entry: Int64s  # the watch entry
    operation: Int64s  # the entry's operation, by position in the request
    keyless: Bools  # the event has no key

    def __len__(self) -> int:
        return len(self.at)

    @staticmethod
    def of(spans: list[Spans], owner: Int64s, keyless: bool = False) -> Deliveries:
        """Lay out the events of spans; ``owner`` is the operation of each watch entry."""
        segments = list({id(span.segment): span.segment for span in spans}.values())
        places = {id(segment): i for i, segment in enumerate(segments)}
        parts = []
        for span in spans:
            at, which = expand(span.low, span.high - span.low)
            parts.append((np.full(len(at), places[id(span.segment)]), at, span.owner[which]))
        segment, at, entry = (np.concatenate([EMPTY, *(part[i] for part in parts)]) for i in range(3))
        return Deliveries(segments, segment, at, entry, owner[entry], keyless=np.full(len(at), keyless))

    @staticmethod
    def joined(parts: Sequence[Deliveries]) -> Deliveries:
        """Concatenate deliveries."""
        if len(parts) == 1:
            return parts[0]
        segments = list({id(s): s for part in parts for s in part.segments}.values())
        places = {id(segment): i for i, segment in enumerate(segments)}
        moved = [np.array([places[id(s)] for s in part.segments], np.int64)[part.segment] for part in parts]
        parts = [replace(part, segment=segment) for part, segment in zip(parts, moved, strict=True)]
        return Deliveries(segments, *(np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS))

    def take(self, chosen: Int64s) -> Deliveries:
        """Return the deliveries at positions, (k,)."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in COLUMNS})

    @property
    def time_us(self) -> Int64s:
        """The events' times."""
        parts, order = self._by_segment()
        return np.concatenate([EMPTY, *(segment.time_us[at] for segment, at in parts)])[order]

    def values(self) -> Numbers:
        """Return the events' values; 0 in a query without values."""
        parts, order = self._by_segment()
        found = [np.zeros(len(at)) if s.value is None else s.value[at] for s, at in parts]
        return numbers.joined(found)[order] if found else np.zeros(0)

    def columns(self) -> pa.StructArray | None:
        """Return the events' columns that outcomes carry."""
        return self._gathered([segment.columns for segment in self.segments])

    def event_ids(self) -> pa.Array | None:
        """Return the events' ids; None in a query without event ids."""
        return self._gathered([segment.event_ids for segment in self.segments])

    def _gathered(self, held: list[pa.Array | None]) -> pa.Array | None:
        """Return the segments' columns for every delivery; None if no segment has one."""
        if not any(each is not None for each in held):
            return None
        if len(held) == 1 and held[0] is not None:
            return held[0].take(pa.array(self.at))
        parts, order = self._by_segment()
        found = [each.take(pa.array(at)) for each, (_, at) in zip(held, parts, strict=True) if each is not None]
        return pa.concat_arrays(found).take(pa.array(order))

    def _by_segment(self) -> tuple[list[tuple[EventSegment, Int64s]], Int64s]:
        """Return each segment with the positions of its events, and each delivery's place in the segments' order."""
        chosen = [np.flatnonzero(self.segment == i) for i in range(len(self.segments))]
        parts = [(segment, self.at[mine]) for segment, mine in zip(self.segments, chosen, strict=True)]
        order = np.empty(len(self), np.int64)
        order[np.concatenate([EMPTY, *chosen])] = np.arange(len(self))
        return parts, order

    def order(self) -> Int64s:
        """Return positions by operation, time, watch key, event id and content; nulls come first."""
        time_us, key = self.time_us, np.where(self.keyless, -1, self.entry)
        order = np.lexsort((key, time_us, self.operation))
        columns = (self.operation[order], time_us[order], key[order])
        same = np.logical_and.reduce([column[1:] == column[:-1] for column in columns])
        if not same.any():
            return order
        tied = np.zeros(len(self), bool)
        tied[order[1:][same]] = tied[order[:-1][same]] = True
        ranks = np.zeros((2, len(self)), np.int64)
        ranks[:, tied] = self.take(np.flatnonzero(tied)).ranks()
        return np.lexsort((ranks[1], ranks[0], key, time_us, self.operation))

    def ranks(self) -> Int64s:
        """Return the ranks of ids and of contents, (2, d)."""
        ids, columns = self.event_ids(), self.columns()
        nothing = np.zeros(len(self), np.int64)
        return np.stack([nothing if each is None else value_ranks(each) for each in (ids, columns)])

    def by_value(self) -> Deliveries:
        """Sort deliveries by operation and then by value, the largest first; equal ones keep their order."""
        return self.take(np.lexsort((~self._sizes(), self.operation)))

    def only_largest(self, n: int) -> Deliveries:
        """Return the deliveries with the largest value of each of n operations."""
        sizes, largest = self._sizes(), np.full(n, np.iinfo(np.int64).min)
        np.maximum.at(largest, self.operation, sizes)
        return self.take(np.flatnonzero(sizes == largest[self.operation]))

    def _sizes(self) -> Int64s:
        """Rank the events by their values, which are their first columns."""
        values = self._gathered([None if each.columns is None else each.columns.field(0) for each in self.segments])
        return np.zeros(len(self), np.int64) if values is None else number_ranks(values)

    def first(self, most: int) -> Deliveries:
        """Return the first ``most`` of each operation; deliveries must be in the order of their operations."""
        first = np.searchsorted(self.operation, self.operation)
        return self.take(np.flatnonzero(np.arange(len(self)) - first < most))

    def each_once(self, sums: Bools) -> Deliveries:
        """Return the first delivery of each event in order; if its operation ``sums``, (n,) bool, the smallest value
        of those at one time.
        """
        ordered = self.take(self.order())
        ids = ordered.event_ids()
        if ids is None or not len(ordered):
            return ordered
        codes = ids.dictionary_encode().indices.fill_null(-1).to_numpy()
        values = addends(ordered.values())
        values[~sums[ordered.operation]] = values[:1]
        order = np.lexsort((values, ordered.time_us, codes, ordered.operation))
        code, operation = codes[order], ordered.operation[order]
        again = (code[1:] == code[:-1]) & (operation[1:] == operation[:-1]) & (code[1:] >= 0)
        once = np.ones(len(ordered), bool)
        once[order[1:][again]] = False
        return ordered.take(np.flatnonzero(once))
