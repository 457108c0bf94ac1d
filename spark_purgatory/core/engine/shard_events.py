"""The events of a shard: completions, control events, and events that counted for no operation (semantics 4.7, 4.8).

An operation that leaves takes away the events that counted for it. When the watermark has passed an event's time and
the lookback, the event is compared with the operations that still wait, and becomes an ORPHAN row if none counts it.

With ``orphans="control"`` only control events are kept. With "all", all events are kept with *marks* (`EventMark`) for
the reason: an operation that leaves marks the events in its time range that it did not count, and `EndedRanges` keeps
the range for events to come.

**Ended ranges.** The range of an operation on one of its keys, ``from_us <= time <= deadline``, is kept in an
`EventLog` with its start as time and its end as value. A time is in a range if the largest end of the ranges that start
at or before it is not before it. For example, the ranges of a key::

    start               10   12   40
    largest end so far  30   30   50     30 is in a range (10 to 30), 31 to 39 are in none, 45 is in one

Once the watermark reaches the end of a range, an event in it is late, and the range is not needed any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_purgatory.core.arrays import numbers
from spark_purgatory.core.arrays.numbers import is_double
from spark_purgatory.core.arrays.sorted_runs import PREFIX_MASK, Bools, Int64s
from spark_purgatory.core.arrays.times import MAX_TIME_US, MIN_TIME_US, saturating_add
from spark_purgatory.core.arrays.value_column import ValueColumn, as_bools
from spark_purgatory.core.engine.outcomes import EVENT_FIELDS, OutcomeBatch, structs_of, unwatched, without_prefix
from spark_purgatory.core.engine.resolver import Resolutions, Resolver
from spark_purgatory.core.events.control_log import ControlLog, LogKey, Targets, pair_of, split_pairs
from spark_purgatory.core.events.event_log import FORGET_FLOOR, EventLog, EventSegment, Spans
from spark_purgatory.core.spec.arrivals import EventArrivals
from spark_purgatory.core.spec.codes import KINDS, EventKind, EventMark, EventRejection, Status, among
from spark_purgatory.core.spec.criteria import ADDING, LEVELLED, any_key
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.errors import BugError

REASONS = (  # Reasons why an event counted for no operation. The first mark that an event has gives its reason
    (EventMark.LATE, "late"),
    (EventMark.ENDED, "already ended"),
    (EventMark.NOT_TAKEN, "not taken"),
    (EventMark.PAST, "past deadline"),
)
NO_OPERATION = "no such operation"  # the reason of an event without these marks
NOT_PENDING = "not_pending"  # the code of every reason if events have no marks


def rows_of(key: LogKey, segment: EventSegment, spec: EngineSpec) -> OutcomeBatch:
    ids, keys = split_pairs(segment.group_keys) if key.is_named else (None, segment.group_keys)
    of_event = pa.array(segment.group)
    # Keys and ids are written once for each key.
    of_key = _event(pa.repeat(KINDS[key.kind], len(keys)), keys, ids, spec)
    event, texts = of_key.take(of_event), _texts(of_key).take(of_event)
    carried = _carried(event, pa.array(segment.time_us), segment, spec)
    if spec.orphans != "all":
        reasons = pc.binary_join_element_wise(texts, "found no operation pending", " ")
        return unwatched(
            Status.ORPHAN, segment.time_us, reasons=reasons, codes=pa.repeat(NOT_PENDING, len(event)), **carried
        )
    assert segment.value is not None, "bug: an event without marks"
    marks = segment.value
    why = np.select([marks & mark > 0 for mark, _ in REASONS], list(range(len(REASONS))), len(REASONS))
    reasons = pa.array([*(reason for _, reason in REASONS), NO_OPERATION])
    codes = pc.replace_substring(reasons, " ", "_").take(pa.array(why))
    reasons = _with_reason(texts, reasons.take(pa.array(why)))
    late = (marks & EventMark.LATE) > 0
    return unwatched(Status.ORPHAN, segment.time_us, late, reasons=reasons, codes=codes, **carried)


def rows_of_rejected(events: EventArrivals, watermark_us: int, spec: EngineSpec) -> OutcomeBatch:
    codes = np.zeros(len(events), np.int64) if events.kind is None else events.kind
    kinds = pa.array([*KINDS, None]).take(pa.array(np.where(codes < 0, len(KINDS), codes)))
    event, faults = _event(kinds, events.keys, events.operation_ids, spec), pa.array(events.rejection)
    reasons = pa.array([f"rejected, {rejection.reason}" for rejection in EventRejection]).take(faults)
    names = pa.array([rejection.name.lower() for rejection in EventRejection]).take(faults)
    dated = events.time_us != MIN_TIME_US
    late = (events.time_us <= watermark_us) & dated
    carried = _carried(event, pa.array(events.time_us, mask=~dated), events, spec)
    reasons = _with_reason(_texts(event), reasons)
    return unwatched(Status.ORPHAN, events.time_us, late, reasons=reasons, codes=names, dated=dated, **carried)


def _carried(
    event: pa.StructArray, times_us: pa.Array, events: EventSegment | EventArrivals, spec: EngineSpec
) -> dict[str, Any]:
    if spec.evidence is None:
        return {"event": event}
    structs = structs_of(event.field("event_key"), times_us, events.event_ids, events.columns, spec)
    return {"event": event, "evidence": {"event": structs}}


def _with_reason(texts: pa.Array, reasons: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(texts, reasons, " counted for no operation: ")


def _event(kinds: pa.Array, keys: pa.Array, ids: pa.Array | None, spec: EngineSpec) -> pa.StructArray:
    """Return kind, key and operation of events, (n,), without the partition's value before keys and ids."""
    named = pa.nulls(len(keys), pa.string()) if ids is None else shown(ids, spec.id_prefix)
    return pa.StructArray.from_arrays([kinds, shown(keys, spec.key_prefix), named], fields=list(EVENT_FIELDS))


