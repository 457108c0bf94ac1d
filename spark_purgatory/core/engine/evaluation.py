"""The time at which a criterion is met: the smallest t such that it holds over the relevant events up to t.

Rules that are satisfied key by key (any, all, quorum, level) need only the time at which each key is satisfied. Count
and sum bisect over time for all operations at once, because all rules are monotone. Events are not laid out one by one:
a thousand events on a key that a million operations watch cost a million ranges, not 10**9 pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays.numbers import (
    LIMBS,
    ZERO,
    ExactSums,
    Floats,
    Numbers,
    addends,
    comparable,
    is_double,
    joined,
    limbs_of,
)
from spark_purgatory.core.arrays.sorted_runs import Bools, Int64s, expand, parts_of
from spark_purgatory.core.arrays.times import MAX_TIME_US, MIN_TIME_US
from spark_purgatory.core.events.control_log import ControlEffects
from spark_purgatory.core.events.event_log import EventSegment, Spans, bisect_within, repeated_ids
from spark_purgatory.core.spec.codes import Rule, Status, among
from spark_purgatory.core.spec.criteria import ADDING, LEVELLED

MAX_DELIVERIES = 1 << 22  # laid out together, 700 MB of columns; operations with more are resolved in parts


@dataclass(frozen=True)
class Redeliveries:
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
    """The events that count for operations, each once, at its first delivery (semantics 4.4).

    Worked example, an operation on keys a and b::

        a    x at 12   y at 13   x at 15       x at 15 is a redelivery on the same key
        b    x at 14   z at 16                 x at 14 is a redelivery on another key: 3 events count, x at 12

    Only events whose id occurs again are laid out, one by one for each operation.
    """

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
        return [deliveries.redeliveries() for deliveries in self.repeated]


@dataclass(frozen=True)
class EvaluationResult:
    resolved_us: Int64s  # (n,) MAX_TIME_US if neither the criterion nor a control event resolves it
    matched: Int64s  # (n,) relevant events up to resolved_us, or all if it is MAX_TIME_US
    satisfied: Bools  # (m,) the entry's key is satisfied by then
    met_us: Int64s  # (n,) when the criterion is met, MAX_TIME_US if it is not
    status: Int64s | None = None  # (n,) COMPLETED, FAILED or CANCELLED if resolved; None: all COMPLETED


def evaluate(inputs: EvaluationInput, relevant: RelevantEvents, history: list[Spans]) -> EvaluationResult:
    """Evaluate inputs over events up to the first failure of each key; ``history``: of level entries, from any time."""
    n = len(inputs.rule)
    satisfied_us = when_satisfied(inputs, relevant.spans, history)
    met_us = when_met(inputs, relevant, satisfied_us)
    resolved_us = met_us = np.where(inputs.need_nothing, inputs.created_us, met_us)
    status = None
    if inputs.effects is not None:
        resolved_us, status = _with_controls(inputs, inputs.effects, satisfied_us, resolved_us)
    matched = np.zeros(n, np.int64)
    end_us = np.minimum(resolved_us, inputs.deadline_us)
    for span in relevant.spans:
        owner = inputs.owner[span.owner]
        matched += np.bincount(owner, span.until(end_us[owner]) - span.low, minlength=n).astype(np.int64)
    for again in relevant.redeliveries:
        matched -= again.total(np.arange(n), end_us)[0]
    # A deadline may be the end of time, which means never in satisfied_us.
    satisfied = (satisfied_us <= end_us[inputs.owner]) & (satisfied_us != MAX_TIME_US)
    return EvaluationResult(resolved_us, matched, satisfied, met_us, status)


def when_met(inputs: EvaluationInput, relevant: RelevantEvents, satisfied_us: Int64s) -> Int64s:
    """Return when each criterion is met, (n,) int64, or MAX_TIME_US; `when_satisfied` gives ``satisfied_us``."""
    met_us = np.full(len(inputs.rule), MAX_TIME_US)
    for rule, traits in TRAITS.items():
        chosen = np.flatnonzero(inputs.rule == rule)
        if len(chosen):
            met_us[chosen] = traits.when(_Chosen(inputs, chosen, relevant, satisfied_us))
    return met_us


def when_satisfied(inputs: EvaluationInput, spans: list[Spans], history: list[Spans]) -> Int64s:
    """Return when the key of each watch entry is satisfied, (m,) int64; MAX_TIME_US if it is not."""
    satisfied_us = np.full(len(inputs.owner), MAX_TIME_US)
    for span in spans:
        np.minimum.at(satisfied_us, span.owner, span.segment.time_us[span.low])
    if inputs.has(LEVELLED).any():
        _reach_levels(inputs, history, satisfied_us)
    return satisfied_us


def _with_controls(
    inputs: EvaluationInput, effects: ControlEffects, satisfied_us: Int64s, completed_us: Int64s
) -> tuple[Int64s, Int64s]:
    """Return resolved_us and status with control events: the first decides, in a tie COMPLETED, FAILED, CANCELLED."""
    completed_us = np.minimum(completed_us, effects.force_us)
    lost_us = np.where(satisfied_us == MAX_TIME_US, effects.fail_us, MAX_TIME_US)
    failures = _Failures(inputs, effects.fail_us, lost_us)
    failed_us = np.choose(inputs.rule, [traits.lost_when(failures) for traits in TRAITS.values()])
    resolved_us = np.minimum(np.minimum(completed_us, failed_us), effects.cancel_us)
    status = np.where(resolved_us == failed_us, Status.FAILED, Status.CANCELLED)
    return resolved_us, np.where(resolved_us == completed_us, Status.COMPLETED, status)


@dataclass(frozen=True)
class _Chosen:
    inputs: EvaluationInput
    chosen: Int64s  # (c,)
    relevant: RelevantEvents
    satisfied_us: Int64s  # (m,) when each entry's key is satisfied

    def entries(self) -> tuple[Int64s, Int64s]:
        """Return when the chosen operations' entries are satisfied, and the first position of each operation."""
        inputs = self.inputs
        if len(self.chosen) == len(inputs.rule):
            return self.satisfied_us, inputs.first_entry
        mask = np.zeros(len(inputs.rule), bool)
        mask[self.chosen] = True
        inside = mask[inputs.owner]
        counts = np.bincount(inputs.owner[inside], minlength=len(mask))[self.chosen]
        return self.satisfied_us[inside], np.cumsum(counts) - counts


