"""Random worlds for the law, with the engine specification of each."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from spark_purgatory.core.engine.outcomes import DUPLICATE_REASON
from spark_purgatory.core.engine.resolver import REASONS as RESOLVED
from spark_purgatory.core.spec.codes import RULES, EventRejection, OperationRejection, Status
from spark_purgatory.core.spec.criteria import ByRow, Criterion
from spark_purgatory.core.spec.engine_spec import EngineSpec, Orphans
from spark_purgatory.core.spec.engine_spec import Evidence as Carried
from tests.support.engine_driver import Rows, microseconds
from tests.support.oracle import KINDS, decide, why_operation_rejected
from tests.support.worlds import NUMBERS, STEP_US, TYPES, Batch, World, needs_of, random_world, splits

COLUMNS = ("row", "id", "status", "resolved_at", "wait_ms", "matched", "missing_keys")


COMPLETE_ONLY = ("complete",)


ORPHANS: tuple[Orphans, ...] = ("control", "all")


NAMED = ("id", "row", "key", "event_id", "operation_id")
BESIDE: dict[str, tuple[type, ...]] = {
    "double": (Decimal,),
    "tenths": (Decimal,),
    "bigint": (float, Decimal),
    "decimal": (float,),
}
"""Other types that needs and levels may have beside values of this one."""


def draw(
    seed: int,
    rule: str,
    several: bool,
    duplicates: bool = True,
    kinds: tuple[str, ...] = COMPLETE_ONLY,
    worlds: int = 1,
    spoiled: bool = True,
    numbers: str = "double",
    extremes: bool = True,
) -> tuple[random.Random, World, dict[str, Any]]:
    """Worlds of one rule that share a stream and nothing else, and that rule as the oracle takes it.

    "mixed" lets every operation bring its own.
    """
    rng = random.Random(seed)
    mixed = rule == "mixed"
    drawn = World([], [])
    for number in range(worlds):
        size = rng.choice((1, 4, 12))
        world = random_world(
            rng,
            n_operations=size,
            n_events=3 * size,
            n_keys=rng.choice((1, 2, 4)),
            max_keys=3 if several else 1,
            rules=RULES if mixed else (rule,),
            kinds=kinds,
            duplicates=duplicates,
            spoiled=spoiled and rng.random() < 0.5,
            keyless=rng.random() < 0.5,
            extremes=extremes and rng.random() < 0.5,
            numbers=numbers,
        )
        for mine, rows in zip(drawn, world, strict=True):
            mine += [renamed(row, f"{number}/") for row in rows]
    if mixed:
        return rng, drawn, {}
    criterion = a_need(rng, rule, numbers)
    return rng, of_one_rule(drawn, criterion), criterion


def a_need(rng: random.Random, rule: str, numbers: str = "double") -> dict[str, Any]:
    """A criterion of that rule; it has a need, also where its rule reads none."""
    need = rng.choice(needs_of(rule, NUMBERS[numbers]))
    return {"rule": rule, "need": 1.0 if need is None else need}


def of_one_rule(world: World, criterion: Mapping[str, Any]) -> World:
    """The world under one criterion: a row whose fault was its rule would be sound, and its operation's second."""
    rows = [{**row, **criterion, "level": None} for row in world.operations]
    return World([row for row in rows if "spoiled" not in row["row"] or why_operation_rejected(row)], world.events)