def _texts(event: pa.StructArray) -> pa.Array:
    """Return texts of the kind, key and operation of events, (n,); a null key is written as null."""
    kinds, keys, ids = event.flatten()
    texts = pc.binary_join_element_wise(kinds.fill_null("event"), keys.fill_null("null"), " on key ")
    return pc.coalesce(pc.binary_join_element_wise(texts, ids, " for operation "), texts)


def shown(values: pa.Array, prefix: int) -> pa.Array:
    """Return keys or ids as users know them, without the value of their partition."""
    values = without_prefix(values, prefix)
    if pa.types.is_string(values.type):
        return values
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode("utf-8", "backslashreplace") for value in values.to_pylist()]
        return pa.array(texts, pa.string())


PLAIN, NAMED = LogKey(EventKind.COMPLETE, False), LogKey(EventKind.COMPLETE, True)
# Events are kept as completions; control events, or completions that name an operation; or events that no operation has
# counted. The last two are time ranges of operations that ended: of events that would have counted, and after it.
EVENT_LOGS = LOG, CONTROL, UNMATCHED = ("log", "control", "unmatched")
ENDED, PAST = ("ended", "past")


class EndedRanges:
    """Ranges by key and, if events may name an operation, by operation and key."""

    def __init__(self) -> None:
        self.logs: dict[LogKey, EventLog] = {}

    def add(self, targets: Targets, from_us: Int64s, until_us: Int64s, watermark_us: int) -> None:
        """Add the ranges of watch entries whose operations end, (m,), unless the watermark has passed them."""
        ahead = np.flatnonzero((until_us > watermark_us) & (until_us >= from_us))
        if not len(ahead):
            return
        keys = targets.keys.take(targets.entries[ahead])
        times = from_us[ahead], until_us[ahead]
        self._append(PLAIN, EventSegment.build(keys, targets.hashes[ahead], *times))
        if targets.ids is not None:
            owner = targets.owner[ahead]
            ids = targets.ids.take(owner)
            self._append(NAMED, EventSegment.build(pair_of(ids, keys), targets.id_hash[owner], *times))
            if targets.whole:
                self._append(NAMED, EventSegment.build(pair_of(ids, None), targets.id_hash[owner], *times))

    def _append(self, key: LogKey, segment: EventSegment) -> None:
        self.logs.setdefault(key, EventLog()).append(segment)

    def contain(self, segment: EventSegment, is_named: bool) -> Bools:
        """Flag the events in a range, (E,) bool; the keys of ``is_named`` events are those of `pair_of`."""
        inside = np.zeros(len(segment), bool)
        log = self.logs.get(NAMED if is_named else PLAIN)
        if log is not None:
            always = np.full(len(segment), MIN_TIME_US)
            keys = ValueColumn(segment.group_keys)
            for span in log.spans(keys, segment.group, segment.hashes, always, segment.time_us):
                largest_end_us = span.segment.running_max[span.high - 1]
                inside[span.owner[largest_end_us >= segment.time_us[span.owner]]] = True
        return inside

    def forget(self, watermark_us: int) -> None:
        """Forget ranges that the watermark has passed, if they are a fifth."""
        for log in self.logs.values():
            passed = sum(int(np.count_nonzero(_ends(segment) <= watermark_us)) for segment in log.segments)
            if passed > (len(log) - passed) // 4 + FORGET_FLOOR:
                left = (segment.where(_ends(segment) > watermark_us) for segment in log.segments)
                log.segments = [segment for segment in left if len(segment)]
        self.logs = {key: log for key, log in self.logs.items() if len(log)}


def _ends(ranges: EventSegment) -> Int64s:
    assert ranges.value is not None, "bug: a range without an end"
    return ranges.value