def _first_key(of: _Chosen) -> Int64s:
    return np.minimum.reduceat(*of.entries())


def _at_deadline(of: _Chosen) -> Int64s:
    return np.where(_first_key(of) == MAX_TIME_US, MAX_TIME_US, of.inputs.deadline_us[of.chosen])


def _last_key(of: _Chosen) -> Int64s:
    return np.maximum.reduceat(*of.entries())


def _nth_key(of: _Chosen) -> Int64s:
    values, first = of.entries()
    counts = np.diff(np.append(first, len(values)))
    nth = np.fmin(of.inputs.need[of.chosen], counts + 1.0).astype(np.int64)
    return _nth(values, first, counts, nth)


def _nth(values: Int64s, first: Int64s, counts: Int64s, nth: Int64s) -> Int64s:
    """Return the ``nth[i]``-th smallest value, from 1, of each operation; MAX_TIME_US if there is none; (n,) int64."""
    ordered = values[np.lexsort((values, np.repeat(np.arange(len(counts)), counts)))]
    within = (nth >= 1) & (nth <= counts)
    return np.where(within, ordered[first + np.where(within, nth, 1) - 1], MAX_TIME_US)


def _last_level(of: _Chosen) -> Int64s:
    """Return when the last level is reached, by events from any time, but not before the created time."""
    return np.maximum(_last_key(of), of.inputs.created_us[of.chosen])


def _nth_event(of: _Chosen) -> Int64s:
    def enough(mine: list[Spans], position: list[Int64s], asked: Int64s, until_us: Int64s) -> Bools:
        total = np.zeros(len(asked), np.int64)
        for span, at in zip(mine, position, strict=True):
            total += np.bincount(at, span.until(until_us[at]) - span.low, minlength=len(asked)).astype(np.int64)
        for again in of.relevant.redeliveries:
            total -= again.total(asked, until_us)[0]
        return total >= of.inputs.need[asked]

    return _bisect_time(of, enough)


