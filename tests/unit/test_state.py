"""State as bytes: every kind of damage is refused by name, nothing passes in silence, and old state is still read.

`python -m tests.unit.test_state` writes the golden blob anew; do so only for a format version not yet released.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_purgatory.core.arrays.sorted_runs import GrowableArray
from spark_purgatory.core.arrays.value_column import MOST_CHUNKS
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.engine.outcomes import Tally
from spark_purgatory.core.export.put_together import history_of
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.arrivals import read_events, read_operations
from spark_purgatory.core.spec.codes import EventRejection, OperationRejection
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state import blob as state
from spark_purgatory.core.state import encodings as packing
from spark_purgatory.core.state.blob import HEADER, HEADER_BYTES, MAGIC, VERSION, read_blob, write_blob
from spark_purgatory.core.state.engine_snapshot import restore, save
from spark_purgatory.errors import (
    BugError,
    StateCorruptError,
    StateError,
    StateMismatchError,
    StateVersionError,
)
from tests.conformance.kafka_purgatory import validate
from tests.support.engine_driver import NAMES, Rows, Shards, events_table, microseconds, multiset, operations_table
from tests.support.golden_states import GOLDEN, GOLDEN_SHARDS
from tests.support.splits import splits
from tests.support.worlds import random_world

CANARY = "canary"
Batch = tuple[Rows, Rows, int]


def op(id: str = "o", keys: str = "a", created: int = 10_000, deadline: int = 20_000, **others: Any) -> dict[str, Any]:
    return {"id": id, "keys": list(keys), "created": created, "deadline": deadline, "row": None, **others}


def ev(key: str = "a", time: int = 15_000, value: float = 1.0) -> dict[str, Any]:
    return {"key": key, "time": time, "value": value}


def steps(engine: EventTimePurgatory, batches: list[Batch], several: bool = True) -> list[dict[str, Any]]:
    """Take micro-batches without any restart between them."""
    outcomes = []
    for operations, events, watermark_ms in batches:
        ops = read_operations(operations_table(operations, several), engine.spec) if operations else None
        evs = read_events(events_table(events), engine.spec.criterion) if events else None
        tables = engine.step(ops, evs, watermark_ms)
        validate(engine.purgatory)
        outcomes += [row for table in tables for row in table.rename_columns(NAMES).to_pylist()]
    return outcomes


# --- three real blobs -----------------------------------------------------------------------------

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


def refused(name: str, blobs: Iterator[bytes]) -> Counter[str]:
    """How many blobs were refused with which error. Anything but a StateError goes through to the test."""
    errors: Counter[str] = Counter()
    for blob in blobs:
        try:
            restore(SPECS[name], blob, 1)
        except StateError as error:
            errors[type(error).__name__] += 1
            assert CANARY not in str(error), "an error names no payload"
        else:
            errors["none"] += 1
    return errors


@each_blob
def test_a_sound_blob_is_read_and_saved_again_to_the_byte(name: str) -> None:
    blob = a_blob(name)
    assert 1_000 < len(blob) < 4_000
    engine = restore(SPECS[name], blob, 1)
    assert engine.pending > 1 and len(engine.events.log) > 0
    assert any(CANARY in row["p0"] for chunk in engine.rows.payload.chunks for row in chunk.to_pylist())
    validate(engine.purgatory)
    assert save(engine, 1) == blob


@pytest.mark.parametrize("several", [False, True], ids=["one key", "several keys"])
def test_a_state_has_few_chunks_however_many_micro_batches_it_is_old(several: bool) -> None:
    shards = Shards(EngineSpec(criteria.all_keys() if several else criteria.any_key()), several=several)
    for i in range(MOST_CHUNKS - 1):
        shards.step([op(f"{i}-{j}", "ab"[j:] if several else "a", deadline=90_000) for j in range(2)], [], 0)
    blob = shards.blobs[0]
    assert blob is not None
    engine = restore(shards.spec, blob, 1)
    columns = [engine.rows.payload, engine.purgatory.watchers.keys, *engine.deduplication.ids.columns]
    for column in columns:
        chunks = [len(chunk) for chunk in column.chunks]
        assert sum(chunks) >= 2 * (MOST_CHUNKS - 1)
        assert all(a > 2 * b for a, b in pairwise(chunks)), chunks


@each_blob
def test_every_truncation_is_refused_as_damage(name: str) -> None:
    blob = a_blob(name)
    assert refused(name, (blob[:end] for end in range(len(blob)))) == {"StateCorruptError": len(blob)}


@each_blob
def test_every_flip_of_a_single_bit_is_refused_as_damage(name: str) -> None:
    def flipped() -> Iterator[bytes]:
        blob = bytearray(a_blob(name))
        for place in range(len(blob)):
            for bit in range(8):
                blob[place] ^= 1 << bit
                yield bytes(blob)
                blob[place] ^= 1 << bit

    assert refused(name, flipped()) == {"StateCorruptError": 8 * len(a_blob(name))}


@each_blob
def test_bytes_written_over_cut_out_swapped_or_added_are_refused_as_damage(name: str) -> None:
    blob, rng = a_blob(name), random.Random(9)

    def damaged() -> Iterator[bytes]:
        yield from (blob + b"\0", b"\0" + blob, blob + blob, bytes(len(blob)), b"\xff" * len(blob))
        for _ in range(500):
            start, end = sorted(rng.sample(range(len(blob) + 1), 2))
            middle = (start + end) // 2
            for other in (
                blob[:start] + rng.randbytes(end - start) + blob[end:],
                blob[:start] + blob[end:],
                blob[:start] + blob[middle:end] + blob[start:middle] + blob[end:],
                blob[:start] + bytes(end - start) + blob[end:],
            ):
                if other != blob:
                    yield other

    errors = refused(name, damaged())
    assert set(errors) == {"StateCorruptError"} and errors.total() > 1500


@pytest.mark.parametrize("blob", [b"", b"S", MAGIC, MAGIC + bytes(HEADER_BYTES - 9)], ids=len)
def test_what_is_shorter_than_a_header_is_refused_with_its_length(blob: bytes) -> None:
    said = rf"state of {len(blob)} bytes is shorter than its header \(32\), so it was truncated: bring back .* 'state'"
    with pytest.raises(StateCorruptError, match=said):
        restore(SPECS["any key"], blob, 1)


def test_what_is_no_state_is_refused_without_a_word_of_it() -> None:
    with pytest.raises(
        StateCorruptError, match=r"state does not start with .*so it is damaged, or of another program"
    ) as told:
        restore(SPECS["any key"], b"O'SECRET" * 9, 1)
    assert "SECRET" not in str(told.value), "it may be what another query keeps of its rows"


@pytest.mark.parametrize("by", [-1, 1])
def test_a_body_of_another_length_is_refused_with_both_lengths(by: int) -> None:
    blob = a_blob("any key")
    length = len(blob) - HEADER_BYTES
    with pytest.raises(StateCorruptError, match=f"a body of {length + by} bytes, but {length} in its header, so"):
        restore(SPECS["any key"], (blob + b"x")[: len(blob) + by], 1)


# --- another query's state ------------------------------------------------------------------------


def with_header(blob: bytes, **fields: int) -> bytes:
    """The blob under another header, whose checksum is right."""
    magic, version, shards, length, checksum = HEADER.unpack_from(blob)
    head = HEADER.pack(magic, fields.get("version", version), fields.get("shards", shards), length, checksum)
    return head + struct.pack("<I", zlib.crc32(head)) + blob[HEADER_BYTES:]


@pytest.mark.parametrize("version", [0, VERSION + 1, 2**32 - 1])
def test_an_unknown_format_version_is_refused_by_name(version: int) -> None:
    blob = with_header(a_blob("any key"), version=version)
    with pytest.raises(StateVersionError, match=f"format version {version}, .* reads {VERSION}:"):
        restore(SPECS["any key"], blob, 1)


@pytest.mark.parametrize("shards", [0, 2, 4096])
def test_another_number_of_shards_is_refused_with_both_numbers(shards: int) -> None:
    with pytest.raises(
        StateMismatchError, match=f"^shards: .* written with 1, but the query has {shards or None}: set shards=1"
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


def test_limits_may_change_against_a_checkpoint() -> None:
    spec = SPECS["any key"]
    engine = restore(replace(spec, max_pending=1, max_state_bytes=1 << 20), a_blob("any key"), 1)
    assert engine.pending > 1


@pytest.mark.parametrize("wheel_size", [4, 10])
def test_another_wheel_size_is_refused_by_name(wheel_size: int) -> None:
    with pytest.raises(StateMismatchError, match="wheel_size"):
        restore(replace(SPECS["any key"], wheel_size=wheel_size), a_blob("any key"), 1)


def test_operations_with_a_column_more_than_the_checkpoint_has_are_refused_by_name() -> None:
    engine = restore(SPECS["any key"], a_blob("any key"), 1)
    rows = [op(f"new-{i}", "z", 90_000, 99_000) for i in range(9)]
    table = operations_table(rows, False).append_column("p2", pa.array([0.5] * 9))
    with pytest.raises(StateMismatchError, match="the checkpoint has columns of string, string, but the query"):
        engine.step(read_operations(table, engine.spec), None, 14)


# --- what comes back ------------------------------------------------------------------------------


def test_an_engine_that_has_seen_nothing_comes_back_and_works() -> None:
    for several in (False, True):
        engine = restore(SPECS["any key"], save(EventTimePurgatory(SPECS["any key"]), 1), 1)
        assert (engine.pending, engine.next_due_ms(), len(engine.events.log)) == (0, None, 0)
        outcomes = steps(engine, [([op()], [], 0), ([], [ev()], 0)], several)
        assert [outcome["status"] for outcome in outcomes] == ["COMPLETED"]


def test_an_engine_whose_every_operation_has_ended_comes_back_and_works() -> None:
    spec = SPECS["any key"]
    engine = EventTimePurgatory(spec)
    rows = [op(f"o{i}") for i in range(3000)]
    assert len(steps(engine, [(rows, [], 0), ([], [], 20)])) == 3000
    assert engine.purgatory.next_row == 0, "compacted to nothing"
    again = restore(spec, save(engine, 1), 1)
    assert save(again, 1) == save(engine, 1)
    assert [o["status"] for o in steps(again, [([op("p", "b", 30_000, 40_000)], [ev("b", 31_000)], 20)])] == [
        "COMPLETED"
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SPECS)
def test_restarting_in_every_step_changes_no_outcome(name: str, seed: int) -> None:
    rng = random.Random(seed)
    world = random_world(
        rng, n_operations=30, n_events=60, n_keys=5, rules=["any_key"], kinds=["complete"], spoiled=True
    )
    batches = [tuple(batch) for batch in splits(rng, world.operations, world.events, 6, lookback_us=5_000)]
    restarted = Shards(SPECS[name], several=True).run(batches)
    straight = steps(EventTimePurgatory(replace(SPECS[name], identity_width=1)), batches)
    assert multiset(restarted, *NAMES) == multiset(straight, *NAMES), f"seed {seed}"
    assert len(straight) >= 30


ROLES = (("id", 0), ("keys", 2), ("created_us", 3), ("deadline_us", 4))


def operations_by_payload(rows: Rows) -> pa.Table:
    """Operations of one key whose id, key and times are payload columns and come once."""
    table = operations_table(rows, several=False)
    times = [table[name].cast(pa.timestamp("us", "UTC")) for name in ("created_us", "deadline_us")]
    for name, column in zip(("p2", "p3", "p4"), (table["keys"], *times), strict=True):
        table = table.append_column(name, column)
    return table.drop_columns([name for name, _ in ROLES])


@pytest.mark.parametrize("seed", range(4))
def test_columns_that_the_payload_has_are_kept_once_and_change_no_outcome(seed: int) -> None:
    rng = random.Random(seed)
    world = random_world(rng, n_operations=40, n_events=50, n_keys=5, max_keys=1, rules=["any_key"], kinds=["complete"])
    spec = EngineSpec(criteria.count(2), final=seed % 2 == 0, lookback_us=5_000, identity_width=2)
    by_payload = replace(spec, roles=ROLES)
    blobs, outcomes = {}, dict[EngineSpec, list[dict[str, Any]]]()
    for operations, events, watermark_ms in splits(rng, world.operations, world.events, 5, lookback_us=5_000):
        for each in (spec, by_payload):
            engine = restore(each, blobs[each], 1) if each in blobs else EventTimePurgatory(each)
            table = operations_by_payload(operations) if each.roles else operations_table(operations, several=False)
            arrivals = read_operations(table, each) if operations else None
            happened = read_events(events_table(events), each.criterion) if events else None
            for batch in engine.step(arrivals, happened, watermark_ms):
                names = [name for name in batch.schema.names if name not in ("p2", "p3", "p4")]
                outcomes.setdefault(each, []).extend(batch.select(names).rename_columns(NAMES).to_pylist())
            validate(engine.purgatory)
            blobs[each] = save(engine, 1)
            assert save(restore(each, blobs[each], 1), 1) == blobs[each]
    assert multiset(outcomes[spec], *NAMES) == multiset(outcomes[by_payload], *NAMES), f"seed {seed}"
    assert len(outcomes[spec]) == 40
    kept = {each: [*arrays, *tables] for each in blobs for _, arrays, tables in [read_blob(blobs[each], 1)]}
    once = {"rows.created_us", "rows.deadline_us", "watch.keys"}
    assert once <= set(kept[spec]) and not once & set(kept[by_payload]), "kept twice"


def test_other_roles_than_the_checkpoints_are_refused_by_name() -> None:
    blob = save(EventTimePurgatory(replace(SPECS["any key"], roles=ROLES)), 1)
    with pytest.raises(
        StateMismatchError, match=r"operations.created: .* takes it from column 'p3', the query from an expression"
    ):
        restore(SPECS["any key"], blob, 1)


def test_a_blob_keeps_facts_arrays_and_tables() -> None:
    facts: dict[str, Any] = {"number": -(2**63), "text": "ä", "list": [1, 2.5, None]}
    arrays = {
        "longs": np.array([2**63 - 1, -(2**63)]),
        "flags": np.array([True, False, True]),
        "bytes": np.arange(5, dtype=np.uint8),
        "none": np.empty(0, np.float64),
        "every other": np.arange(10, dtype=np.int32)[::2],
    }
    batch = pa.record_batch({"x": pa.array([1, None, 3]), "y": pa.array(["a", None, "ä"])})
    tables = {"two": [batch, batch.slice(1)], "empty": [batch.slice(0, 0)]}
    got_facts, got_arrays, got_tables = read_blob(write_blob(facts, arrays, tables, 7), 7)
    assert got_facts == facts
    assert list(got_arrays) == list(arrays)
    for name, array in arrays.items():
        assert got_arrays[name].dtype == array.dtype and got_arrays[name].tolist() == array.tolist()
    assert {name: [b.to_pylist() for b in batches] for name, batches in got_tables.items()} == {
        name: [b.to_pylist() for b in batches] for name, batches in tables.items()
    }


def test_writing_into_what_was_read_leaves_the_blob_as_it_was() -> None:
    blob = write_blob({}, {"small": np.arange(3), "large": np.zeros(10_000, np.int64)}, {}, 1)
    before = bytes(bytearray(blob))
    for array in read_blob(blob, 1)[1].values():
        GrowableArray(array).writable[:] = 7
    assert blob == before
    assert [array.max() for array in read_blob(blob, 1)[1].values()] == [2, 0]


# --- format versions ------------------------------------------------------------------------------

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
    assert HEADER.unpack_from(stored)[:3] == (MAGIC, VERSION, GOLDEN_SHARDS)
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
    assert len(timer.entries.outlier_ticks) == 1 and len(timer.entries.near) == 4 + BYSTANDERS
    assert engine.outcomes.tally.by_status == [1, 1, 0, 0, 1, 1, 0]
    with pytest.raises(BugError):
        engine.outcomes.tally.received += 1
        engine.step(None, None, 26)


def test_the_golden_state_says_in_names_and_numbers_of_which_query_it_is() -> None:
    facts, _, _ = read_blob(GOLDEN.read_bytes(), GOLDEN_SHARDS)
    assert {name: facts[name] for name in ("columns", "roles", "sources", "texts", "event_columns", "event_value")} == {
        "columns": ["id", "row"],
        "roles": {},
        "sources": {"operations.id": ["id"]},
        "texts": {"operations.id": "string", "operations.keys": "bigint"},
        "event_columns": None,
        "event_value": False,
    }
    assert facts["spec"] == {
        "criterion": "sum_at_least",
        "need": 1.0,
        "emit": "final",
        "scale": None,
        "lookback_us": 2_000,
        "tick_ms": 1,
        "wheel_size": 20,
        "identity_width": 1,
        "operation_ids": False,
        "whole_operations": False,
        "event_ids": False,
        "orphans": "none",
        "key_prefix": 0,
    }


def test_the_golden_state_has_planes_of_numbers_and_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    planes = set()

    def join_bytes(stored: memoryview, count: int = 1) -> bytes | memoryview:
        planes.add(count)
        return packing.join_bytes(stored, count)

    monkeypatch.setattr(state, "join_bytes", join_bytes)
    restore(GOLDEN_SPEC, GOLDEN.read_bytes(), GOLDEN_SHARDS)
    # Of numbers, and of the letters of order-1000 and those after it.
    assert {1, 2, 4, 10} <= planes


@pytest.mark.parametrize("changed", [("SPLIT_FLOOR", 1 << 20), ("WIDEST", 1), ("DISTINCT", 65)], ids=str)
def test_planes_are_read_as_they_were_written_whatever_is_laid_out_so_today(
    monkeypatch: pytest.MonkeyPatch, changed: tuple[str, int]
) -> None:
    arrays = {"numbers": np.arange(20_000) ** 2 % 65_537, "letters": np.arange(5000).view("V10")}
    blob = write_blob({}, arrays, {}, 1)
    monkeypatch.setattr(packing, *changed)
    again = read_blob(blob, 1)[1]
    assert all(again[name].tobytes() == array.tobytes() for name, array in arrays.items())
    assert len(write_blob({}, arrays, {}, 1)) > len(blob), "laid out otherwise today"


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_bytes(save(golden_engine(), GOLDEN_SHARDS))
    print(f"{GOLDEN}: {GOLDEN.stat().st_size} bytes")
