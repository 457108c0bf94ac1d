"""Random worlds of operations and events, small and crowded, and the ways in which a stream may deliver them.

A world lies on a coarse grid of time: few keys, few instants, so that ties at the same microsecond, events on
the deadline and one microsecond beside it, equal ids and redelivered events are the rule. All that is drawn
can be added up exactly: values are quarters, and an extension's seconds are whole steps of the grid.

`splits` cuts a world into micro-batches, in any order, with every row on time: above the watermark before its batch.
The watermark after a batch is the smaller of both sides' latest time - delay, in whole milliseconds. It is 0 until
both sides have had rows, and never goes back. For example, with a delay of 5 ms on both sides:

    batch 1   created 10 ms, 20 ms   events 18 ms   before: 0    after: min(20, 18) - 5 = 13 ms
    batch 2   created 14 ms          events none    before: 13   after: 13 ms, because no side got later
    batch 3   created none           events 30 ms   before: 13   after: min(20, 30) - 5 = 15 ms

The operation created at 10 ms could not have come in batch 2 or later.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from tests.support.oracle import KINDS, LAST_US, RULES

# --- numbers: values, levels, sums and counts of each type -----------------------------------------------------------

STEP_US = 250_000  # a quarter of a second: exact in binary as a number of seconds


class Numbers(NamedTuple):
    """What is drawn of one type of number; each tuple has ties and neighbours."""

    values: tuple[Any, ...]
    levels: tuple[Any, ...]
    sums: tuple[Any, ...]
    counts: tuple[Any, ...]
    bad_counts: tuple[Any, ...]  # needs that no count or quorum has
    bad_sums: tuple[Any, ...]  # needs that no sum has
    second: Any  # one second, in this type
    unit_us: int  # extensions are multiples of it
    spoiled: tuple[Any, ...]  # values that no sum can take


def _decimals(words: str) -> tuple[Decimal | None, ...]:
    return tuple(None if word == "null" else Decimal(word) for word in words.split())


COUNTS = (1, 2, 2, 3, 4, 5)
BAD_COUNTS = (None, 0.0, -1.0, 0.5, 1.5, float("inf"), float("-inf"), float("nan"))
NUMBERS: dict[str, Numbers] = {
    "double": Numbers(
        values=(None, 0.0, 0.25, 0.5, 1.0, 2.0, 3.5),
        levels=(0.0, 0.5, 1.0, 2.0, 3.5),
        sums=(0, 0.5, 1.25, 2, 4),
        counts=COUNTS,
        bad_counts=BAD_COUNTS,
        bad_sums=(-0.5, float("nan"), float("inf"), 2.0**-44, 2.0**63),
        second=1.0,
        unit_us=STEP_US,
        spoiled=(-0.5, float("nan")),
    ),
    "tenths": Numbers(
        values=(None, -0.0, 0.1, 0.1, 0.2, 0.7, 1.1, 1e16, 5e-324, 1.7e308, float("inf")),
        levels=(0.0, -0.5, 0.1, 0.7, 1e16 + 2, 5e-324, 1.7e308),
        sums=(0.0, 0.3, 0.8, 0.9, 1.0, 1e16 + 2, 2.0**62),  # no other sums of doubles are asked of an engine
        counts=COUNTS,
        bad_counts=BAD_COUNTS,
        bad_sums=(-5e-324, 5e-324, float("-inf"), float("inf"), 1.7e308),
        second=1.0,
        unit_us=STEP_US,
        spoiled=(-0.5, -5e-324, float("-inf"), float("nan")),
    ),
    "bigint": Numbers(
        values=(None, 0, 1, 1, 2, 2**53 - 1, 2**53, 2**53 + 1, 2**62),
        levels=(0, 1, 2**53, 2**53 + 1, 2**62 + 1, 2**63 - 1),
        sums=(0, 2, 2**53 + 1, 2**53 + 2, 2**54 + 1, 2**62 + 1, 2**63 - 1),
        counts=COUNTS,
        bad_counts=(None, 0, -1, -(2**63)),
        bad_sums=(-1, -(2**63)),
        second=1,
        unit_us=1_000_000,
        spoiled=(-1, -(2**63)),
    ),
    "decimal": Numbers(
        values=_decimals("null 0.10 0.20 0.70 0.70 9007199254740992.92"),
        levels=_decimals("0.00 0.20 0.70 9007199254740992.92 9007199254740992.93"),
        sums=_decimals("0.00 0.80 0.90 1.00 1.50 9007199254740993.02 9007199254740993.63"),
        counts=tuple(Decimal(f"{count}.00") for count in COUNTS),
        bad_counts=_decimals("null 0.00 -1.00 0.50 1.50"),
        bad_sums=_decimals("-0.50 -0.01"),
        second=Decimal("1.00"),
        unit_us=STEP_US,
        spoiled=_decimals("-0.50 -0.01"),
    ),
}


def needs_of(rule: str, drawn: Numbers) -> tuple[Any, ...]:
    """Needs that fit a rule, or the one level for all keys; rules that read none have (None,)."""
    by_rule = {"quorum": drawn.counts, "count": drawn.counts, "sum_at_least": drawn.sums, "level": drawn.levels}
    return by_rule.get(rule, (None,))


TYPES = {"double": "double", "tenths": "double", "bigint": "bigint", "decimal": "decimal(18,2)"}
"""The engine's name of each type of a world's numbers."""


# --- worlds ----------------------------------------------------------------------------------------------------------

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


# --- ways in which a stream may deliver them -------------------------------------------------------------------------


class Batch(NamedTuple):
    """One micro-batch: its rows, and the watermark before them."""

    operations: list[Row]
    events: list[Row]
    watermark_ms: int


def splits(
    rng: random.Random,
    operations: Sequence[Row],
    events: Sequence[Row],
    n_batches: int,
    *,
    operations_delay_us: int = 0,
    events_delay_us: int = 0,
    lookback_us: int = 0,
) -> list[Batch]:
    """Cut rows into `n_batches` micro-batches in a random order, with every row on time.

    Three empty batches follow. The first has the watermark after all rows, the last one at which everything is decided.
    Rows without a time may be in any batch and do not move the watermark.
    """
    waiting = [("created", row) for row in operations] + [("time", row) for row in events]
    times = [row[field] for field, row in waiting if row.get(field) is not None]
    if min(times, default=1) <= 0:
        raise ValueError(f"a row at {min(times)} us can never be on time: give one after the first watermark, 0")
    if min(operations_delay_us, events_delay_us, lookback_us) < 0 or n_batches < 1:
        durations = f"{operations_delay_us=}, {events_delay_us=}, {lookback_us=}"
        raise ValueError(f"{n_batches=} must be at least 1, and durations must not be negative: {durations}")
    delays_us = {"created": operations_delay_us, "time": events_delay_us}
    _shuffle_loosely(rng, waiting, times or [0])
    cuts = sorted(rng.randint(0, len(waiting)) for _ in range(n_batches - 1))
    shares = [end - start for start, end in zip([0, *cuts], [*cuts, len(waiting)], strict=True)]
    batches: list[Batch] = []
    latest_us: dict[str, int] = {}
    watermark_us = 0
    for number, share in enumerate(shares, start=1):
        last = number == n_batches
        chosen, waiting = (waiting, []) if last else (waiting[:share], waiting[share:])
        after_us = watermark_us_after(chosen, latest_us, delays_us, watermark_us)
        # Rows that would be late in the next batch come in this one. They are behind their side's latest.
        chosen += [(field, row) for field, row in waiting if _is_at_most(row.get(field), after_us)]
        waiting = [(field, row) for field, row in waiting if not _is_at_most(row.get(field), after_us)]
        rng.shuffle(chosen)
        sides = {side: [row for field, row in chosen if field == side] for side in ("created", "time")}
        batches.append(Batch(sides["created"], sides["time"], watermark_us // 1000))
        watermark_us = after_us
    end_ms = min(max(watermark_us, _horizon_us(operations, events) + lookback_us), LAST_US) // 1000 + 1
    between_ms = rng.randint(watermark_us // 1000, end_ms)
    return batches + [Batch([], [], ms) for ms in (watermark_us // 1000, between_ms, end_ms)]


def watermark_us_after(
    rows: Iterable[tuple[str, Row]], latest_us: dict[str, int], delays_us: dict[str, int], before_us: int
) -> int:
    """Return the watermark after a batch of (time field, row), and update `latest_us`, each field's latest time."""
    for field, row in rows:
        if row.get(field) is not None:
            latest_us[field] = max(row[field], latest_us.get(field, row[field]))
    if len(latest_us) < len(delays_us):
        return before_us
    return max(before_us, min(latest_us[field] - delays_us[field] for field in delays_us) // 1000 * 1000)


def _shuffle_loosely(rng: random.Random, waiting: list[tuple[str, Row]], times: list[int]) -> None:
    """Order the rows by time with a lag of nothing, some or everything; rows without a time may be anywhere."""
    first, last = min(times), max(times)
    lag_us = rng.choice((0, (last - first) // 8, (last - first) // 2, 4 * (last - first)))

    def place(one: tuple[str, Row]) -> int:
        field, row = one
        time_us = rng.randint(first, last) if row.get(field) is None else row[field]
        return int(time_us) + rng.randint(0, lag_us)

    rng.shuffle(waiting)
    waiting.sort(key=place)


def _is_at_most(time_us: int | None, watermark_us: int) -> bool:
    return time_us is not None and time_us <= watermark_us


def _horizon_us(operations: Sequence[Row], events: Sequence[Row]) -> int:
    """Return a time by which everything is over: the latest of all times, with each extension granted in full."""
    ends = [row.get(field) or 0 for row in operations for field in ("created", "deadline")]
    ends += [event.get("time") or 0 for event in events]
    ends += [granted_us(event) for event in events if event.get("kind") == "extend"]
    return max(ends, default=0)


def granted_us(extension: Row) -> int:
    """Return the deadline that an `extend` event gives; its own time if it has no valid value."""
    seconds = extension.get("value") or 0
    granted_us = max(0, round(seconds * 1_000_000)) if math.isfinite(seconds) else 0
    return min(LAST_US, (extension.get("time") or 0) + granted_us)