def renamed(row: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The row with its names in a world of their own."""
    names = {name: prefix + row[name] for name in NAMED if row.get(name) is not None}
    if row.get("keys") is not None:
        names["keys"] = [None if key is None else prefix + key for key in row["keys"]]
    if isinstance(row.get("level"), dict):
        names["level"] = {prefix + key: need for key, need in row["level"].items()}
    return {**row, **names}


def on_time(rng: random.Random, world: World, lookback_us: int) -> list[Batch]:
    """The world in micro-batches, some or many, each side with or without a delay."""
    return splits(
        rng,
        *world,
        rng.choice((1, 3, 9)),
        operations_delay_us=rng.choice((0, 3 * STEP_US)),
        events_delay_us=rng.choice((0, 3 * STEP_US)),
        lookback_us=lookback_us,
    )


def delayed(rng: random.Random, batches: list[Batch], share: float) -> list[Batch]:
    """The micro-batches with some of their rows come later, many of them behind the watermark by then."""
    moved = [Batch([], [], batch.watermark_ms) for batch in batches]
    for number, batch in enumerate(batches):
        for side, rows in enumerate((batch.operations, batch.events)):
            for row in rows:
                later = moved[rng.randrange(number, len(batches)) if rng.random() < share else number]
                (later.events if side else later.operations).append(row)
    return moved


def spec_of(criterion: dict[str, Any], **others: Any) -> EngineSpec:
    """An engine that reads all there is."""
    rule = Criterion(criterion["rule"], criterion["need"]) if criterion else ByRow("rule", "need", "levels")
    return EngineSpec(rule, operation_ids=True, event_ids=True, **others)


REASONS = {
    "already_ended": "already ended",
    "not_taken": "not taken",
    "past_deadline": "past deadline",
    "no_such_operation": "no such operation",
    "null_key": f"rejected, {EventRejection.NULL_KEY.reason}",
    "null_time": f"rejected, {EventRejection.NULL_TIME.reason}",
    "bad_value": f"rejected, {EventRejection.BAD_VALUE.reason}",
    "bad_extension": f"rejected, {EventRejection.BAD_EXTENSION.reason}",
    "operation_alone": f"rejected, {EventRejection.OPERATION_ALONE.reason}",
    "no_time": f"rejected, {EventRejection.AT_NO_TIME.reason}",
}
"""How the engine writes what the oracle says of an event, under ``orphans="all"``."""


FAULTS = {
    "null_id": OperationRejection.NULL_ID,
    "null_keys": OperationRejection.NO_KEYS,
    "null_key": OperationRejection.NULL_KEY,
    "null_created": OperationRejection.NULL_CREATED,
    "null_deadline": OperationRejection.NULL_DEADLINE,
    "no_time": OperationRejection.CREATED_AT_NO_TIME,
    "deadline_before_created": OperationRejection.DEADLINE_BEFORE_CREATED,
    "unknown_rule": OperationRejection.UNKNOWN_RULE,
    "bad_need": OperationRejection.NO_NEED,
}
"""The engine's reasons of REJECTED, by what the oracle says of an operation."""


WHYS: dict[str | None, str | None] = {
    None: None,
    "duplicate": DUPLICATE_REASON,
    "failed": RESOLVED[Status.FAILED][0],
    "cancelled": RESOLVED[Status.CANCELLED][0],
    **{kind: why.reason for kind, why in FAULTS.items()},
}
"""How the engine writes what the oracle says of an operation."""


def reasons(outcomes: list[dict[str, Any]], several: bool) -> Counter[tuple[str, str | None]]:
    """Rows with the reasons of their outcomes, as the engine writes them; the one key may be null and not missing."""
    whys = WHYS if several else {**WHYS, "null_keys": WHYS["null_key"]}
    return Counter((row["row"], row["reason"] if "reason" in row else whys[row["reason_kind"]]) for row in outcomes)


def split_orphans(
    outcomes: list[dict[str, Any]],
) -> tuple[list[dict[str, Any]], Counter[tuple[int | None, str]]]:
    """Outcomes of operations, and ORPHANs as (time, reason)."""
    orphans: Counter[tuple[int | None, str]] = Counter()
    for outcome in (outcome for outcome in outcomes if outcome["status"] == "ORPHAN"):
        event, at, reason = outcome.get("row"), outcome["resolved_at"], outcome.get("reason")
        if isinstance(event, dict):
            named = "" if event["operation_id"] is None else f" for operation {event['operation_id']}"
            key = "null" if event["key"] is None else event["key"]
            why = REASONS.get(outcome["reason_kind"])
            told = "found no operation pending" if why is None else f"counted for no operation: {why}"
            reason = f"{event['kind']} on key {key}{named} {told}"
        orphans[at if at is None or isinstance(at, int) else microseconds(at), str(reason)] += 1
    return [outcome for outcome in outcomes if outcome["status"] != "ORPHAN"], orphans


class OnTime(NamedTuple):
    """Worlds whose rows are all on time, and what the oracle says of them."""

    rng: random.Random
    world: World
    spec: EngineSpec
    batches: list[Batch]
    expected: list[dict[str, Any]]
    """Outcomes of operations."""
    unheard: Counter[tuple[int | None, str]]
    """ORPHANs."""


def needs_as(world: World, of: type) -> World:
    """The world with its needs and levels as numbers of another type than its values have."""

    def other(number: Any) -> Any:
        if isinstance(number, dict):
            return {key: other(level) for key, level in number.items()}
        return None if number is None else of(number)

    return World(
        [{**op, "need": other(op["need"]), "level": other(op["level"])} for op in world.operations], world.events
    )


def draw_on_time(
    rule: str, seed: int, several: bool, one_shard: bool, controlled: bool, worlds: int, numbers: str = "double"
) -> OnTime:
    """Worlds of one rule in some order and split, with or without a lookback and ORPHANs, of numbers of one type."""
    kinds = KINDS if controlled else COMPLETE_ONLY
    rng, world, criterion = draw(seed, rule, several, kinds=kinds, worlds=worlds, numbers=numbers)
    if rng.random() < 0.3:
        of = rng.choice(BESIDE[numbers])
        world, criterion = needs_as(world, of), {**criterion, "need": of(criterion["need"])} if criterion else {}
    lookback_us = rng.choice((0, 0, STEP_US, 4 * STEP_US))
    orphans: Orphans = ORPHANS[seed % 2] if not several or one_shard else "none"
    expected, unheard = split_orphans(
        decide(
            *world,
            doubles=TYPES[numbers] == "double",
            whole_operations=several,
            criterion=criterion,
            lookback_us=lookback_us,
            orphans=orphans,
        )
    )
    spec = spec_of(criterion, final=True, lookback_us=lookback_us, orphans=orphans, number=TYPES[numbers])
    if not controlled and rng.random() < 0.3:
        spec = replace(spec, control_events=False)
    return OnTime(rng, world, spec, on_time(rng, world, lookback_us), expected, unheard)


NOTES = (None, "x", "y", "why")


def noted(rng: random.Random, world: World) -> World:
    """The world with a column of its own on each event: deliveries of one event may differ in it."""
    return World(world.operations, [{**event, "note": rng.choice(NOTES)} for event in world.events])


def carrying(spec: EngineSpec, most: int, largest: bool = False) -> EngineSpec:
    """The spec with values and notes of events in its outcomes."""
    columns = pa.schema([pa.field("value", pa.float64()), pa.field("note", pa.string())])
    order: Any = "value" if largest else "time"
    return replace(spec, event_columns=columns, evidence=Carried(True, True, most), evidence_order=order)


def named(event: dict[str, Any] | None) -> dict[str, Any] | None:
    """An event without its id where it has none: where the query has no ids, there is no field for it."""
    return None if event is None else {name: event[name] for name in event if (name, event[name]) != ("event_id", None)}


def told(outcomes: Rows) -> Counter[Any]:
    """Outcomes with their evidence, as a multiset."""
    return Counter(
        repr(
            (
                outcome["row"] if outcome["status"] != "ORPHAN" else None,
                outcome["status"],
                at if (at := outcome["resolved_at"]) is None or isinstance(at, int) else microseconds(at),
                outcome["matched"],
                named(outcome.get("event")),
                None if outcome.get("events") is None else [named(event) for event in outcome["events"]],
            )
        )
        for outcome in outcomes
    )
