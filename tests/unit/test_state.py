"""State as bytes: every kind of damage is refused by name, nothing passes in silence, and old state is still read.

`python -m tests.unit.test_state` writes the golden blob anew; do so only for a format version not yet released.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_purgatory.core.arrays.sorted_runs import GrowableArray
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.engine.outcomes import Tally
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.arrivals import read_events, read_operations
from spark_purgatory.core.spec.codes import EventRejection, OperationRejection
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.blob import MAGIC, VERSION, read_blob, read_metadata, write_blob
from spark_purgatory.core.state.engine_snapshot import restore, save
from spark_purgatory.core.state.export import history_of
from spark_purgatory.core.state.frame import HEADER_BYTES, write_frame
from spark_purgatory.errors import (
    BugError,
    StateMismatchError,
    StateVersionError,
)
from tests.conformance.kafka_purgatory import validate
from tests.support.engine_driver import NAMES, Rows, Shards, events_table, microseconds, operations_table
from tests.support.golden_states import GOLDEN, GOLDEN_SHARDS

CANARY = "canary"
Batch = tuple[Rows, Rows, int]


def op(id: str = "o", keys: str = "a", created: int = 10_000, deadline: int = 20_000, **others: Any) -> dict[str, Any]:
    return {"id": id, "keys": list(keys), "created": created, "deadline": deadline, "row": None, **others}


def ev(key: str = "a", time: int = 15_000, value: float = 1.0) -> dict[str, Any]:
    return {"key": key, "time": time, "value": value}


def steps(engine: EventTimePurgatory, batches: list[Batch], several: bool = True) -> list[dict[str, Any]]:
    outcomes = []
    for operations, events, watermark_ms in batches:
        ops = read_operations(operations_table(operations, several), engine.spec) if operations else None
        evs = read_events(events_table(events), engine.spec.criterion) if events else None
        tables = engine.step(ops, evs, watermark_ms)
        validate(engine.purgatory)
        outcomes += [row for table in tables for row in table.rename_columns(NAMES).to_pylist()]
    return outcomes


SPECS = {
    "any key": EngineSpec(criteria.any_key(), identity_width=2),
    "levels of several keys": EngineSpec(criteria.level(2), final=True),
    "sums, lookback, year 9999": EngineSpec(criteria.sum_at_least(3), lookback_us=5_000),
}
YEAR_9999_US = 253_402_300_799_999_999


@cache
def a_blob(name: str) -> bytes:
    """A shard's state with operations that wait, are held, have ended, and events; two micro-batches old."""
    shards = Shards(SPECS[name], several=name != "any key")
    last_us = YEAR_9999_US if "9999" in name else 90_000
    first = [op(f"{CANARY}-{i}", "abc"[i % 3 :], deadline=20_000 + 7_000 * i) for i in range(5)]
    shards.step([*first, op("far", "xy", deadline=last_us)], [ev("b", 12_000), ev("c", 30_000, 2.5)], 0)
    shards.step([op(f"{CANARY}-0", "abc"), op("late", "ab", 1_000, 60_000)], [ev("x", 13_500)], 14)
    blob = shards.blobs[0]
    assert blob is not None
    return blob


each_blob = pytest.mark.parametrize("name", SPECS)


@each_blob
def test_a_sound_blob_is_read_and_saved_again_to_the_byte(name: str) -> None:
    blob = a_blob(name)
    assert 1_000 < len(blob) < 4_000
    engine = restore(SPECS[name], blob, 1)
    assert engine.pending > 1 and len(engine.events.log) > 0
    assert any(CANARY in row["p0"] for row in engine.rows.payload.take().to_pylist())
    validate(engine.purgatory)
    assert save(engine, 1) == blob


@pytest.mark.parametrize("version", [0, VERSION + 1, 2**32 - 1])
def test_an_unknown_format_version_is_refused_by_name(version: int) -> None:
    blob = write_frame(MAGIC, version, a_blob("any key")[HEADER_BYTES:])
    with pytest.raises(StateVersionError, match=f"format version {version}, .* reads {VERSION}:"):
        restore(SPECS["any key"], blob, 1)


