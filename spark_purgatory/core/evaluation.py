"""When a criterion comes to hold: the smallest t at which it does over an operation's relevant events up to t.

Rules that are satisfied key by key (any, all, quorum, level) need only the time at which each key is satisfied; count
and sum bisect over time, for all operations at once, because all rules are monotone. No operation's events are laid out
one by one, so a thousand events on a key that a million operations watch cost a million ranges, not 10**9 pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from spark_purgatory.core.controls import Controlled
from spark_purgatory.core.criteria import ALL_KEYS, ANY_KEY, COUNT, LEVEL, NUMBERED, QUORUM, SUM_AT_LEAST
from spark_purgatory.core.echoes import Echoes
from spark_purgatory.core.event_log import EventSegment, Spans, bisect_within
from spark_purgatory.core.exact_sum import ExactSums
from spark_purgatory.core.numbers import Floats, Numbers, comparable
from spark_purgatory.core.outcomes import CANCELLED, COMPLETED, FAILED
from spark_purgatory.core.runs import Bools, Int64s
from spark_purgatory.core.times import ALWAYS, NEVER


@dataclass(frozen=True)
class Cases:
    """Operations to evaluate: n of them, with m entries in all, entries of one operation adjacent and in order."""

    rule: Int64s  # (n,) codes of criteria.RULES
    need: Floats  # (n,)
    sum_need: Numbers  # (n,) what values must add up to
    created_us: Int64s  # (n,)
    from_us: Int64s  # (n,) earliest time that counts
    deadline_us: Int64s  # (n,)
    first_entry: Int64s  # (n,)
    owner: Int64s  # (m,) operation of each entry, ascending
    level_need: Numbers  # (m,) level that each entry's key must reach
    controlled: Controlled | None = None  # None: no control event speaks to any of them


@dataclass(frozen=True)
class Verdicts:
    """What evaluation says of n operations with m entries."""

    resolved_us: Int64s  # (n,) NEVER where neither the criterion nor a control event settles it
    matched: Int64s  # (n,) relevant events up to resolved_us, or all where it is NEVER
    satisfied: Bools  # (m,) whether the entry's key is satisfied by then
    status: Int64s | None = None  # (n,) COMPLETED, FAILED or CANCELLED where resolved; None: all COMPLETED


@dataclass(frozen=True)
class Heard:
    """The relevant events of all cases."""

    spans: list[Spans]
    echoes: list[Echoes]
    """What of them is counted already on another key."""


def evaluate(cases: Cases, spans: list[Spans], history: list[Spans]) -> Verdicts:
    """Evaluate all cases. ``spans``: relevant events by entry; ``history``: for level entries, events from whenever.

    Neither holds what lies behind the first failure of the entry's key.
    """
    n, m = len(cases.rule), len(cases.owner)
    satisfied_us = np.full(m, NEVER)
    for span in spans:
        np.minimum.at(satisfied_us, span.owner, span.segment.time_us[span.low])
    levels = np.flatnonzero(cases.rule == LEVEL)
    if len(levels):
        _reach_levels(cases, history, satisfied_us)
    heard = Heard(spans, _echoes(cases, spans))
    resolved_us = np.full(n, NEVER)
    for rule, resolve in _RESOLVERS.items():
        chosen = np.flatnonzero(cases.rule == rule)
        if len(chosen):
            resolved_us[chosen] = resolve(cases, chosen, heard, satisfied_us)
    numbered = np.isin(cases.rule, NUMBERED)
    resolved_us = np.where(numbered & (cases.need <= 0), cases.created_us, resolved_us)
    status = None
    if cases.controlled is not None:
        resolved_us, status = _settle(cases, cases.controlled, satisfied_us, resolved_us)
    matched = np.zeros(n, np.int64)
    end_us = np.minimum(resolved_us, cases.deadline_us)
    for span in spans:
        owner = cases.owner[span.owner]
        matched += np.bincount(owner, span.counted(span.until(end_us[owner])), minlength=n).astype(np.int64)
    for echoes in heard.echoes:
        matched -= echoes.total(np.arange(n), end_us)[0]
    return Verdicts(resolved_us, matched, satisfied_us <= end_us[cases.owner], status)


def _echoes(cases: Cases, spans: list[Spans]) -> list[Echoes]:
    """Sums and the other rules may hear the same events in different segments: each on their own."""
    by_sum: dict[bool, list[tuple[Int64s, Spans]]] = {}
    for span in spans:
        if len(span.owner):
            operations = cases.owner[span.owner]
            by_sum.setdefault(bool(cases.rule[operations[0]] == SUM_AT_LEAST), []).append((operations, span))
    found = (Echoes.of(len(cases.rule), heard) for heard in by_sum.values())
    return [echoes for echoes in found if echoes is not None]


def _settle(cases: Cases, controlled: Controlled, satisfied_us: Int64s, completed_us: Int64s) -> tuple[Int64s, Int64s]:
    """(resolved_us, status) with control events: the earliest settles, at a tie COMPLETED, FAILED, CANCELLED."""
    completed_us = np.minimum(completed_us, controlled.force_us)
    failed_us = _hopeless(cases, controlled.fail_us, satisfied_us)
    resolved_us = np.minimum(np.minimum(completed_us, failed_us), controlled.cancel_us)
    status = np.where(resolved_us == failed_us, FAILED, CANCELLED)
    return resolved_us, np.where(resolved_us == completed_us, COMPLETED, status)


def _hopeless(cases: Cases, fail_us: Int64s, satisfied_us: Int64s) -> Int64s:
    """The failure at which each criterion can no longer be met, (n,) int64; NEVER where it still can."""
    lost_us = np.where(satisfied_us == NEVER, fail_us, NEVER)
    first, counts = cases.first_entry, np.bincount(cases.owner, minlength=len(cases.rule))
    all_failed = np.maximum.reduceat(fail_us, first)
    # A quorum survives as long as enough keys are left; one of more keys than there are fails with the first.
    spare = counts - np.ceil(np.fmin(cases.need, counts + 1.0)).astype(np.int64)
    quorum = np.where(spare < 0, np.minimum.reduceat(fail_us, first), _nth(lost_us, first, counts, spare + 1))
    by_rule = {
        ANY_KEY: np.maximum.reduceat(lost_us, first),
        ALL_KEYS: np.minimum.reduceat(lost_us, first),
        LEVEL: np.minimum.reduceat(lost_us, first),
        QUORUM: np.where(cases.need > 0, quorum, NEVER),
        COUNT: np.where(cases.need > 0, all_failed, NEVER),
        SUM_AT_LEAST: np.where(cases.need > 0, all_failed, NEVER),
    }
    return np.choose(cases.rule, [by_rule[rule] for rule in range(len(by_rule))])


def _entries(cases: Cases, chosen: Int64s, values: Int64s) -> tuple[Int64s, Int64s]:
    """Values of the chosen operations' entries, and where each operation's begin."""
    if len(chosen) == len(cases.rule):
        return values, cases.first_entry
    mask = np.zeros(len(cases.rule), bool)
    mask[chosen] = True
    inside = mask[cases.owner]
    counts = np.bincount(cases.owner[inside], minlength=len(mask))[chosen]
    return values[inside], np.cumsum(counts) - counts


def _first_key(cases: Cases, chosen: Int64s, heard: Heard, satisfied_us: Int64s) -> Int64s:
    return np.minimum.reduceat(*_entries(cases, chosen, satisfied_us))


def _last_key(cases: Cases, chosen: Int64s, heard: Heard, satisfied_us: Int64s) -> Int64s:
    return np.maximum.reduceat(*_entries(cases, chosen, satisfied_us))


def _nth_key(cases: Cases, chosen: Int64s, heard: Heard, satisfied_us: Int64s) -> Int64s:
    values, first = _entries(cases, chosen, satisfied_us)
    counts = np.diff(np.append(first, len(values)))
    nth = np.ceil(np.clip(cases.need[chosen], 1, counts + 1.0)).astype(np.int64)
    return _nth(values, first, counts, nth)


def _nth(values: Int64s, first: Int64s, counts: Int64s, nth: Int64s) -> Int64s:
    """The ``nth[i]``-th smallest, from 1, of each operation's values; NEVER where it has no so many; (n,) int64."""
    ordered = values[np.lexsort((values, np.repeat(np.arange(len(counts)), counts)))]
    within = (nth >= 1) & (nth <= counts)
    return np.where(within, ordered[first + np.where(within, nth, 1) - 1], NEVER)


