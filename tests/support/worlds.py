"""Random worlds of operations and events, small and crowded, and the ways in which a stream may deliver them.

A world lies on a coarse grid of time: few keys, few instants, so that ties at the same microsecond, events on
the deadline and one microsecond beside it, equal ids and redelivered events are the rule. All that is drawn
can be added up exactly: values are quarters, and an extension's seconds are whole steps of the grid.

`tests.support.splits` cuts a world into micro-batches.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.support.oracle import KINDS, RULES
from tests.support.oracle_rejections import LAST_US
from tests.support.splits import granted_us
from tests.support.world_numbers import NUMBERS, STEP_US, Numbers, needs_of

Row = dict[str, Any]

BASE_US = 10_000_000  # all times are above 0, where the watermark of a new stream stands
INSTANTS = 12  # steps on which things begin; deadlines lie up to LONGEST_STEPS further
LONGEST_STEPS = 6
BESIDE_US = (0, 0, 0, 0, -1, 1)  # mostly on the grid, now and then one microsecond before or after it
KEYS = "abcdefgh"


class World(NamedTuple):
    """All that ever happens, as the oracle takes it."""

    operations: list[Row]
    events: list[Row]


def random_world(
    rng: random.Random,
    *,
    n_operations: int = 8,
    n_events: int = 20,
    n_keys: int = 3,
    max_keys: int = 3,
    rules: Sequence[str] = RULES,
    kinds: Sequence[str] = KINDS,
    duplicates: bool = True,
    spoiled: bool = False,
    keyless: bool = False,
    extremes: bool = False,
    numbers: str = "double",
) -> World:
    """Draw a world: at most `max_keys` keys to an operation, out of `n_keys` in all.

    `rules`, `kinds` and `numbers` limit what is drawn. `duplicates` lets ids come again, always on the same keys, so
    that they meet whatever the rows are routed by; `spoiled` adds rows that must be REJECTED; with
    `keyless` some control events name an operation and no key; with `extremes` some deadlines are the end of time, some
    extensions reach it, and some operations are renewed in turns on their keys. Lookback belongs
    to whoever decides: events lie before their operations as often as after them.
    """
    if not 1 <= n_keys <= len(KEYS):
        raise ValueError(f"n_keys={n_keys} is not within 1 to {len(KEYS)}")
    if numbers not in NUMBERS:
        raise ValueError(f"numbers={numbers!r} is none of {', '.join(NUMBERS)}")
    drawn = NUMBERS[numbers]
    names = KEYS[:n_keys]
    operations: list[Row] = []
    events: list[Row] = []
    ends_us: dict[str, int] = {}
    for number in range(n_operations):
        if not operations or not duplicates or rng.random() < 0.7:
            keys = [rng.choice(names) for _ in range(rng.randint(1, max_keys))]
            operations.append(_operation(rng, f"op-{number}", keys, rules, drawn, number))
            continue
        known = rng.choice(operations)
        if "extend" in kinds and 2 * len(events) < n_events and rng.random() < 0.5:
            events.append(_extension(rng, known, ends_us.get(known["row"]) or known["deadline"], drawn))
            ends_us[known["row"]] = granted_us(events[-1])
        operations.append(_row_of_a_known_id(rng, known, ends_us, rules, drawn, number))
    ids = [operation["id"] for operation in operations]
    for number in range(len(events), n_events):
        events.append(_event(rng, names, kinds, ids, drawn, events, number))
        if keyless and events[-1]["operation_id"] and events[-1]["kind"] != "complete" and rng.random() < 0.4:
            events[-1]["key"] = None
    if extremes:
        _to_extremes(rng, operations, events, drawn)
    if spoiled:
        operations += [_spoiled_operation(rng, operation, drawn) for operation in operations if rng.random() < 0.3]
        events += [_spoiled_event(rng, event, drawn) for event in events if rng.random() < 0.2]
        rng.shuffle(operations)
        rng.shuffle(events)
    return World(operations, events)


def _operation(
    rng: random.Random, op_id: str, keys: list[str], rules: Sequence[str], drawn: Numbers, number: int
) -> Row:
    created = BASE_US + rng.randint(0, INSTANTS) * STEP_US + rng.choice(BESIDE_US)
    wait_us = rng.randint(0, LONGEST_STEPS) * STEP_US + rng.choice(BESIDE_US)
    rule = rng.choice(rules)
    level: Any = None
    if rule == "level":
        by_key = {key: rng.choice(drawn.levels) for key in keys}
        level = rng.choice((by_key, rng.choice(drawn.levels)))
    return {
        "id": op_id,
        "keys": keys,
        "created": created,
        "deadline": created + max(wait_us, 0),
        "rule": rule,
        "need": None if rule == "level" else rng.choice(needs_of(rule, drawn)),
        "level": level,
        "row": f"row-{number}",
    }


def _row_of_a_known_id(
    rng: random.Random, known: Row, ends_us: dict[str, int], rules: Sequence[str], drawn: Numbers, number: int
) -> Row:
    """Repeat a row to the letter, or bring its id again: anywhere, at the same times, or around its deadlines."""
    if rng.random() < 0.2:
        return dict(known)
    again = _operation(rng, known["id"], known["keys"], rules, drawn, number)
    chance = rng.random()
    if chance < 0.2:
        again.update(created=known["created"], deadline=known["deadline"])
    elif chance < 0.8:
        end_us = rng.choice((known["deadline"], ends_us.get(known["row"]) or known["deadline"]))
        created = max(known["created"], end_us + rng.choice((-STEP_US, -1, 0, 0, 1, 1, STEP_US)))
        again.update(created=created, deadline=created + again["deadline"] - again["created"])
    return again


def _extension(rng: random.Random, known: Row, end_us: int, drawn: Numbers) -> Row:
    """Extend a row beyond `end_us`, where its deadline may stand by then, by an event up to just past it."""
    time_us = rng.choice((known["created"], known["deadline"], end_us, end_us, end_us + rng.choice(BESIDE_US)))
    units = (end_us - time_us) // drawn.unit_us + rng.randint(1, 3)
    return {
        "key": rng.choice(known["keys"]),
        "time": time_us,
        "kind": "extend",
        "value": _seconds(units, drawn),
        "event_id": None,
        "operation_id": rng.choice((None, known["id"])),
    }


def _seconds(units: int, drawn: Numbers) -> Any:
    """So many units of extension as a number of seconds, in the world's own type."""
    unit = 1_000_000 // drawn.unit_us  # of them to a second
    return drawn.second * units if unit == 1 else drawn.second * units / unit


