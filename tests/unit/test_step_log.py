"""Entries and heads of a shard's log as bytes, and what a log is under another query than the one that wrote it.

`python -m tests.unit.test_step_log` writes the golden files anew; do so only for a format version not yet released.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state import shard_head, step_log
from spark_purgatory.core.state.engine_snapshot import inspect, restore, save
from spark_purgatory.core.state.frame import HEADER_BYTES, write_frame
from spark_purgatory.core.state.shard_head import ShardHead, read_head, write_head
from spark_purgatory.core.state.step_log import (
    ShardState,
    Step,
    digest,
    load_engine,
    read_entry,
    take_step,
    write_entry,
)
from spark_purgatory.errors import StateCorruptError, StateVersionError
from spark_purgatory.spark.host.exchange import to_blob
from tests.conformance.kafka_purgatory import validate
from tests.support.engine_driver import events_table, from_blob, operations_table, outcome_rows
from tests.support.payload_states import delivered, expired, spec_of

DATA = Path(__file__).resolve().parents[1] / "data"
GOLDEN_ENTRY, GOLDEN_HEAD = DATA / "log_entry_v1.bin", DATA / "shard_head_v1.bin"

STEP = Step(1_234, [b"operations", b""], [b"events"])
HEAD = ShardHead(
    token="0a" * 16,
    shard_id="0b" * 16,
    holder="/tmp/a/1-2.socket",
    shards=3,
    spec_digest="0c" * 16,
    step_version=1,
    deadline_is_sum=True,
    first_entry=7,
    next_entry=9,
    log_bytes=123,
    snapshot_bytes=456,
    timer_ms=789,
    gauges={"oldest_us": None, "next_due_ms": 789, "watched": 2, "clock_delay_ms": 0},
    tally={"received": 3, "by_status": [0, 1, 0, 0, 0, 0, 0]},
)

FORMATS: dict[str, tuple[bytes, Callable[[bytes], Any], bytes, str]] = {
    "entry": (write_entry(STEP), read_entry, step_log.MAGIC, "an entry of a shard's log"),
    "head": (write_head(HEAD), read_head, shard_head.MAGIC, "the head of a shard's state"),
}
EVERY_FORMAT = pytest.mark.parametrize("name", FORMATS)


@pytest.mark.parametrize(
    "step",
    [
        STEP,
        Step(0),
        Step(-(2**63)),
        Step(2**63 - 1, [], [b"e"]),
        Step(5, [b"o" * 100_000] * 3),
        Step(5, [bytes(range(256)) * 40], [b"", b"", b"x"]),
    ],
    ids=["both sides", "nothing", "least watermark", "greatest watermark", "large", "empty blobs"],
)
def test_an_entry_is_the_step_that_it_was_written_from(step: Step) -> None:
    assert read_entry(write_entry(step)) == step
    assert read_entry(bytes(bytearray(write_entry(step)))) == step


def test_a_head_of_a_later_release_with_a_field_more_is_read() -> None:
    head = shard_head.json.dumps({**asdict(HEAD), "of_a_later_release": [1]}).encode()
    assert read_head(write_frame(shard_head.MAGIC, 1, head)) == HEAD


def a_state() -> bytes:
    """A shard's state, in which an operation waits."""
    engine = EventTimePurgatory(GOLDEN_SPEC)
    take_step(engine, golden_step())
    return save(engine, 1)


def damageable(name: str) -> tuple[bytes, Callable[[bytes], Any], str]:
    """A file, its reader, and what errors call it; a state has a header of its own."""
    if name == "state":
        return a_state(), inspect, "a shard's state"
    data, read, _, what = FORMATS[name]
    return data, read, what


DAMAGEABLE = pytest.mark.parametrize("name", [*FORMATS, "state"])


@DAMAGEABLE
def test_every_flipped_bit_is_refused_by_name(name: str) -> None:
    data, read, what = damageable(name)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StateCorruptError, match=what):
            read(bytes(damaged))


@DAMAGEABLE
def test_every_truncation_and_everything_appended_is_refused_by_name(name: str) -> None:
    data, read, what = damageable(name)
    for length in range(len(data)):
        with pytest.raises(StateCorruptError, match=rf"{what}.*truncated"):
            read(data[:length])
    with pytest.raises(StateCorruptError, match=rf"{what}.*damaged"):
        read(data + b"\0")


def test_lengths_that_do_not_add_up_and_a_head_without_its_fields_are_refused() -> None:
    body = step_log.COUNTS.pack(5, 1, 0) + struct.pack("<Q", 99)
    coded = struct.pack("<Q", len(body)) + step_log.CODEC.compress(body, asbytes=True)
    with pytest.raises(StateCorruptError, match="its lengths add up to"):
        read_entry(write_frame(step_log.MAGIC, step_log.VERSION, coded))
    with pytest.raises(StateCorruptError, match="the head of a shard's state lacks fields"):
        read_head(write_frame(shard_head.MAGIC, shard_head.VERSION, b"{}"))


