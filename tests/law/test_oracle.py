"""The oracle's own tests: cases worked by hand, then properties, among them the law of SPEC's event time itself.

Hand-worked operations live from 10 to 20 (microseconds) unless they say otherwise; a fate is written as
(status, resolved_at, matched, missing_keys).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.oracle import KINDS, RULES, decide
from tests.support.worlds import NUMBERS, STEP_US, World, random_world, splits

Row = dict[str, Any]


def multiset(rows: Iterable[Row]) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in rows)


SEEDS = st.integers(0, 2**32 - 1)
LOOKBACKS_US = st.sampled_from((0, 1, STEP_US, 4 * STEP_US))
DELAYS_US = st.sampled_from((0, 1, 1_500, STEP_US, 5 * STEP_US))


@st.composite
def worlds(draw: st.DrawFn, /, **options: Any) -> World:
    """Worlds of all rules or of one, of all kinds of events or of complete ones alone, sound or spoiled."""
    rules = draw(st.sampled_from([RULES, *((rule,) for rule in RULES)]))
    kinds = draw(st.sampled_from((KINDS, ("complete",))))
    sizes = {"n_operations": draw(st.integers(0, 10)), "n_events": draw(st.integers(0, 30))}
    drawn = {"rules": rules, "kinds": kinds, **sizes, "n_keys": draw(st.integers(1, 4))}
    drawn.update(spoiled=draw(st.booleans()), numbers=draw(st.sampled_from(sorted(NUMBERS))))
    return random_world(random.Random(draw(SEEDS)), **{**drawn, **options})


@given(worlds(), LOOKBACKS_US, DELAYS_US, DELAYS_US, st.integers(1, 7), SEEDS)
@settings(max_examples=100, deadline=None)
def test_what_has_been_emitted_on_the_way_is_never_taken_back(
    world: World, lookback_us: int, ops_delay_us: int, events_delay_us: int, n_batches: int, seed: int
) -> None:
    """The law, of the oracle itself: rows that come later but on time change no outcome already out."""
    delays: dict[str, Any] = {"operations_delay_us": ops_delay_us, "events_delay_us": events_delay_us}
    batches = splits(random.Random(seed), *world, n_batches, lookback_us=lookback_us, **delays)
    everything = multiset(decide(*world, lookback_us=lookback_us, orphans="control"))
    operations: list[Row] = []
    events: list[Row] = []
    emitted: Counter[str] = Counter()
    for batch, after in zip(batches, [*batches[1:], batches[-1]], strict=True):
        operations += batch.operations
        events += batch.events
        clock: Row = {"watermark_us": after.watermark_ms * 1000, "lookback_us": lookback_us}
        now = multiset(decide(operations, events, orphans="control", **clock))
        assert emitted <= now <= everything
        emitted = now
    assert emitted == everything


def test_worlds_are_crowded_enough_to_meet_every_case() -> None:
    seen: Counter[str] = Counter()
    for seed in range(400):
        operations, events = random_world(random.Random(seed), n_operations=12, n_events=40, spoiled=True)
        lookback_us = seed % 2 * STEP_US
        outcomes = decide(operations, events, lookback_us=lookback_us, orphans="control")
        seen.update(one["status"] for one in outcomes)
        seen.update(f"rule {op['rule']}" for op in operations)
        seen.update(f"kind {event['kind']}" for event in events)
        seen["key twice in one operation"] += sum(
            len(set(op["keys"] or ())) < len(op["keys"] or ()) for op in operations
        )
        times = Counter(event["time"] for event in events)
        seen["tie of events"] += sum(n > 1 for n in times.values())
        seen["redelivered"] += len(events) - len({e["event_id"] or n for n, e in enumerate(events)})
        seen["at the deadline"] += sum(times[op["deadline"]] for op in operations if op["deadline"])
        seen["just past it"] += sum(times[op["deadline"] + 1] for op in operations if op["deadline"])
        seen["before created"] += sum(one["status"] == "COMPLETED" and one["wait_ms"] < 0 for one in outcomes)
        seen["extended"] += sum(
            one["resolved_at"] > op["deadline"]
            for op in operations
            for one in outcomes
            if one["row"] == op["row"] and one["resolved_at"] and op["deadline"]
        )
    statuses = ("COMPLETED", "EXPIRED", "FAILED", "CANCELLED", "DUPLICATE", "REJECTED", "ORPHAN")
    rare = [name for name in (*statuses, *seen) if seen[name] < 40]
    assert not rare, seen