@dataclass(frozen=True)
class EntryTimes:
    from_us: Int64s  # (m,)
    end_us: Int64s  # (m,) the last time at which the operation was pending
    until_us: Int64s  # (m,) its deadline
    past_us: Int64s  # (m,) until when it is remembered after its deadline
    fail_us: Int64s | None  # (m,) first failure of the key; None: no key has failed
    sums: Bools | None  # (m,) only events count that a sum can take; None: there are no others

    def counted_us(self, kind: int) -> Int64s:
        if kind != EventKind.COMPLETE or self.fail_us is None:
            return self.end_us
        return np.minimum(self.end_us, self.fail_us)


class OrphanEvents:
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
        segments = [segment for log in self.unmatched.logs.values() for segment in log.segments]
        return min((int(segment.time_us.min()) for segment in segments), default=None)

    def take_counted(self) -> int:
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
        """Compare events up to the floor with operations that stay, which were pending at all these times."""
        entries, owner = resolver.watchers.entries_of(rows)
        targets = resolver.targets(rows, entries, owner)
        from_us, floor = resolver.rows.from_us_of(rows), np.full(len(rows), floor_us)
        fail_us = resolver.controls.read(targets, from_us, floor).fail_us if resolver.controls else None
        until = floor[owner]
        sums = self._sums(resolver, rows, owner)
        self._compare(targets, EntryTimes(from_us[owner], until, until, until, fail_us=fail_us, sums=sums))

    def _may_match(self, resolver: Resolver, floor_us: int) -> Bools:
        """Flag the rows with the key, or the hash of the id, of an event up to the floor, (rows,) bool."""
        may_match = np.zeros(resolver.watchers.rows, bool)
        for key, log in self.unmatched.logs.items():
            for segment in log.segments:
                due = segment.where(segment.time_us <= floor_us)
                if not key.is_named:
                    _, entries = resolver.watchers.find(due.group_keys, due.group_hash)
                    may_match[resolver.watchers.rows_of(entries)] = True
                else:
                    may_match |= np.isin(resolver.rows.id_hash & PREFIX_MASK, due.group_hash)
        return may_match


def covered(n: int, low: Int64s, high: Int64s) -> Bools:
    """Flag the places in one of the ranges ``low[i] .. high[i] - 1``, (n,) bool."""
    depth = np.bincount(low, minlength=n + 1) - np.bincount(high, minlength=n + 1)
    return np.cumsum(depth[:-1]) > 0


class ShardEvents:
    """Logs of events, kept as long as an operation that waits or comes on time may need them."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self._completions = {PLAIN: EventLog()}
        self.controls = ControlLog()
        self.orphans = OrphanEvents(spec)

    @property
    def log(self) -> EventLog:
        return self._completions[PLAIN]

    def logs(self) -> dict[str, dict[LogKey, EventLog]]:
        """Return the logs by what they are kept as; a caller may put others into them."""
        logs = {LOG: self._completions, CONTROL: self.controls.logs, UNMATCHED: self.orphans.unmatched.logs}
        return logs | {ENDED: self.orphans.ended.logs, PAST: self.orphans.past.logs}

    def take(self, events: EventArrivals, watermark_us: int) -> EventSegment:
        """Keep the events of a batch, and return a segment with a group for each of their keys."""
        if events.value is not None and is_double(events.value) != (self.spec.scale is None):
            raise BugError(f"the query's number type is {self.spec.number}, but events have {events.value.dtype}")
        if events.kind is None and events.operation_ids is None:
            return self._take_completions(events, watermark_us)
        control = events.is_control()
        if not control.any():
            return self._take_completions(events, watermark_us)
        self._take_completions(events.take(np.flatnonzero(~control)), watermark_us)
        for key, segment in self.controls.append(events.take(np.flatnonzero(control))):
            self.orphans.add(key, segment, watermark_us)
        with_keys = events.take(np.flatnonzero(as_bools(events.keys.is_valid())))
        return EventSegment.build(with_keys.keys, with_keys.key_hash, with_keys.time_us)

    def _take_completions(self, events: EventArrivals, watermark_us: int) -> EventSegment:
        value = events.value if self.spec.criterion.reads_values else None
        event_ids = events.event_ids if self.spec.event_ids else None
        segment = EventSegment.build(
            keys=events.keys,
            hashes=events.key_hash,
            time_us=events.time_us,
            value=value,
            event_ids=event_ids,
            columns=events.columns,
        )
        self.log.append(segment)
        if event_ids is not None:
            self.log.merged()  # a redelivery must be in one segment with the first delivery
        self.orphans.add(LogKey(EventKind.COMPLETE, False), segment, watermark_us)
        return segment

    def forget(
        self, floor_us: int, needed_from: Callable[[EventSegment], Int64s], earliest_us: Callable[[], int]
    ) -> None:
        """Forget events up to the floor that no waiting operation needs; ``earliest_us`` is for those that name one."""
        levels = self.spec.may_have(LEVELLED)
        if self.spec.criterion == any_key():
            # A waiting operation has no event that counts or, under final, only events ahead of the watermark.
            self.log.forget(floor_us)
        else:
            self.log.forget(floor_us, needed_from, levels)
        if self.controls:
            self.controls.forget(floor_us, needed_from, earliest_us(), levels)