def test_a_head_alone_has_counts_a_size_and_a_limit_of_entries_and_no_state() -> None:
    alone = ShardState(None, write_head(HEAD))
    assert alone.metadata() == {"tally": HEAD.tally, "gauges": HEAD.gauges}
    assert alone.size == len(write_head(HEAD)) + HEAD.snapshot_bytes + HEAD.log_bytes
    assert [replace(HEAD, next_entry=7 + n).wants_snapshot(1) for n in (159, 240)] == [False, True]
    assert ShardState(b"abc").size == 3
    assert ShardState(a_state(), write_head(HEAD)).metadata()["tally"] == HEAD.tally, "the snapshot's is older"
    with pytest.raises(StateCorruptError, match="has a head but no snapshot, so files are missing"):
        alone.blob()


@EVERY_FORMAT
@pytest.mark.parametrize("version", [0, 2, 2**32 - 1])
def test_an_unknown_version_is_refused_with_both_versions(name: str, version: int) -> None:
    data, read, magic, what = FORMATS[name]
    other = write_frame(magic, version, data[HEADER_BYTES:])
    with pytest.raises(StateVersionError, match=rf"{what} has format version {version}, .* reads 1: run the release"):
        read(other)


GOLDEN_SPEC = EngineSpec(criteria.count(2), identity_width=2)
GOLDEN_OPERATIONS = [
    {"id": f"o{i}", "keys": [f"k{i % 2}"], "created": 10_000, "deadline": 20_000 + i, "row": f"row {i}"}
    for i in range(3)
]
GOLDEN_EVENTS = [{"key": "k0", "time": 15_000 + i, "value": 1.0} for i in range(2)]


def golden_step() -> Step:
    """A step of each kind of rows, the events in two blobs."""
    operations = bytes(to_blob(operations_table(GOLDEN_OPERATIONS, several=False)))
    return Step(5, [operations], [bytes(to_blob(events_table([event]))) for event in GOLDEN_EVENTS])


def test_the_golden_entry_is_read_and_is_the_step_that_it_was() -> None:
    step, expected = read_entry(GOLDEN_ENTRY.read_bytes()), golden_step()
    assert step.watermark_ms == expected.watermark_ms
    assert [from_blob(blob) for blob in step.operations] == [from_blob(blob) for blob in expected.operations]
    assert [from_blob(blob) for blob in step.events] == [from_blob(blob) for blob in expected.events]
    engine = EventTimePurgatory(GOLDEN_SPEC)
    left = [row for batch in take_step(engine, step) for row in outcome_rows(batch)]
    assert sorted((row["row"], row["status"]) for row in left) == [("row 0", "COMPLETED"), ("row 2", "COMPLETED")]
    assert engine.pending == 1


def test_the_golden_head_is_read() -> None:
    assert read_head(GOLDEN_HEAD.read_bytes()) == HEAD


def logged(spec: EngineSpec, steps: list[Step], snapshot_after: int = 1) -> tuple[ShardHead, bytes, list[bytes]]:
    """(head, snapshot, entries) of a shard that was saved after so many steps."""
    engine = EventTimePurgatory(spec)
    for step in steps[:snapshot_after]:
        take_step(engine, step)
    entries = [write_entry(step) for step in steps[snapshot_after:]]
    head = ShardHead("t", "s", "", 1, digest(spec), step_log.STEP_VERSION, spec.deadline_is_sum, 3, 3 + len(entries))
    return head, save(engine, 1), entries


def never_logged(spec: EngineSpec, steps: list[Step]) -> bytes:
    """The state after the steps as a snapshot of its own."""
    engine = EventTimePurgatory(spec)
    for step in steps:
        take_step(engine, step)
    return save(engine, 1)


def golden_steps() -> list[Step]:
    """A step, and an event and a time-out later."""
    event = bytes(to_blob(events_table([{"key": "k1", "time": 16_000, "value": 1.0}])))
    return [golden_step(), Step(17, [], [event]), Step(18)]


@pytest.mark.parametrize("snapshot_after", range(4))
def test_a_log_is_loaded_wherever_the_snapshot_was_taken(snapshot_after: int) -> None:
    told = (("operations.id", ("id",)),), (("operations.id", "bigint"),), "Asia/Tokyo"
    spec = replace(GOLDEN_SPEC, **dict(zip(("sources", "texts", "zone"), told, strict=True)))
    head, snapshot, entries = logged(spec, golden_steps(), snapshot_after)
    expected = never_logged(spec, golden_steps())
    assert save(load_engine(spec, 1, head, snapshot, entries), 1) == expected
    assert step_log.merged(head, snapshot, entries) == expected, "so that it is compared with another query's settings"


def test_entries_that_are_missing_or_too_many_are_refused_with_both_numbers() -> None:
    head, snapshot, entries = logged(GOLDEN_SPEC, golden_steps())
    for now in (GOLDEN_SPEC, replace(GOLDEN_SPEC, max_pending=5)):
        for given in (entries[:1], [*entries, entries[0]], []):
            said = f"log has {len(given)} entries, but 2 by its head"
            with pytest.raises(StateCorruptError, match=said):
                load_engine(now, 1, head, snapshot, given)