@pytest.mark.parametrize("shards", [2, 4096])
def test_another_number_of_shards_is_refused_with_both_numbers(shards: int) -> None:
    with pytest.raises(
        StateMismatchError, match=f"^shards: .* written with 1, but the query has {shards}: set shards=1"
    ):
        restore(SPECS["any key"], a_blob("any key"), shards)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"criterion": criteria.all_keys()}, ("criterion", "'count'", "'all_keys'")),
        ({"criterion": criteria.count(3)}, (r"criterion \(need\)", "2.0", "3.0")),
        ({"final": True}, ("emit", "'early'", "'final'")),
        ({"lookback_us": 6}, ("lookback", "'5 us'", "'6 us'")),
        ({"tick_ms": 1000}, ("tick", "'10 ms'", "'1000 ms'")),
        ({"identity_width": 2}, (r"id or keys \(identity_width\)", "1", "2")),
    ],
    ids=lambda part: part[0] if isinstance(part, tuple) else None,
)
def test_another_query_is_refused_with_both_values(change: dict[str, Any], named: tuple[str, str, str]) -> None:
    spec = EngineSpec(criteria.count(2), lookback_us=5, tick_ms=10)
    blob = save(EventTimePurgatory(spec), 1)
    restore(spec, blob, 1)
    field, then, now = named
    with pytest.raises(
        StateMismatchError, match=f"^{field}: .* written with {then}, but the query has {now}: .*{then}"
    ):
        restore(replace(spec, **change), blob, 1)


def test_writing_into_what_was_read_leaves_the_blob_as_it_was() -> None:
    blob = write_blob({}, {"small": np.arange(3), "large": np.zeros(10_000, np.int64)})
    before = bytes(bytearray(blob))
    for array in read_blob(blob)[1].values():
        GrowableArray(array).writable[:] = 7
    assert blob == before
    assert [array.max() for array in read_blob(blob)[1].values()] == [2, 0]


GOLDEN_SPEC = EngineSpec(
    criteria.sum_at_least(1),
    final=True,
    lookback_us=2_000,
    columns=pa.schema([("id", pa.string()), ("row", pa.string())]),
    sources=(("operations.id", ("id",)),),
    texts=(("operations.id", "string"), ("operations.keys", "bigint")),
)
GOLDEN_BEFORE: list[Batch] = [
    (
        [
            op("done", "a", 10_000, 30_000),
            op("held", "xy", 10_000, 60_000),
            op("half", "bc", 11_000, 80_000),
            op("last", "c", 11_000, 90_001, row=-1),
            op("far", "ä", 12_000, YEAR_9999_US),
            op("gone", "z", 10_000, 25_000, row=7),
        ],
        [ev("a", 12_000, 0.25), ev("c", 20_000, 0.5), ev("z", 7_999, 5.0)],
        0,
    ),
    ([op("done", "a", 13_000, 31_000), op("wrong", "a", 9_000, 8_000)], [ev("a", 14_000, 0.75)], 12),
    ([op("next", "ab", 29_000, 45_000)], [ev("x", 50_000, 1.0), ev("b", 55_000, 0.0)], 26),
]
GOLDEN_AFTER: list[tuple[Batch, list[str]]] = [
    # An id whose deadline lies ahead, and one whose deadline has passed.
    (([op("done", "a", 28_000, 40_000), op("gone", "z", 27_500, 40_000)], [], 27), []),
    (([], [ev("ä", 30_000, 1.0), ev("z", 26_000, 0.5)], 28), ["done DUPLICATE 28000 0"]),
    # b's event is late, and still completes what waits for it; what it completes with a's is held until 30.5 ms.
    (
        ([], [ev("b", 29_500, 0.5), ev("a", 30_500, 0.5)], 30),
        ["far COMPLETED 30000 1", "half COMPLETED 29500 2"],
    ),
    (([], [], 31), ["next COMPLETED 30500 2"]),
    (([], [], 40), ["gone EXPIRED 40000 1"]),
    (([], [ev("x", 30_000, 0.5)], 49), []),
    (([], [], 50), ["held COMPLETED 50000 2"]),
    (([], [], 90), []),
    (([], [], 91), ["last EXPIRED 90001 1"]),
]