class _Sums:
    """Sums of the values of relevant events; the running sums of each segment are made once."""

    def __init__(self, relevant: RelevantEvents) -> None:
        self._relevant = relevant
        self._prefixes: dict[int, ExactSums] = {}

    def up_to(self, mine: list[Spans], position: list[Int64s], asked: Int64s, until_us: Int64s) -> ExactSums:
        """Return the sum of each operation asked for, over its events up to its own time, (k,)."""
        total = ExactSums.zeros(len(asked))
        for span, at in zip(mine, position, strict=True):
            prefix = self._prefixes.get(id(span.segment))
            if prefix is None:
                assert span.segment.value is not None, "bug: a rule reads values, and the events have none"
                prefix = self._prefixes[id(span.segment)] = ExactSums.prefixes(span.segment.value)
            total.add_at(at, prefix, span.low, span.until(until_us[at]))
        for again in self._relevant.redeliveries:
            total.limbs -= again.total(asked, until_us)[1:]
        return total


def _enough_value(of: _Chosen) -> Int64s:
    sums = _Sums(of.relevant)

    def enough(mine: list[Spans], position: list[Int64s], asked: Int64s, until_us: Int64s) -> Bools:
        return sums.up_to(mine, position, asked, until_us).at_least(of.inputs.sum_need[asked])

    return _bisect_time(of, enough)


def totals(inputs: EvaluationInput, spans: list[Spans], resolved_us: Int64s) -> Numbers:
    """Return the sum of each operation's values up to its end, (n,): rounded doubles for people to read, or units of
    16 bytes; 0 under rules that add nothing up.
    """
    n, end_us, doubles = len(inputs.rule), np.minimum(resolved_us, inputs.deadline_us), is_double(inputs.sum_need)
    total, is_sum = np.full(n, 0.0 if doubles else ZERO), inputs.has(ADDING)
    for part in RelevantEvents.of(inputs, spans).parts(n) if is_sum.any() else ():
        chosen = np.flatnonzero(is_sum[part]) + part.start
        if not len(chosen):
            continue
        mine, position = _spans_of(inputs, spans, chosen)
        sums = _Sums(RelevantEvents.of(inputs, mine)).up_to(mine, position, chosen, end_us[chosen])
        total[chosen] = sums.rounded() if doubles else sums.units()
    return total


def _bisect_time(of: _Chosen, enough: Callable[[list[Spans], list[Int64s], Int64s, Int64s], Bools]) -> Int64s:
    """Return the first event time at which ``enough`` holds for each chosen operation, or MAX_TIME_US."""
    inputs, chosen, spans = of.inputs, of.chosen, of.relevant.spans
    first, last = np.full(len(chosen), MAX_TIME_US), np.full(len(chosen), -MAX_TIME_US)
    mine, position = _spans_of(inputs, spans, chosen)
    for span, at in zip(mine, position, strict=True):
        np.minimum.at(first, at, span.segment.time_us[span.low])
        np.maximum.at(last, at, span.segment.time_us[span.high - 1])
    holds = (first <= last) & enough(mine, position, chosen, last)
    resolved = np.full(len(chosen), MAX_TIME_US)
    live = np.flatnonzero(holds)
    mine, position = _spans_of(inputs, spans, chosen[live])
    low, high, asked = first[live], last[live], chosen[live]
    while bool((low < high).any()):
        middle = (low >> 1) + (high >> 1) + (low & high & 1)  # low and high may lie 2**64 apart
        reached = enough(mine, position, asked, middle)
        high = np.where(reached, middle, high)
        low = np.where(reached, low, np.minimum(middle + 1, high))
    resolved[live] = low
    return resolved


def _spans_of(inputs: EvaluationInput, spans: list[Spans], chosen: Int64s) -> tuple[list[Spans], list[Int64s]]:
    mine, position = [], []
    place = np.full(len(inputs.rule), -1)
    place[chosen] = np.arange(len(chosen))
    for span in spans:
        at = place[inputs.owner[span.owner]]
        kept = at >= 0
        if kept.any():
            mine.append(span.where(kept))
            position.append(at[kept])
    return mine, position


