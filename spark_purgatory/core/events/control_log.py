"""Control events (semantics 4.5): fail, cancel, force, extend, and completions that name one operation.

They have their own logs: by key, or by operation and key for events that name an operation. A query without them has no
such log and no cost. Whenever an operation is resolved, their effects are read over the same ranges of time as its
completions, so their order of arrival does not matter.

**Extensions.** One extension may make the next one count. The *reach* of an extension is the last deadline of the chain
that it starts. Worked example, deadline 10::

    extensions      8 + 4 s   11 + 9 s   25 + 9 s
    reach           20        20         34
    deadline 10     -> 20: the first counts, and reaches 20 by the second; the third comes too late

Reaches are computed once for each key. If extensions on one key make those on another count, the keys of operations
whose deadlines moved are read again, in rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_purgatory.core.arrays.sorted_runs import EMPTY, Int64s
from spark_purgatory.core.arrays.times import MAX_TIME_US, saturating_add
from spark_purgatory.core.arrays.value_column import ValueColumn, as_bools
from spark_purgatory.core.events.event_log import EventLog, EventSegment, Spans, bisect_within
from spark_purgatory.core.spec.arrivals import EventArrivals
from spark_purgatory.core.spec.codes import EventKind


def extended(extensions: list[Spans], deadline_us: Int64s) -> Int64s:
    """Return the deadlines, (n,), after all extensions; the spans are owned by operations."""
    reaches = [_reach(span.segment) for span in extensions]
    while True:
        given_us, deadline_us = deadline_us, _furthest(extensions, reaches, deadline_us, deadline_us)
        moved = deadline_us > given_us
        if not moved.any():
            return deadline_us
        extensions = [span.where(moved[span.owner]) for span in extensions]


def _furthest(extensions: list[Spans], tables: list[Int64s], deadline_us: Int64s, until_us: Int64s) -> Int64s:
    """Return each deadline, or the latest time that its extensions up to ``until_us`` reach by tables, (n,)."""
    latest_us = deadline_us.copy()
    for span, table in zip(extensions, tables, strict=True):
        high = span.until(until_us[span.owner])
        some = np.flatnonzero(high > span.low)
        np.maximum.at(latest_us, span.owner[some], _largest(table, span.low[some], high[some]))
    return latest_us


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
    return segment.time_us if segment.value is None else saturating_add(segment.time_us, segment.value)


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


@dataclass(frozen=True)
class Targets:
    """m watch entries of n operations, as control logs look them up."""

    keys: ValueColumn
    entries: Int64s  # (m,) positions in keys
    hashes: Int64s  # (m,)
    owner: Int64s  # (m,) operation of each entry
    ids: pa.Array | None  # (n,) if events may name an operation
    id_hash: Int64s  # (n,)
    whole: bool = False  # events may name an operation without a key

    def named_spans(self, log: EventLog, with_keys: bool, from_us: Int64s, to_us: Int64s) -> list[Spans]:
        """Read a log of named events for each entry: by operation and key, or by operation alone."""
        assert self.ids is not None, "bug: an event names an operation in a query without operation ids"
        pairs = pair_of(self.ids.take(pa.array(self.owner)), self.keys.take(self.entries) if with_keys else None)
        return log.spans(ValueColumn(pairs), np.arange(len(pairs)), self.id_hash[self.owner], from_us, to_us)


@dataclass(frozen=True)
class ControlEffects:
    deadline_us: Int64s  # (n,) after all extensions
    fail_us: Int64s  # (m,) first failure of the entry's key, MAX_TIME_US without one
    force_us: Int64s  # (n,)
    cancel_us: Int64s  # (n,)
    given_us: Int64s  # (n,) deadlines before any extension
    extensions: list[Spans]  # owned by operations

    def left_us(self, resolved_us: Int64s) -> Int64s:
        """Return the deadlines at the time of resolution, (n,): extensions up to and at that time count."""
        deadline_us = self.deadline_us
        if not ((resolved_us < deadline_us) & (deadline_us > self.given_us)).any():
            return deadline_us
        # Every extension up to the resolution counts, because the operation was pending until then.
        tables = [_tables(_moved_to(span.segment)) for span in self.extensions]
        return _furthest(self.extensions, tables, self.given_us, np.minimum(resolved_us, deadline_us))


class LogKey(NamedTuple):
    kind: EventKind
    is_named: bool  # its events name an operation, and their keys are those of `pair_of`


class ControlLog:
    """Control events by kind. Events that name an operation are apart."""

    def __init__(self) -> None:
        self.logs: dict[LogKey, EventLog] = {}

    def __bool__(self) -> bool:
        return bool(self.logs)

    def append(self, events: EventArrivals) -> list[tuple[LogKey, EventSegment]]:
        appended = []
        kinds = np.zeros(len(events), np.int64) if events.kind is None else events.kind
        named = np.zeros(len(events), bool)
        if events.operation_ids is not None:
            named = events.operation_ids.is_valid().to_numpy(zero_copy_only=False)
        for kind in np.unique(kinds):
            for is_named in (False, True):
                rows = np.flatnonzero((kinds == kind) & (named == is_named))
                if len(rows):
                    key = LogKey(EventKind(kind), is_named)
                    segment = _segment(events.take(rows), key)
                    self.logs.setdefault(key, EventLog()).append(segment)
                    appended.append((key, segment))
        return appended

    def spans(self, kind: EventKind, targets: Targets, from_us: Int64s, to_us: Int64s) -> list[Spans]:
        """Return the events of a kind between two times, (m,) each, that apply to each watch entry."""
        found = []
        if (log := self.logs.get(LogKey(kind, False))) is not None:
            found += log.spans(targets.keys, targets.entries, targets.hashes, from_us, to_us)
        if (log := self.logs.get(LogKey(kind, True))) is not None:
            found += targets.named_spans(log, True, from_us, to_us)
        return found + self.keyless(kind, targets, from_us, to_us)

    def keyless(self, kind: EventKind, targets: Targets, from_us: Int64s, to_us: Int64s) -> list[Spans]:
        """Return those `spans` whose events have no key, which apply to each watch entry of the operation named."""
        log = self.logs.get(LogKey(kind, True))
        if log is None or not targets.whole or kind == EventKind.COMPLETE:
            return []
        return targets.named_spans(log, False, from_us, to_us)

    def summable(self) -> ControlLog:
        controls = ControlLog()
        controls.logs = {key: log.summable() for key, log in self.logs.items()}
        return controls

    def read(self, targets: Targets, from_us: Int64s, deadline_us: Int64s) -> ControlEffects:
        """Return the effects on operations that count events between two times, (n,) each."""
        owner = targets.owner
        from_entry = from_us[owner]
        extensions = _owned(self.spans(EventKind.EXTEND, targets, from_entry, np.full(len(owner), MAX_TIME_US)), owner)
        given_us, deadline_us = deadline_us, extended(extensions, deadline_us)
        until = deadline_us[owner]
        fail_us = _first_us(self.spans(EventKind.FAIL, targets, from_entry, until), len(owner))
        force_us, cancel_us = (
            _first_us(_owned(self.spans(kind, targets, from_entry, until), owner), len(deadline_us))
            for kind in (EventKind.FORCE, EventKind.CANCEL)
        )
        return ControlEffects(deadline_us, fail_us, force_us, cancel_us, given_us, extensions=extensions)

    def forget(
        self, floor_us: int, needed_from: Callable[[EventSegment], Int64s], earliest_us: int, levels: bool
    ) -> None:
        """Forget events up to the floor that no waiting operation needs, and named ones before ``earliest_us``."""
        for key, log in self.logs.items():
            if key.is_named:
                has_levels = levels and key.kind == EventKind.COMPLETE
                log.forget(floor_us, lambda s: np.full(len(s.group_hash), earliest_us), has_levels)
            else:
                log.forget(floor_us, needed_from)
        self.drop_empty()

    def drop_empty(self) -> None:
        self.logs = {key: log for key, log in self.logs.items() if len(log)}

    @property
    def extends(self) -> bool:
        return bool(self.logs_of(EventKind.EXTEND))

    def logs_of(self, kind: EventKind) -> list[EventLog]:
        return [log for key, log in self.logs.items() if key.kind == kind]


def pair_of(ids: pa.Array, keys: pa.Array | None) -> pa.Array:
    """Join ids and keys to binary values, (n,): the id's length, ":", id and key; "0" before the length: no key."""
    ids, keys = _as_binary(ids), pa.nulls(len(ids), pa.binary()) if keys is None else _as_binary(keys)
    lengths = pc.binary_length(ids).cast(pa.string()).cast(pa.binary())
    if keys.null_count:
        lengths = pc.if_else(keys.is_null(), pc.binary_join_element_wise(b"0", lengths, b""), lengths)
        keys = keys.fill_null(b"")
    return pc.binary_join_element_wise(lengths, pc.binary_join_element_wise(ids, keys, b""), b":")


