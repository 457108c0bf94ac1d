"""The events that outcomes carry: the one that decided, and all that counted (semantics 9).

Both are read from the logs when an outcome leaves, and nothing is kept per operation. `Deliveries` are laid out from
the logs' spans, one for each event and operation, and put in order (semantics 9.1). The *deciding event* is the one at
which the criterion is first met in that order. For example, an operation on the keys a and b needs two keys::

    10  a                    20  a, b          decides: b at 20; a had its first event at 10
                             20  b, a          decides: b at 20; the order of keys is the operation's
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays import numbers
from spark_purgatory.core.arrays.numbers import Numbers, addends, comparable
from spark_purgatory.core.arrays.sorted_runs import EMPTY, Bools, Int64s, expand, is_first, parts_of
from spark_purgatory.core.arrays.times import MAX_TIME_US
from spark_purgatory.core.arrays.value_column import number_ranks, value_ranks
from spark_purgatory.core.engine.evaluation import EvaluationInput, RelevantEvents, when_met, when_satisfied
from spark_purgatory.core.engine.outcomes import as_text, structs_of, without_prefix
from spark_purgatory.core.engine.resolver import Resolutions, Resolver
from spark_purgatory.core.events.event_log import EventSegment, Spans, bisect_within
from spark_purgatory.core.spec.codes import EventKind, Status
from spark_purgatory.core.spec.criteria import ADDING, AT_DEADLINE, KEYED, LEVELLED
from spark_purgatory.core.spec.engine_spec import EngineSpec

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
        if len(parts) == 1:
            return parts[0]
        segments = list({id(s): s for part in parts for s in part.segments}.values())
        places = {id(segment): i for i, segment in enumerate(segments)}
        moved = [np.array([places[id(s)] for s in part.segments], np.int64)[part.segment] for part in parts]
        parts = [replace(part, segment=segment) for part, segment in zip(parts, moved, strict=True)]
        return Deliveries(segments, *(np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS))

    def take(self, chosen: Int64s) -> Deliveries:
        return replace(self, **{name: getattr(self, name)[chosen] for name in COLUMNS})

    @property
    def time_us(self) -> Int64s:
        parts, order = self._by_segment()
        return np.concatenate([EMPTY, *(segment.time_us[at] for segment, at in parts)])[order]

    def values(self) -> Numbers:
        parts, order = self._by_segment()
        found = [np.zeros(len(at)) if s.value is None else s.value[at] for s, at in parts]
        return numbers.joined(found)[order] if found else np.zeros(0)

    def columns(self) -> pa.StructArray | None:
        return self._gathered([segment.columns for segment in self.segments])

    def event_ids(self) -> pa.Array | None:
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
        ids, columns = self.event_ids(), self.columns()
        nothing = np.zeros(len(self), np.int64)
        return np.stack([nothing if each is None else value_ranks(each) for each in (ids, columns)])

    def by_value(self) -> Deliveries:
        return self.take(np.lexsort((~self._sizes(), self.operation)))

    def only_largest(self, n: int) -> Deliveries:
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


MAX_LAID_OUT = 1 << 22  # deliveries that are laid out together; operations with more are read in parts
WIDENING = 4  # if redeliveries leave too few events, so many times more are laid out
# The control event that leads to each status.
CONTROLS = {Status.FAILED: EventKind.FAIL, Status.CANCELLED: EventKind.CANCEL, Status.COMPLETED: EventKind.FORCE}


def evidence_of(resolver: Resolver, status: Status, resolutions: Resolutions, chosen: Bools) -> dict[str, pa.Array]:
    """Return the event columns of chosen rows, (n,) bool, by name; a column of nulls is left out."""
    spec = resolver.spec
    assert spec.evidence is not None, "bug: a query whose outcomes carry no events"
    by_value = spec.evidence_order == "value"
    if status == Status.EXPIRED and not (by_value or spec.evidence.lists_all):
        return {}
    asked = _Asked.of(resolver, status, resolutions, chosen)
    if by_value:
        decided = Deliveries.joined(asked.listed(1))
    else:
        met = resolutions.result.met_us[chosen] == asked.resolved_us
        decided = asked.deciding(met & (status == Status.COMPLETED))
    structs = event_structs(decided, resolver.watchers.keys.take(asked.entries[decided.entry]), spec)
    place = np.full(len(asked.rows), -1)
    place[decided.operation] = np.arange(len(decided))
    if not np.array_equal(place, np.arange(len(structs))):
        structs = structs.take(pa.array(place, mask=place < 0))
    found = {"event": structs}
    if spec.evidence.lists_all:
        found["events"] = asked.all_events(spec.evidence.most)
    return found


def events_of(resolver: Resolver, resolutions: Resolutions) -> pa.ListArray:
    """Return the events of waiting rows, (n,), up to their resolution if it is held."""
    assert resolver.spec.evidence is not None, "bug: a query whose outcomes carry no events"
    asked = _Asked.of(resolver, Status.EXPIRED, resolutions, np.ones(len(resolutions.rows), bool))
    return asked.all_events(resolver.spec.evidence.most)


def event_structs(deliveries: Deliveries, keys: pa.Array, spec: EngineSpec) -> pa.StructArray:
    texts = as_text(without_prefix(keys, spec.key_prefix))
    if deliveries.keyless.any():
        texts = texts.take(pa.array(np.arange(len(texts)), mask=deliveries.keyless))
    times = pa.array(deliveries.time_us)
    return structs_of(texts, times, deliveries.event_ids(), deliveries.columns(), spec)


@dataclass(frozen=True)
class _Asked:
    """n operations that leave, with m watch entries."""

    resolver: Resolver
    status: Status
    inputs: EvaluationInput
    entries: Int64s  # (m,)
    rows: Int64s  # (n,)
    resolved_us: Int64s  # (n,) MAX_TIME_US of EXPIRED ones
    spans: list[Spans]  # the relevant events

    @staticmethod
    def of(resolver: Resolver, status: Status, resolutions: Resolutions, chosen: Bools) -> _Asked:
        rows, resolved_us = resolutions.rows[chosen], resolutions.resolved_us[chosen]
        return _Asked(resolver, status, *resolver.inputs(rows), rows, resolved_us, resolutions.spans_of(chosen))

    def deciding(self, met: Bools) -> Deliveries:
        """Return the deciding event of each operation, at most one; ``met``, (n,): the criterion decided."""
        by_criterion = self._by_criterion(met) if met.any() else Deliveries.of([], EMPTY)
        if self.status not in CONTROLS or met.all():
            return by_criterion
        by_control = self._by_control(CONTROLS[self.status], ~met)
        return Deliveries.joined([by_criterion, by_control])

    def listed(self, most: int) -> list[Deliveries]:
        """Return the first ``most`` events that counted for each operation in its order, in parts of operations."""
        by_value = self.resolver.spec.evidence_order == "value"
        spans = [self._cut(span) for span in self.spans]
        costs = np.zeros(len(self.rows), np.int64)
        for span in spans:
            counts = span.high - span.low
            np.add.at(costs, self.inputs.owner[span.owner], counts if by_value else np.minimum(counts, most))
        found, first = [], self._largest if by_value else self._earliest
        for part in parts_of(costs, MAX_LAID_OUT):
            mine = np.zeros(len(self.rows), bool)
            mine[part] = True
            found.append(first(spans, mine, most))
        return found

    def all_events(self, most: int) -> pa.ListArray:
        parts = self.listed(most)
        spec, keys = self.resolver.spec, self.resolver.watchers.keys
        structs = [event_structs(part, keys.take(self.entries[part.entry]), spec) for part in parts]
        counts = np.bincount(np.concatenate([part.operation for part in parts]), minlength=len(self.rows))
        offsets = pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
        return pa.ListArray.from_arrays(offsets, pa.concat_arrays(structs))

    # --- the events of an operation --------------------------------------------------------------------

    def _cut(self, span: Spans) -> Spans:
        end_us = np.minimum(self.resolved_us, self.inputs.deadline_us)
        high = span.until(end_us[self.inputs.owner[span.owner]])
        return replace(span, high=high).where(high > span.low)

    def _largest(self, spans: list[Spans], mine: Bools, most: int) -> Deliveries:
        """Return the ``most`` largest events of some operations, (n,) bool, each event once, in order."""
        spans = [span.where(mine[self.inputs.owner[span.owner]]) for span in spans]
        laid = Deliveries.of(spans, self.inputs.owner)
        if most == 1 and not self.resolver.spec.event_ids:
            laid = laid.only_largest(len(self.rows))  # Without redeliveries the others need no order.
        return laid.each_once(self.inputs.has(ADDING)).by_value().first(most)

    def _earliest(self, spans: list[Spans], mine: Bools, most: int) -> Deliveries:
        """Return the first ``most`` events of some operations, (n,) bool, each event once, in order."""
        spans = [span.where(mine[self.inputs.owner[span.owner]]) for span in spans]
        width, done, left = most, list[Deliveries](), mine
        while True:
            laid, cut_us = self._first_of_each(spans, width)
            events = laid.each_once(self.inputs.has(ADDING))
            events = events.take(np.flatnonzero(events.time_us <= cut_us[events.operation]))
            events = events.first(most)
            counts = np.bincount(events.operation, minlength=len(left))
            short = left & (counts < most) & (cut_us < MAX_TIME_US)
            done.append(events.take(np.flatnonzero(~short[events.operation])))
            if not short.any():
                break
            spans = [span.where(short[self.inputs.owner[span.owner]]) for span in spans]
            width, left = width * WIDENING, short
        whole = Deliveries.joined(done)
        return whole.take(np.argsort(whole.operation, kind="stable")) if len(done) > 1 else whole

    def _first_of_each(self, spans: list[Spans], width: int) -> tuple[Deliveries, Int64s]:
        """Return the first ``width`` events of each span, with ties of the last, and until when rows have all."""
        cut_us, shorter = np.full(len(self.rows), MAX_TIME_US), []
        for span in spans:
            last = np.minimum(span.low + width, span.high) - 1
            last_us = span.segment.time_us[last]
            high = np.minimum(span.until(last_us), span.high)
            short = high < span.high
            np.minimum.at(cut_us, self.inputs.owner[span.owner[short]], last_us[short])
            shorter.append(replace(span, high=high))
        return Deliveries.of(shorter, self.inputs.owner), cut_us

    # --- what decided ----------------------------------------------------------------------------------

    def _by_control(self, kind: EventKind, chosen: Bools) -> Deliveries:
        """Return the first control event of a kind at the resolution of each chosen operation."""
        resolver, owner = self.resolver, self.inputs.owner
        at_us, targets = self.resolved_us[owner], resolver.targets(self.rows, self.entries, owner)
        alone = resolver.controls.keyless(kind, targets, at_us, at_us)
        spans = resolver.controls.spans(kind, targets, at_us, at_us)
        laid = Deliveries.joined(
            [Deliveries.of(spans[: len(spans) - len(alone)], owner), Deliveries.of(alone, owner, keyless=True)]
        )
        laid = laid.take(np.flatnonzero(chosen[laid.operation]))
        laid = laid.take(laid.order())
        return laid.take(np.unique(laid.operation, return_index=True)[1])

    def _by_criterion(self, met: Bools) -> Deliveries:
        """Return the event at which each criterion was met, if one did; the first if the deadline decides."""
        inputs, owner = self.inputs, self.inputs.owner
        until = met & inputs.has(AT_DEADLINE)
        if until.any():
            first = self._earliest([self._cut(span) for span in self.spans], until, 1)
            return first if (until == met).all() else Deliveries.joined([first, self._by_criterion(met & ~until)])
        met = met & ~inputs.need_nothing
        here = []
        for span in self.spans:
            times_us, at_us = span.segment.time_us, self.resolved_us[owner[span.owner]]
            low = bisect_within(times_us, span.low, span.high, at_us, after=False)
            high = bisect_within(times_us, low, span.high, at_us, after=True)
            here.append(replace(span, low=low, high=high).where((low < high) & met[owner[span.owner]]))
        laid = Deliveries.of(here, owner)
        several = np.bincount(laid.operation, minlength=len(self.rows)) > 1
        counted = ~inputs.has(KEYED)
        # A single event at that time decided, unless a level was reached before it.
        alone = ~several & ~inputs.has(LEVELLED)
        parts = [laid.take(np.flatnonzero(alone[laid.operation]))]
        if len(parts[0]) < len(laid):
            parts.append(self._at_key(laid.take(np.flatnonzero((~alone & ~counted)[laid.operation]))))
            for adding in (inputs.has(ADDING), ~inputs.has(ADDING)):
                parts.append(self._at_count(counted & several & met & adding))
        return Deliveries.joined(parts)

    def _at_key(self, laid: Deliveries) -> Deliveries:
        """Return, under rules by key, the first event on the last key that was needed."""
        inputs = self.inputs
        satisfied_us = when_satisfied(inputs, self.spans, self.resolver.history(inputs, self.rows, self.entries))
        by_now = satisfied_us[laid.entry] == self.resolved_us[laid.operation]
        laid = laid.take(np.flatnonzero(by_now & self._reaches_level(laid)))
        laid = laid.take(laid.order())
        laid = laid.take(np.flatnonzero(is_first(laid.entry)))
        # Keys are satisfied one after the other, each in a moment of its own.
        moment = np.where(satisfied_us < self.resolved_us[inputs.owner], -1, MAX_TIME_US)
        moment[laid.entry] = np.arange(len(laid))
        return self._at_moment(laid, inputs, [], moment)

    def _reaches_level(self, laid: Deliveries) -> Bools:
        """Flag events that reach the level of their key, and all events under other rules, (d,) bool."""
        reaches = np.ones(len(laid), bool)
        levels = self.inputs.has(LEVELLED)[laid.operation]
        for i, segment in enumerate(laid.segments):
            mine = np.flatnonzero(levels & (laid.segment == i))
            if len(mine) and segment.value is not None:
                needs, values = comparable(self.inputs.level_need[laid.entry[mine]], segment.value[laid.at[mine]])
                reaches[mine] = values >= needs
        return reaches

    def _at_count(self, chosen: Bools) -> Deliveries:
        """Return, under rules that count or add up, the event at which there are enough."""
        owner, n = self.inputs.owner, len(self.rows)
        cut = [self._cut(span.where(chosen[owner[span.owner]])) for span in self.spans]
        laid = Deliveries.of(cut, owner).each_once(self.inputs.has(ADDING))
        # Events come one after the other, each in a moment of its own.
        each, start = np.arange(n), laid.operation.searchsorted(np.arange(n + 1))
        segment = EventSegment(each, pa.nulls(n), start, np.arange(len(laid)), laid.values())
        spans = Spans(segment, each, start[:-1], start[:-1], start[1:]).where(start[:-1] < start[1:])
        inputs = replace(self.inputs, owner=each, first_entry=each)
        return self._at_moment(laid, inputs, [spans], np.full(n, MAX_TIME_US))

    @staticmethod
    def _at_moment(laid: Deliveries, inputs: EvaluationInput, spans: list[Spans], satisfied: Int64s) -> Deliveries:
        """Return the event that meets each criterion; spans and ``satisfied``, (m,), have places of events as times."""
        at_no_time = replace(inputs, created_us=np.full(len(inputs.rule), -1))
        met = when_met(at_no_time, RelevantEvents(spans, []), satisfied)[np.unique(laid.operation)]
        return laid.take(met[(met >= 0) & (met < MAX_TIME_US)])