def _reach_levels(inputs: EvaluationInput, history: list[Spans], satisfied_us: Int64s) -> None:
    """Write into ``satisfied_us`` when the key of each level entry reached its level.

    A level that was reached before ``from_us`` counts as reached from the start, because the log may only have the last
    maximum of such events. An operation that came after its deadline has only such ones, and that event may be later.
    """
    satisfied_us[inputs.has(LEVELLED)[inputs.owner]] = MAX_TIME_US
    after_deadline = (inputs.deadline_us < inputs.from_us)[inputs.owner]
    for span in (each.where(~after_deadline[each.owner]) for each in history):
        needs, running = comparable(inputs.level_need[span.owner], span.segment.running_max)
        at = bisect_within(running, span.group_start, span.high, needs, after=False)
        reached = np.flatnonzero(at < span.high)
        owner = span.owner[reached]
        time_us = span.segment.time_us[at[reached]]
        time_us = np.where(time_us < inputs.from_us[inputs.owner[owner]], MIN_TIME_US, time_us)
        np.minimum.at(satisfied_us, owner, time_us)
    if after_deadline.any() and history:
        owner, largest, time_us = _last_maxima([each.where(after_deadline[each.owner]) for each in history])
        needs, largest = comparable(inputs.level_need[owner], largest)
        in_time = (largest >= needs) & (time_us <= inputs.deadline_us[inputs.owner[owner]])
        satisfied_us[owner[in_time]] = MIN_TIME_US


def _last_maxima(spans: list[Spans]) -> tuple[Int64s, Numbers, Int64s]:
    """Return each owner of spans, the largest value in them, and the time of its first event."""
    running, last = [span.segment.running_max for span in spans], [span.high - 1 for span in spans]
    largest = joined([each[at] for each, at in zip(running, last, strict=True)])
    of_each = zip(spans, running, last, strict=True)
    first = [bisect_within(each, span.group_start, at, each[at], after=False) for span, each, at in of_each]
    owner = np.concatenate([span.owner for span in spans])
    time_us = np.concatenate([span.segment.time_us[at] for span, at in zip(spans, first, strict=True)])
    order = np.lexsort((-time_us, largest, owner))[::-1]
    order = order[np.unique(owner[order], return_index=True)[1]]
    return owner[order], largest[order], time_us[order]


@dataclass(frozen=True)
class _Failures:
    inputs: EvaluationInput
    fail_us: Int64s  # (m,) the first failure of each entry's key
    lost_us: Int64s  # (m,) the same, MAX_TIME_US if the key is satisfied

    def first_lost(self) -> Int64s:
        return np.minimum.reduceat(self.lost_us, self.inputs.first_entry)

    def last_lost(self) -> Int64s:
        return np.maximum.reduceat(self.lost_us, self.inputs.first_entry)

    def last(self) -> Int64s:
        """Return the failure of the last key, satisfied or not; a need of 0 is met and never fails."""
        last_us = np.maximum.reduceat(self.fail_us, self.inputs.first_entry)
        return np.where(self.inputs.need > 0, last_us, MAX_TIME_US)

    def too_many_lost(self) -> Int64s:
        """Return when too few keys are left for a quorum; a quorum of more keys than there are fails with the first."""
        first, counts = self.inputs.first_entry, np.bincount(self.inputs.owner, minlength=len(self.inputs.rule))
        spare = counts - np.fmin(self.inputs.need, counts + 1.0).astype(np.int64)
        first_fail = np.minimum.reduceat(self.fail_us, first)
        return np.where(spare < 0, first_fail, _nth(self.lost_us, first, counts, spare + 1))


@dataclass(frozen=True)
class RuleTraits:
    when: Callable[[_Chosen], Int64s]  # when the criterion of each operation is met
    lost_when: Callable[[_Failures], Int64s]  # when it can no longer be met, for all inputs
    reached: str  # the column of `Resolver.progress` that operations have
    needed: str  # and that they need


TRAITS = {  # In the order of the codes.
    Rule.ANY_KEY: RuleTraits(_first_key, _Failures.last_lost, "satisfied", "one"),
    Rule.ALL_KEYS: RuleTraits(_last_key, _Failures.first_lost, "satisfied", "n_keys"),
    Rule.QUORUM: RuleTraits(_nth_key, _Failures.too_many_lost, "satisfied", "need"),
    Rule.COUNT: RuleTraits(_nth_event, _Failures.last, "matched", "need"),
    Rule.SUM_AT_LEAST: RuleTraits(_enough_value, _Failures.last, "total", "sum_need"),
    Rule.LEVEL: RuleTraits(_last_level, _Failures.first_lost, "satisfied", "n_keys"),
    Rule.UNTIL_DEADLINE: RuleTraits(_at_deadline, _Failures.last_lost, "any_satisfied", "one"),
}
