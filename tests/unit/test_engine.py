"""The event-time engine, worked by hand, one sentence a test.

A stream is a list of micro-batches: the watermark in ms that it sees, its rows, and what must leave in it. Times of
rows are microseconds. Unless they say otherwise, operations are called o, wait for a, and live from 10 ms to 20 ms. An
outcome is written `o COMPLETED 15000`: id, status, resolved_at; `-` where it has none.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Sequence
from dataclasses import replace
from time import process_time

import pyarrow as pa
import pytest

from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.arrivals import read_events, read_operations
from spark_purgatory.core.spec.codes import EventRejection, OperationRejection
from spark_purgatory.core.spec.criteria import Criterion
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.engine_snapshot import restore, save
from spark_purgatory.errors import BugError, LimitError
from tests.conformance.kafka_purgatory import validate
from tests.support.engine_driver import END_MS, Shards, events_table, final, microseconds, operations_table
from tests.support.law_worlds import FAULTS
from tests.support.now_and_then import EVERY_CASE
from tests.support.operations import Row, ev, many_operations, op, play, written

ANY = EngineSpec(criteria.any_key())
HELD = final(ANY)


def engine_of(shards: Shards) -> EventTimePurgatory:
    """The first shard's, as its state has it; new where no row has come."""
    blob = shards.blobs[0]
    return EventTimePurgatory(shards.spec) if blob is None else restore(shards.spec, blob, shards.shards)


both = pytest.mark.parametrize("spec", [ANY, HELD], ids=["early", "final"])


def test_an_outcome_carries_the_payload_and_every_column() -> None:
    (outcome,) = play(
        ANY, (0, [op(keys="ab", row=7, deadline=9_000_000), ev("b", 2_513_999)], "o COMPLETED 2513999"), several=True
    )
    assert microseconds(outcome.pop("resolved_at")) == 2_513_999
    assert outcome == {
        "id": "o",
        "row": "7",
        "status": "COMPLETED",
        "wait_ms": 2_503,
        "matched": 1,
        "missing_keys": ["a"],
        "late": False,
        "reason": None,
    }