def _event(
    rng: random.Random,
    names: str,
    kinds: Sequence[str],
    ids: list[str],
    drawn: Numbers,
    earlier: list[Row],
    number: int,
) -> Row:
    """Draw an event; one in seven delivers an earlier complete event again, perhaps at another time or key or
    with another value.
    """
    time_us = BASE_US + rng.randint(-3, INSTANTS + LONGEST_STEPS) * STEP_US + rng.choice(BESIDE_US)
    named = [event for event in earlier if event["event_id"] is not None]
    if named and rng.random() < 0.15:
        known = rng.choice(named)
        key = rng.choice((known["key"], rng.choice(names)))
        told = rng.choice((known["value"], known["value"], rng.choice(drawn.values)))
        return {**known, "key": key, "time": rng.choice((known["time"], time_us)), "value": told}
    kind = "complete" if "complete" in kinds and rng.random() < 0.5 else rng.choice(kinds)
    value: Any = None
    if kind == "complete":
        value = rng.choice(drawn.values)
    elif kind == "extend" and rng.random() < 0.9:
        value = _seconds(rng.randint(-1, LONGEST_STEPS * STEP_US // drawn.unit_us), drawn)
    addressed = ids and rng.random() < (0.1 if kind == "complete" else 0.3)
    return {
        "key": rng.choice(names),
        "time": time_us,
        "kind": kind,
        "value": value,
        "event_id": f"event-{number}" if kind == "complete" and rng.random() < 0.4 else None,
        "operation_id": rng.choice([*ids, "op-unknown"]) if addressed else None,
    }


def _to_extremes(rng: random.Random, operations: list[Row], events: list[Row], drawn: Numbers) -> None:
    for operation in operations:
        chance = rng.random()
        if chance < 0.1:
            operation["deadline"] = rng.choice((LAST_US, LAST_US - 1))
        elif chance < 0.3 and any(event["kind"] == "extend" for event in events):
            events += _renewals(rng, operation, drawn)
    for event in events:
        if event["kind"] == "extend" and rng.random() < 0.05:
            event["value"] = drawn.second * 10**13


def _renewals(rng: random.Random, operation: Row, drawn: Numbers) -> list[Row]:
    """Extensions on the operation's keys in turns, each just before, at or just past the deadline by then."""
    renewals, end_us = [], operation["deadline"]
    for turn in range(rng.randint(2, 6)):
        time_us = end_us + rng.choice((-1, 0, 0, 0, 1))
        value = _seconds(rng.randint(1, 2), drawn)
        named = {"event_id": None, "operation_id": rng.choice((None, operation["id"]))}
        key = operation["keys"][turn % len(operation["keys"])]
        renewals.append({"key": key, "time": time_us, "kind": "extend", "value": value, **named})
        end_us = granted_us(renewals[-1])
    return renewals


def _spoiled_operation(rng: random.Random, operation: Row, drawn: Numbers) -> Row:
    faults: list[Row] = [
        {"id": None},
        {"keys": None},
        {"keys": []},
        {"keys": [*operation["keys"], None] if len(operation["keys"]) > 1 else [None]},
        {"created": None},
        {"deadline": None},
        {"deadline": operation["created"] - 1},
        {"rule": None},
        {"rule": "most_keys"},
        *({"rule": rule, "need": need} for rule in ("quorum", "count") for need in rng.sample(drawn.bad_counts, 2)),
        *({"rule": "sum_at_least", "need": need} for need in drawn.bad_sums),
        {"rule": "level", "need": None, "level": None},
        {"rule": "level", "need": None, "level": {}},
    ]
    return {**operation, **rng.choice(faults), "row": f"spoiled {operation['row']}"}


def _spoiled_event(rng: random.Random, event: Row, drawn: Numbers) -> Row:
    """Spoil an event, for all or (a value that no sum can take) only for operations under `sum_at_least`."""
    faults: list[Row] = [{"key": None}, {"time": None}, *({"value": value} for value in drawn.spoiled)]
    return {**event, **rng.choice(faults)}