BYSTANDERS = 700
"""Operations that wait all along: enough of them to lie in planes, since there are planes."""


def golden_engine() -> EventTimePurgatory:
    """The recipe: an engine with something of everything a state holds."""
    engine = EventTimePurgatory(GOLDEN_SPEC)
    bystanders = [op(f"order-{n}", "w", 10_000 + n, 10_000_000 + 77 * n) for n in range(900, 900 + BYSTANDERS)]
    assert steps(engine, [(bystanders, [], 0)]) == []
    outcomes = [f"{o['id']} {o['status']}" for o in steps(engine, GOLDEN_BEFORE)]
    assert sorted(outcomes) == ["done COMPLETED", "done DUPLICATE", "gone EXPIRED", "wrong REJECTED"], outcomes
    return engine


def fates(engine: EventTimePurgatory) -> list[list[str]]:
    """What leaves in each of the steps that follow."""
    return [
        sorted(
            f"{outcome['id']} {outcome['status']} {microseconds(outcome['resolved_at'])} {outcome['matched']}"
            for outcome in steps(engine, [batch])
        )
        for batch, _ in GOLDEN_AFTER
    ]


def test_the_golden_state_is_read_and_goes_on_as_the_recipes_engine_does() -> None:
    stored = GOLDEN.read_bytes()
    assert read_metadata(stored)["shards"] == GOLDEN_SHARDS
    expected = [sorted(leaves) for _, leaves in GOLDEN_AFTER]
    today = save(golden_engine(), GOLDEN_SHARDS)
    assert fates(golden_engine()) == expected, "the recipe"
    assert fates(restore(GOLDEN_SPEC, today, GOLDEN_SHARDS)) == expected, "written today"
    assert fates(restore(GOLDEN_SPEC, stored, GOLDEN_SHARDS)) == expected, "as stored"
    assert save(restore(GOLDEN_SPEC, stored, GOLDEN_SHARDS), GOLDEN_SHARDS) == today, "as stored, written today"


def test_a_state_from_before_a_reason_was_added_counts_it_from_now_on() -> None:
    older, now = Tally(rejections=[0, 2], event_rejections=[0]), Tally()
    older.rejections[max(OperationRejection)] += 1
    now.event_rejections[-1] += 1
    together = history_of([{"rejections": [0, 2], "event_rejections": [0]}, vars(older), vars(now)])
    assert together["rejections"] == [0, 4, *[0] * (len(OperationRejection) - 3), 1]
    assert together["event_rejections"] == [*[0] * (len(EventRejection) - 1), 1]


def test_the_golden_state_holds_something_of_everything() -> None:
    engine = restore(GOLDEN_SPEC, GOLDEN.read_bytes(), GOLDEN_SHARDS)
    timer = engine.purgatory.timer
    assert engine.pending == 5 + BYSTANDERS and engine.purgatory.ended == 3
    assert len(engine.events.log) > 3 and len(engine.deduplication.ids) == 7 + BYSTANDERS
    assert timer.size == len(timer.entries) == 5 + BYSTANDERS
    assert engine.outcomes.tally.by_status == [1, 1, 0, 0, 1, 1, 0]
    with pytest.raises(BugError):
        engine.outcomes.tally.received += 1
        engine.step(None, None, 26)


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_bytes(save(golden_engine(), GOLDEN_SHARDS))
    print(f"{GOLDEN}: {GOLDEN.stat().st_size} bytes")