@both
@pytest.mark.parametrize("deadline", [10_000, 999_999, 1_000_000, 1_000_001, 1_500_000, 1_999_001, 2_000_000])
def test_a_coarse_tick_never_expires_early_and_at_most_a_tick_late(spec: EngineSpec, deadline: int) -> None:
    shards = Shards(replace(spec, tick_ms=1000))
    shards.step([op(deadline=deadline)], [], 0)
    due_ms, tick_end_ms = -(-deadline // 1000), -(-deadline // 1_000_000) * 1000
    offered = sorted({due_ms - 1, due_ms, due_ms + 1, tick_end_ms - 1, tick_end_ms, tick_end_ms + 1})
    left = {ms: shards.step([], [ev("b", ms * 1000)], ms) for ms in offered}
    (expired_ms,) = [ms for ms, outcomes in left.items() if outcomes]
    assert due_ms <= expired_ms <= tick_end_ms
    assert written(left[expired_ms][0]) == f"o EXPIRED {deadline}"


def test_with_a_coarse_tick_too_a_level_is_reached_when_it_was_whatever_else_is_forgotten() -> None:
    others = [ev("z", 701_000 + i, value=0.0) for i in range(1500)]
    play(
        replace(HELD, criterion=criteria.level(2), tick_ms=1000),
        (0, [op(created=100_000, deadline=5_000_000), ev(time=50_000, value=2.0)], ""),
        (50, [ev(time=600_000, value=3.0)], ""),
        (650, others, ""),
        (700, [ev("z", 703_000, value=0.0)], ""),
        (1000, [], "o COMPLETED 100000"),
    )


@both
def test_a_level_of_an_operation_behind_its_deadline_is_that_of_the_largest_value_whatever_is_forgotten(
    spec: EngineSpec,
) -> None:
    """The log still has the smaller one, which came in time."""
    events = [ev(time=3_000, value=5.0), ev(time=8_000, value=9.0)]
    late = op(created=1_000, deadline=4_000)
    play(replace(spec, criterion=criteria.level(5)), (0, events, ""), (20, [late], "o EXPIRED 4000"))


@pytest.mark.parametrize("time", [10_000, 400_000, 999_999])
def test_a_coarse_tick_holds_an_outcome_no_shorter_than_final_asks(time: int) -> None:
    spec = replace(HELD, tick_ms=1000)
    shards = Shards(spec)
    shards.step([op(deadline=5_000_000)], [ev(time=time)], 0)
    assert shards.step([], [], time // 1000 - 1) == []
    assert [written(outcome) for outcome in shards.step([], [], 1000)] == [f"o COMPLETED {time}"]


@both
def test_a_watermark_that_goes_back_is_not_heard(spec: EngineSpec) -> None:
    play(
        spec,
        (19, [op()], ""),
        (3, [op("p", created=19_001, deadline=19_500)], ""),
        (20, [], "o EXPIRED 20000, p EXPIRED 19500"),
    )


@both
@pytest.mark.parametrize(("created", "late"), [(12_000, True), (12_001, False)])
def test_an_operation_created_at_the_watermark_is_late_and_one_microsecond_after_it_is_not(
    spec: EngineSpec, created: int, late: bool
) -> None:
    (outcome,) = play(spec, (12, [op(created=created)], ""), (20, [], "o EXPIRED 20000"))
    assert outcome["late"] is late


@both
def test_late_events_are_counted(spec: EngineSpec) -> None:
    shards = Shards(spec)
    shards.step([op(deadline=90_000)], [ev("b", 1)], 0)
    shards.step([], [ev("b", 30_000), ev("b", 30_001), ev("b", 5), ev(None), ev("b", None)], 30)
    tally = engine_of(shards).outcomes.tally
    assert (tally.events_received, tally.events_rejected, tally.events_late) == (6, 2, 2)


BY_ROW = criteria.by_row("rule", "need", "levels")
REJECTED = [
    (op(created=-(2**63)), OperationRejection.CREATED_AT_NO_TIME),
    (op(ahead=True), OperationRejection.CREATED_AHEAD),
    (op(None, [], created=None, deadline=None, ahead=True), OperationRejection.NULL_ID),
    (op(created=None, deadline=None), OperationRejection.NULL_CREATED),
    (op(deadline=None, ahead=True), OperationRejection.NULL_DEADLINE),
    (op(rule="ANY_KEY"), OperationRejection.UNKNOWN_RULE),
    (op(rule="level", level={"a": math.nan}), OperationRejection.NO_NEED),
]


@both
@pytest.mark.parametrize(("operation", "why"), REJECTED)
def test_an_operation_is_rejected_with_the_first_of_its_faults(
    spec: EngineSpec, operation: Row, why: OperationRejection
) -> None:
    row = {"rule": "any_key", "need": None, "level": None, "row": 9, **operation}
    spec, name = replace(spec, criterion=BY_ROW), operation["id"]
    (outcome,) = play(spec, (0, [row, ev()], f"{name} REJECTED -"), (END_MS, [], ""), several=True)
    of_none = {"resolved_at": None, "wait_ms": None, "matched": 0, "missing_keys": None, "late": False}
    assert outcome == {"id": name, "row": "9", "status": "REJECTED", "reason": why.reason, **of_none}


def test_every_reason_of_rejection_is_tested() -> None:
    elsewhere = {OperationRejection.NONE, OperationRejection.DEADLINE_OVERFLOWS}  # a log of sums, `test_step_log`
    assert {*OperationRejection} - elsewhere == {why for _, why in REJECTED} | {*FAULTS.values()}


END_US = 2**63 - 1


@both
def test_a_wait_of_longer_than_half_of_all_time_is_exact_and_the_ends_of_time_are_rejected(spec: EngineSpec) -> None:
    early = op(created=-END_US, deadline=END_US - 2)
    (outcome,) = play(spec, (0, [early], ""), (END_MS, [], f"o EXPIRED {END_US - 2}"))
    assert outcome["wait_ms"] == (2 * END_US - 2) // 1000
    for created in (END_US, -END_US - 1):
        (outcome,) = play(spec, (0, [op(created=created, deadline=END_US)], "o REJECTED -"))
        assert outcome["reason"] == OperationRejection.CREATED_AT_NO_TIME.reason
        shards = Shards(spec)
        shards.step([], [ev(time=created)], 0)
        assert shards.tallies()[0].event_rejections[EventRejection.AT_NO_TIME] == 1


@both
def test_a_row_created_at_the_watermark_is_a_duplicate_at_once(spec: EngineSpec) -> None:
    play(
        spec,
        (0, [op()], ""),
        (15, [op(created=15_000, deadline=30_000)], "o DUPLICATE 15000"),
        (20, [], "o EXPIRED 20000"),
    )


@both
def test_an_event_is_kept_for_operations_to_come_until_the_watermark_reaches_it_and_the_lookback(
    spec: EngineSpec,
) -> None:
    spec = replace(spec, lookback_us=5_000)
    for watermark_ms, kept in ((14, True), (15, False)):
        shards = Shards(spec)
        shards.step([], [ev(time=10_000)], 0)
        shards.step([op(keys="b", created=1, deadline=5)], [], watermark_ms)
        assert (len(engine_of(shards).events.log) > 0) is kept


@pytest.mark.parametrize(
    ("spec", "criterion"), [(ANY, criteria.any_key()), (HELD, criteria.count(2))], ids=["any_key", "count, final"]
)
def test_state_stays_as_large_as_what_waits_while_operations_come_and_go(
    spec: EngineSpec, criterion: Criterion
) -> None:
    shards, sizes, decided = Shards(replace(spec, criterion=criterion)), list[int](), 0
    for turn in range(30):
        now = turn * 10_000
        rows = [op(f"o{turn}-{i}", f"{i % 7}", created=now + 10_000, deadline=now + 25_000) for i in range(300)]
        decided += len(shards.step(rows, [ev(str(i % 5), now + 10_000 + i) for i in range(300)], turn * 10))
        blob = shards.blobs[0]
        assert blob is not None
        sizes.append(len(blob))
    assert decided > 27 * 300
    assert max(sizes[15:]) <= 1.2 * max(sizes[:15]), sizes


@pytest.mark.parametrize("by", [-1, 1])
def test_a_row_lost_or_won_is_our_bug_and_says_so_with_the_numbers(by: int) -> None:
    shards = Shards(ANY)
    shards.step([op(), op("p"), op("p")], [], 0)
    engine = engine_of(shards)
    engine.outcomes.tally.received += by
    with pytest.raises(BugError, match=rf"^bug: operations do not add up: {3 + by} received, 1 decided, 2 pending"):
        engine.step(None, None, 1)


@both
@pytest.mark.parametrize(("waiting", "over"), [(4, False), (5, False), (6, True)], ids=["limit-1", "limit", "limit+1"])
@pytest.mark.parametrize("first", [0, 2])
def test_more_pending_operations_than_the_limit_are_refused_and_the_state_before_still_works(
    spec: EngineSpec, first: int, waiting: int, over: bool
) -> None:
    rows = [op(f"o{i}") for i in range(waiting)]
    shards = Shards(replace(spec, max_pending=5))
    shards.step([*rows[:first], op("gone", deadline=1), op("o0", created=None)], [], 0)
    before = shards.blobs[0]
    if over:
        with pytest.raises(
            LimitError,
            match=r"^max_pending_per_shard is 5, but 6 operations would wait in one shard\. Nothing was lost: use",
        ):
            shards.step(rows[first:], [], 0)
        assert shards.blobs[0] == before
        shards.step(rows[first:5], [], 0)
    else:
        shards.step(rows[first:], [], 0)
    assert engine_of(shards).pending == min(waiting, 5)
    assert len(shards.step([], [], 20)) == min(waiting, 5)


@pytest.mark.parametrize(("beside", "over"), [(-1, True), (0, False), (1, False)], ids=["limit-1", "limit", "limit+1"])
def test_more_bytes_of_state_than_the_limit_are_refused_and_the_state_before_still_works(
    beside: int, over: bool
) -> None:
    rows = [op(f"o{i}") for i in range(50)]
    measured = Shards(ANY)
    measured.step(rows[:1], [], 0)
    small = measured.blobs[0]
    measured.step(rows[1:], [ev("b")], 0)
    large = measured.blobs[0]
    assert small is not None and large is not None and len(small) + 100 < len(large)
    limit = len(large) + beside
    shards = Shards(replace(ANY, max_state_bytes=limit))
    shards.blobs[0] = small
    if over:
        named = f"^max_state_bytes_per_shard is {limit:,}, but .* 50 pending .* and 1 events has {len(large):,} bytes"
        with pytest.raises(LimitError, match=named):
            shards.step(rows[1:], [ev("b")], 0)
        assert shards.blobs[0] == small
        assert [written(outcome) for outcome in shards.step([], [], 20)] == ["o0 EXPIRED 20000"]
    else:
        shards.step(rows[1:], [ev("b")], 0)
        assert shards.blobs[0] == large


LAST = 2**63 - 1


def decided_at_the_end(spec: EngineSpec, operation: Row, events: Sequence[Row]) -> pa.Table:
    """Columns of the one outcome, not turned into datetimes, which end with the year 9999."""
    engine = EventTimePurgatory(spec)
    arrivals = read_operations(operations_table([operation], several=True), spec)
    batches = engine.step(arrivals, read_events(events_table(events), spec.criterion) if events else None, 0)
    batches += engine.step(None, None, END_MS)
    return pa.Table.from_batches(batches)


TIMES = {"year 9999": 253_402_300_799_999_999, "year 1582": -12_219_292_800_000_000, "the end": LAST - 10**6}


@both
@pytest.mark.parametrize("deadline", TIMES.values(), ids=TIMES)
def test_a_deadline_far_away_expires_nobody_else_and_stands_as_given(spec: EngineSpec, deadline: int) -> None:
    created = min(10_000, deadline)
    outcome = decided_at_the_end(spec, op(created=created, deadline=deadline), [])
    assert outcome["status"].to_pylist() == ["EXPIRED"]
    assert outcome["resolved_at"].cast(pa.int64()).to_pylist() == [deadline]
    assert outcome["wait_ms"].to_pylist() == [(deadline - created) // 1000]


@pytest.mark.parametrize(
    "criterion", [criteria.count(2), criteria.sum_at_least(2)], ids=lambda criterion: criterion.rule
)
def test_events_at_both_ends_of_time_are_counted(criterion: Criterion) -> None:
    events = [ev(time=-LAST + 5, value=1.0), ev(time=8 * 10**18, value=1.0)]
    outcome = decided_at_the_end(EngineSpec(criterion), op(created=-LAST, deadline=LAST), events)
    assert outcome["resolved_at"].cast(pa.int64()).to_pylist() == [8 * 10**18]


def test_many_operations_on_one_key_complete_in_bounded_time(capsys: pytest.CaptureFixture[str]) -> None:
    """At each commit a quarter of a million in a quarter of the time: what grows with their square takes minutes."""
    criterion = criteria.count(3)  # three times all are looked at
    spec, many, parts = EngineSpec(criterion), 1_000_000 if EVERY_CASE else 250_000, 4
    engine, blob, largest, left = EventTimePurgatory(spec), b"", 0, 0
    started = process_time()
    for part in range(parts):
        table = many_operations(part * many // parts, (part + 1) * many // parts)
        events = read_events(events_table([ev("cold", 11_000)]), criterion)
        left += sum(map(len, engine.step(read_operations(table, spec), events, part)))
        blob = save(engine, 1)
        engine, largest = restore(spec, blob, 1), max(largest, len(blob))
    assert (left, engine.pending) == (0, many)
    needed = [ev("hot", 11_000 + i) for i in range(int(criterion.need))]
    for event in needed:
        assert left == 0
        left += sum(map(len, engine.step(None, read_events(events_table([event]), criterion), parts)))
    blob = save(engine, 1)
    seconds = process_time() - started
    assert (left, engine.pending) == (many, 0)
    validate(engine.purgatory)
    assert seconds < 20 * many / 1_000_000
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    with capsys.disabled():
        print(
            f"\n{many:,} operations on one key, {criterion.rule}: {seconds:.1f} s, peak memory {peak_mb} MB, "
            f"state {largest:,} bytes, afterwards {len(blob):,}"
        )
