"""Events that counted for no operation: kept until no operation can count them, then ORPHAN rows (semantics 4.7).

An event counts for an operation that was pending at its time. An operation that leaves takes away the events that
counted for it. When the watermark has passed an event's time and the lookback, no operation that comes on time can
count it. It is then compared with the operations that still wait, and becomes an orphan if none counts it.

With ``orphans="control"`` only control events are kept. With "all", all events are kept with *marks* (`EventMark`) for
the reason: an operation that leaves marks the events in its time range that it did not count, and `EndedRanges` keeps
the range for events to come.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow.compute as pc

from spark_purgatory.core.arrays import numbers
from spark_purgatory.core.arrays.sorted_runs import Bools, Int64s
from spark_purgatory.core.arrays.times import MAX_TIME_US, saturating_add
from spark_purgatory.core.arrays.value_column import as_bools
from spark_purgatory.core.engine.ended_ranges import EndedRanges
from spark_purgatory.core.engine.orphan_rows import rows_of, rows_of_rejected
from spark_purgatory.core.engine.outcomes import OutcomeBatch
from spark_purgatory.core.engine.resolver import Resolutions, Resolver
from spark_purgatory.core.events.control_log import ControlLog, LogKey, Targets, split_pairs
from spark_purgatory.core.events.event_log import EventLog, EventSegment, Spans
from spark_purgatory.core.spec.arrivals import EventArrivals
from spark_purgatory.core.spec.codes import EventKind, EventMark, among
from spark_purgatory.core.spec.criteria import ADDING
from spark_purgatory.core.spec.engine_spec import EngineSpec


@dataclass(frozen=True)
class EntryTimes:
    """The times at which m watch entries count events."""

    from_us: Int64s  # (m,)
    end_us: Int64s  # (m,) the last time at which the operation was pending
    until_us: Int64s  # (m,) its deadline
    past_us: Int64s  # (m,) until when it is remembered after its deadline
    fail_us: Int64s | None  # (m,) first failure of the key; None: no key has failed
    sums: Bools | None  # (m,) only events count that a sum can take; None: there are no others

    def counted_us(self, kind: int) -> Int64s:
        """Return the last time at which events of a kind count, (m,)."""
        if kind != EventKind.COMPLETE or self.fail_us is None:
            return self.end_us
        return np.minimum(self.end_us, self.fail_us)


class OrphanEvents:
    """Events that no operation has counted."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._has_marks = spec.orphans == "all"
        self.unmatched = ControlLog()  # events by kind; with "all" their values are their marks
        self.ended = EndedRanges()
        self.past = EndedRanges()  # from the deadlines of ended operations, as long as those had waited
        self._rejected: list[OutcomeBatch] = []
        self._counted = 0

    def __len__(self) -> int:
        return sum(map(len, self.unmatched.logs.values()))

    def earliest_us(self) -> int | None:
        """Return the time of the first event; None without events."""
        segments = [segment for log in self.unmatched.logs.values() for segment in log.segments]
        return min((int(segment.time_us.min()) for segment in segments), default=None)

    def take_counted(self) -> int:
        """Return the number of events that counted for an operation since the last call."""
        counted, self._counted = self._counted, 0
        return counted

    # --- events come -----------------------------------------------------------------------------------

    def add(self, key: LogKey, segment: EventSegment, watermark_us: int) -> None:
        """Keep events that arrived in the log of a key; a query without orphans keeps none."""
        completes = key.kind == EventKind.COMPLETE
        if self._spec.orphans == "none" or not len(segment) or (completes and not self._has_marks):
            return
        if self._has_marks:
            marks = np.where(segment.time_us <= watermark_us, EventMark.LATE, 0).astype(np.int64)
            if completes and segment.value is not None and self._spec.by_row:
                marks[numbers.is_negative(segment.value)] |= EventMark.NO_ADDEND
            for ranges, mark in ((self.ended, EventMark.ENDED), (self.past, EventMark.PAST)):
                marks[ranges.contain(segment, key.is_named)] |= mark
            # Ids are kept only to be shown: values are marks, so redeliveries do not matter.
            ids = None if self._spec.event_columns is None else segment.event_ids
            segment = replace(segment, value=marks, event_ids=ids)
        self.unmatched.logs.setdefault(key, EventLog()).append(segment)

    def reject(self, events: EventArrivals, watermark_us: int) -> None:
        """Make rejected events rows of the next `release`."""
        self._rejected.append(rows_of_rejected(events, watermark_us, self._spec))

    # --- operations leave ------------------------------------------------------------------------------

    def leave(self, resolver: Resolver, resolutions: Resolutions, chosen: Bools, watermark_us: int) -> None:
        """Let chosen operations leave, (n,) bool of those resolved, with the events that counted for them."""
        if not self._has_marks and not self.unmatched:
            return
        rows = resolutions.rows[chosen]
        entries, owner = resolver.watchers.entries_of(rows)
        targets = resolver.targets(rows, entries, owner)
        until_us, created_us = resolutions.deadline_us[chosen], resolutions.created_us[chosen]
        wait_us = saturating_add(until_us, -np.maximum(created_us, -MAX_TIME_US))
        past_us = saturating_add(until_us, wait_us)
        end_us = np.minimum(resolutions.resolved_us[chosen], until_us)
        fail_us = resolutions.fail_us
        times = EntryTimes(
            from_us=resolver.rows.from_us_of(rows)[owner],
            end_us=end_us[owner],
            until_us=until_us[owner],
            past_us=past_us[owner],
            fail_us=None if fail_us is None else fail_us[chosen[resolutions.owner]],
            sums=self._sums(resolver, rows, owner),
        )
        self._compare(targets, times)
        if self._has_marks:
            self.ended.add(targets, times.from_us, times.until_us, watermark_us)
            self.past.add(targets, saturating_add(times.until_us, 1), times.past_us, watermark_us)

    def _sums(self, resolver: Resolver, rows: Int64s, owner: Int64s) -> Bools | None:
        if not (self._has_marks and self._spec.by_row):
            return None
        sums = among(resolver.rows.rule[rows], ADDING)
        return sums[owner] if sums.any() else None

    def _compare(self, targets: Targets, times: EntryTimes) -> None:
        """Take away the events that count for m watch entries, and mark the others in their ranges."""
        for kind in EventKind:
            to_us = times.past_us if self._has_marks else times.end_us
            found: dict[int, list[Spans]] = {}
            for span in self.unmatched.spans(kind, targets, times.from_us, to_us):
                found.setdefault(id(span.segment), []).append(span)
            for log in self.unmatched.logs_of(kind) if found else []:
                kept = [self._without(s, found[id(s)], times, kind) if id(s) in found else s for s in log.segments]
                log.segments = [segment for segment in kept if len(segment)]
        self.unmatched.drop_empty()

    def _without(self, segment: EventSegment, spans: list[Spans], times: EntryTimes, kind: int) -> EventSegment:
        """Return a segment without the events that count; the others in the spans are marked."""
        counted, pending, ended, past = (np.zeros(len(segment), bool) for _ in range(4))
        for span in spans:
            count_end, end = span.until(times.counted_us(kind)[span.owner]), span.until(times.end_us[span.owner])
            counted |= self._counting(span, count_end, times)
            if self._has_marks:
                pending |= covered(len(segment), span.low, end)
                until = span.until(times.until_us[span.owner])
                ended |= covered(len(segment), end, until)
                past |= covered(len(segment), until, span.high)
        self._counted += int(np.count_nonzero(counted))
        if segment.value is not None and self._has_marks:
            marks = segment.value.copy()
            for marked, mark in ((pending, EventMark.NOT_TAKEN), (ended, EventMark.ENDED), (past, EventMark.PAST)):
                marks[marked] |= mark
            segment = replace(segment, value=marks)
        return segment.where(~counted)

    @staticmethod
    def _counting(span: Spans, end: Int64s, times: EntryTimes) -> Bools:
        """Flag the events of spans that count, up to a position of each span, (E,) bool."""
        n, marks = len(span.segment), span.segment.value
        if times.sums is None or marks is None:
            return covered(n, span.low, end)
        sums = times.sums[span.owner]
        by_sums = covered(n, span.low[sums], end[sums]) & (marks & EventMark.NO_ADDEND == 0)
        return by_sums | covered(n, span.low[~sums], end[~sums])

    # --- the watermark moves ---------------------------------------------------------------------------

    def release(self, resolver: Resolver, waiting: Bools, floor_us: int) -> list[OutcomeBatch]:
        """Return the orphans up to ``floor_us`` that no ``waiting`` row, (rows,) bool, counts."""
        found, self._rejected = self._rejected, []
        earliest_us = self.earliest_us()
        if earliest_us is None or earliest_us > floor_us:
            return found
        rows = np.flatnonzero(waiting & self._may_match(resolver, floor_us))
        if len(rows):
            self._stay(resolver, rows, floor_us)
        for key, log in self.unmatched.logs.items():
            for segment in log.merged():
                over = segment.time_us <= floor_us
                if over.any():
                    found.append(rows_of(key, segment.where(over), self._spec))
                    log.segments = [left for left in [segment.where(~over)] if len(left)]
        self.unmatched.drop_empty()
        return found

    def _stay(self, resolver: Resolver, rows: Int64s, floor_us: int) -> None:
        """Compare the events up to the floor with operations that stay.

        They are pending until the watermark and so count every event up to the floor: resolved rows have left, and a
        row that is created later counts only later events.
        """
        entries, owner = resolver.watchers.entries_of(rows)
        targets = resolver.targets(rows, entries, owner)
        from_us, floor = resolver.rows.from_us_of(rows), np.full(len(rows), floor_us)
        fail_us = resolver.controls.read(targets, from_us, floor).fail_us if resolver.controls else None
        until = floor[owner]
        sums = self._sums(resolver, rows, owner)
        self._compare(targets, EntryTimes(from_us[owner], until, until, until, fail_us=fail_us, sums=sums))

    def _may_match(self, resolver: Resolver, floor_us: int) -> Bools:
        """Flag the rows with the key or id of an event up to the floor, (rows,) bool."""
        may_match = np.zeros(resolver.watchers.rows, bool)
        for key, log in self.unmatched.logs.items():
            for segment in log.segments:
                due = segment.where(segment.time_us <= floor_us)
                if not key.is_named:
                    _, entries = resolver.watchers.find(due.group_keys, due.group_hash)
                    may_match[resolver.watchers.rows_of(entries)] = True
                elif len(due) and resolver.rows.ids.chunks:
                    ids = split_pairs(due.group_keys)[0].cast(resolver.rows.ids.chunks[0].type)
                    named = [as_bools(pc.is_in(chunk, value_set=ids)) for chunk in resolver.rows.ids.chunks]
                    may_match |= np.concatenate(named)
        return may_match


def covered(n: int, low: Int64s, high: Int64s) -> Bools:
    """Flag the places in one of the ranges ``low[i] .. high[i] - 1``, (n,) bool."""
    depth = np.bincount(low, minlength=n + 1) - np.bincount(high, minlength=n + 1)
    return np.cumsum(depth[:-1]) > 0