def test_a_log_of_steps_of_another_version_is_refused_and_a_snapshot_alone_is_not() -> None:
    head, snapshot, entries = logged(GOLDEN_SPEC, golden_steps())
    for now in (GOLDEN_SPEC, replace(GOLDEN_SPEC, max_pending=5)):
        refused = rf"step version 7, but .* reads version {step_log.STEP_VERSION}: run the release"
        with pytest.raises(StateVersionError, match=refused):
            load_engine(now, 1, replace(head, step_version=7), snapshot, entries)
        empty = replace(head, step_version=7, next_entry=head.first_entry)
        assert load_engine(now, 1, empty, snapshot, []).pending == 1


def test_a_sum_that_did_not_fit_is_rejected_in_the_replay_as_it_was() -> None:
    """Whether deadlines are sums is in no snapshot, so it is in the head."""
    then = replace(GOLDEN_SPEC, deadline_is_sum=True)
    never = [{**GOLDEN_OPERATIONS[0], "id": "never", "keys": ["other"], "deadline": 2**63 - 1}]
    steps = [golden_step(), Step(6, [bytes(to_blob(operations_table(never, several=False)))])]
    for now in (then, replace(then, max_pending=7), replace(GOLDEN_SPEC, max_pending=7)):
        assert load_engine(now, 1, *logged(then, steps)).pending == 1
    assert load_engine(replace(then, max_pending=7), 1, *logged(GOLDEN_SPEC, steps)).pending == 2


STRING, LONG = pa.string(), pa.int64()
ID, KEY, CITY, N = ("id", STRING), ("key", STRING), ("city", STRING), ("n", pa.int32())
PLAYED = (("id", "id"), ("keys", "key"))
PLACE = ("place", pa.struct([("x", pa.int32()), ("y", pa.float32())]))
WIDE_PLACE = ("place", pa.struct([("y", pa.float64()), ("x", LONG), ("z", STRING)]))
EVOLUTIONS: dict[str, tuple[list[Any], list[Any], dict[str, Any]]] = {
    "the same": ([ID, KEY, CITY, N], [ID, KEY, CITY, N], {"max_pending": 500}),
    "widened": ([ID, KEY, CITY, N], [ID, KEY, CITY, ("n", LONG)], {}),
    "given up": ([ID, KEY, CITY], [ID, KEY, ("town", STRING)], {"removed_columns": ("city",)}),
    "all at once": ([ID, KEY, CITY, N, PLACE], [WIDE_PLACE, ("n", LONG), KEY, ID, ("more", pa.bool_())], {}),
}


def rows_of(numbers: range) -> list[dict[str, Any]]:
    rows = []
    for i in numbers:
        texts = dict.fromkeys(("city", "City", "town"), f"c{i}" if i % 3 else None)
        place = {"x": i, "y": i / 2, "z": f"z{i}"}
        rows.append({"id": f"o{i}", "key": f"k{i}", **texts, "n": -i, "place": place, "more": i % 2 == 0})
    return rows


def evolving_steps(spec: EngineSpec, at_first: int) -> list[Step]:
    """So many operations, more of them, events that complete two, nothing, and the last."""
    parts = [range(at_first), range(10, 14), range(14, 18), range(20, 21)]
    blobs = [bytes(to_blob(delivered(rows_of(part), spec))) for part in parts]
    completed = [{"key": f"k{i}", "time": 11_000 + again, "value": 1.0} for i in (0, 11) for again in range(2)]
    events = bytes(to_blob(events_table(completed)))
    first = Step(0, blobs[:1] if at_first else [])
    return [first, Step(1, blobs[1:3]), Step(2, [], [events]), Step(3), Step(4, blobs[3:])]


@pytest.mark.parametrize("at_first", [0, 5], ids=["nothing waits in the snapshot", "five wait in the snapshot"])
@pytest.mark.parametrize("plays", [True, False], ids=["roles", "no roles"])
@pytest.mark.parametrize("name", EVOLUTIONS)
def test_a_log_of_other_columns_is_loaded_as_a_snapshot_of_them_is(name: str, plays: bool, at_first: int) -> None:
    columns_then, columns_now, others = EVOLUTIONS[name]
    played = PLAYED if plays else ()
    then = spec_of(pa.schema(columns_then), *played)
    now = spec_of(pa.schema(columns_now), *played, **others)
    steps = evolving_steps(then, at_first)
    loaded = load_engine(now, 1, *logged(then, steps))
    validate(loaded.purgatory)
    expected = restore(now, never_logged(then, steps), 1)
    assert loaded.pending == expected.pending == at_first + 9 - (2 if at_first else 1)
    again = evolving_steps(now, 0)[-1:]
    assert save(loaded, 1) == save(expected, 1)
    for engine in (loaded, expected):
        take_step(engine, replace(again[0], watermark_ms=5))
    assert expired(loaded) == expired(expected)


if __name__ == "__main__":
    GOLDEN_ENTRY.write_bytes(write_entry(golden_step()))
    GOLDEN_HEAD.write_bytes(write_head(HEAD))