def _last_level(cases: Cases, chosen: Int64s, heard: Heard, satisfied_us: Int64s) -> Int64s:
    """Levels count from whenever, and are first asked for at the creation."""
    return np.maximum(_last_key(cases, chosen, heard, satisfied_us), cases.created_us[chosen])


def _nth_event(cases: Cases, chosen: Int64s, heard: Heard, satisfied_us: Int64s) -> Int64s:
    def enough(mine: list[Spans], position: list[Int64s], asked: Int64s, until_us: Int64s) -> Bools:
        total = np.zeros(len(asked), np.int64)
        for span, at in zip(mine, position, strict=True):
            total += np.bincount(at, span.counted(span.until(until_us[at])), minlength=len(asked)).astype(np.int64)
        for echoes in heard.echoes:
            total -= echoes.total(asked, until_us)[0]
        return total >= cases.need[asked]

    return _bisect_time(cases, chosen, heard.spans, enough)


def _enough_value(cases: Cases, chosen: Int64s, heard: Heard, satisfied_us: Int64s) -> Int64s:
    sums: dict[int, ExactSums] = {}

    def enough(mine: list[Spans], position: list[Int64s], asked: Int64s, until_us: Int64s) -> Bools:
        total = ExactSums.zeros(len(asked))
        for span, at in zip(mine, position, strict=True):
            prefix = sums.get(id(span.segment))
            if prefix is None:
                prefix = sums[id(span.segment)] = ExactSums.prefixes(_values(span.segment))
            until = span.until(until_us[at])
            total.add_at(at, prefix, span.low, until)
            if (repeats := span.segment.repeats) is not None:
                total.subtract_at(at, repeats.total(span.low, until)[1:])
        for echoes in heard.echoes:
            total.subtract_at(np.arange(len(asked)), echoes.total(asked, until_us)[1:])
        return total.at_least(cases.sum_need[asked])

    return _bisect_time(cases, chosen, heard.spans, enough)


