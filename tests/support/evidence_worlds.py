"""Worlds whose outcomes carry events."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa

from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.spec.engine_spec import Evidence as Carried
from tests.support.engine_driver import Rows, microseconds
from tests.support.worlds import World

NOTES = (None, "x", "y", "why")


def noted(rng: random.Random, world: World) -> World:
    """The world with a column of its own on each event: deliveries of one event may differ in it."""
    return World(world.operations, [{**event, "note": rng.choice(NOTES)} for event in world.events])


def carrying(spec: EngineSpec, most: int, largest: bool = False) -> EngineSpec:
    """The spec with values and notes of events in its outcomes."""
    columns = pa.schema([pa.field("value", pa.float64()), pa.field("note", pa.string())])
    return replace(spec, event_columns=columns, evidence=Carried(True, True, most, largest))


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