def split_pairs(pairs: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the ids and keys of `pair_of`, both (n,) binary; a missing key is null."""
    pairs = pa.concat_arrays([pairs.cast(pa.binary())])
    _, offsets, data = pairs.buffers()
    start = np.frombuffer(offsets, np.int32, len(pairs) + 1, pairs.offset * 4).astype(np.int64)
    digits_of = pc.find_substring(pairs, b":").to_numpy()
    colon = start[:-1] + digits_of
    octets = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    length, at = np.zeros(len(pairs), np.int64), start[:-1].copy()
    while (digits := at < colon).any():
        length[digits] = 10 * length[digits] + octets[at[digits]] - ord("0")
        at[digits] += 1
    ends = np.stack((start[:-1], colon + 1, colon + 1 + length), axis=1).ravel()
    parts = pa.Array.from_buffers(
        pa.binary(), 3 * len(pairs), [None, pa.py_buffer(np.append(ends, start[-1]).astype(np.int32)), data]
    )
    each = 3 * np.arange(len(pairs))
    alone = (digits_of > 1) & as_bools(pc.starts_with(pairs, b"0"))
    return parts.take(pa.array(each + 1)), parts.take(pa.array(each + 2, mask=alone))


def _as_binary(values: pa.Array) -> pa.Array:
    return values if pa.types.is_binary(values.type) else values.cast(pa.string()).cast(pa.binary())


def _segment(events: EventArrivals, key: LogKey) -> EventSegment:
    """Build a segment of one kind of events, whose value is a number, or the time that extensions grant."""
    value = {EventKind.COMPLETE: events.value, EventKind.EXTEND: events.granted_us}.get(key.kind)
    keys, hashes = events.keys, events.key_hash
    if key.is_named:
        assert events.operation_ids is not None and events.operation_hash is not None, "bug: named without a name"
        keys, hashes = pair_of(events.operation_ids, keys), events.operation_hash
    return EventSegment.build(keys, hashes, events.time_us, value, events.event_ids, columns=events.columns)


def _owned(spans: list[Spans], owner: Int64s) -> list[Spans]:
    return [replace(span, owner=owner[span.owner]) for span in spans]


def _first_us(spans: list[Spans], n: int) -> Int64s:
    first = np.full(n, MAX_TIME_US)
    for span in spans:
        np.minimum.at(first, span.owner, span.segment.time_us[span.low])
    return first