def _values(segment: EventSegment) -> Numbers:
    assert segment.value is not None, "bug: a rule that reads values over events without any"
    return segment.value


def _bisect_time(
    cases: Cases,
    chosen: Int64s,
    spans: list[Spans],
    enough: Callable[[list[Spans], list[Int64s], Int64s, Int64s], Bools],
) -> Int64s:
    """Smallest event time at which ``enough`` holds for each chosen operation, NEVER where it does not.

    It is asked about operations and a time for each, with their spans and where in the question each span's is.
    """
    place = np.full(len(cases.rule), -1)
    place[chosen] = np.arange(len(chosen))
    first = np.full(len(chosen), NEVER)
    last = np.full(len(chosen), -NEVER)
    mine, position = _spans_of(cases, spans, place)
    for span, at in zip(mine, position, strict=True):
        np.minimum.at(first, at, span.segment.time_us[span.low])
        np.maximum.at(last, at, span.segment.time_us[span.high - 1])
    holds = (first <= last) & enough(mine, position, chosen, last)
    resolved = np.full(len(chosen), NEVER)
    live = np.flatnonzero(holds)
    place = np.full(len(cases.rule), -1)
    place[chosen[live]] = np.arange(len(live))
    mine, position = _spans_of(cases, spans, place)
    low, high, asked = first[live], last[live], chosen[live]
    while bool((low < high).any()):
        middle = (low >> 1) + (high >> 1) + (low & high & 1)  # low and high may lie 2**64 apart
        reached = enough(mine, position, asked, middle)
        high = np.where(reached, middle, high)
        low = np.where(reached, low, np.minimum(middle + 1, high))
    resolved[live] = low
    return resolved


def _spans_of(cases: Cases, spans: list[Spans], place: Int64s) -> tuple[list[Spans], list[Int64s]]:
    """The spans of operations with a place, and that place."""
    mine, position = [], []
    for span in spans:
        at = place[cases.owner[span.owner]]
        kept = np.flatnonzero(at >= 0)
        if not len(kept):
            continue
        mine.append(Spans(span.segment, span.owner[kept], span.group_start[kept], span.low[kept], span.high[kept]))
        position.append(at[kept])
    return mine, position


def _reach_levels(cases: Cases, history: list[Spans], satisfied_us: Int64s) -> None:
    """Write into ``satisfied_us`` when each level entry's key reached its level.

    What was reached before ``from_us`` was so always: of such events the log may hold the last summit alone.
    """
    level_entry = cases.rule[cases.owner] == LEVEL
    satisfied_us[level_entry] = NEVER
    for span in history:
        running = span.segment.running_max
        needs, beyond = comparable(cases.level_need[span.owner], running)
        at = bisect_within(running, span.group_start, span.high, needs, after=False)
        reached = np.flatnonzero(at < span.high if beyond is None else (at < span.high) & ~beyond)
        owner = span.owner[reached]
        time_us = span.segment.time_us[at[reached]]
        time_us = np.where(time_us < cases.from_us[cases.owner[owner]], ALWAYS, time_us)
        np.minimum.at(satisfied_us, owner, time_us)


_RESOLVERS = {
    ANY_KEY: _first_key,
    ALL_KEYS: _last_key,
    QUORUM: _nth_key,
    COUNT: _nth_event,
    SUM_AT_LEAST: _enough_value,
    LEVEL: _last_level,
}
