"""Events that counted for no operation, by hand: `orphans="all"` (semantics 4.7 to 4.9).

Operations are called o, wait for a, and live from 10 ms to 20 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_purgatory.config import Completions, Operations, PurgatoryOptions
from spark_purgatory.core.engine.shard_events import shown
from spark_purgatory.core.events.control_log import pair_of, split_pairs
from spark_purgatory.core.events.event_log import FORGET_FLOOR
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.codes import EventRejection
from spark_purgatory.core.spec.engine_spec import EngineSpec, spec_of
from spark_purgatory.core.state.engine_snapshot import restore
from spark_purgatory.errors import BugError, ConfigError, StateMismatchError
from tests.support.engine_driver import END_MS, Shards, microseconds
from tests.support.operations import Row, ev, op

EARLY = EngineSpec(criteria.any_key(), orphans="all")
FINAL = replace(EARLY, final=True)
NAMED = replace(FINAL, operation_ids=True)
both = pytest.mark.parametrize("spec", [EARLY, FINAL], ids=["early", "final"])


def orphans(outcomes: Sequence[Row]) -> list[str]:
    """`ms: reason`, by time."""
    rows = [outcome for outcome in outcomes if outcome["status"] == "ORPHAN"]
    rows.sort(key=lambda row: 0 if row["resolved_at"] is None else microseconds(row["resolved_at"]))
    times = ["-" if row["resolved_at"] is None else f"{microseconds(row['resolved_at']) / 1000:g}" for row in rows]
    return [f"{time}: {row['reason']}" for time, row in zip(times, rows, strict=True)]


def why(outcomes: Sequence[Row]) -> list[str]:
    """`ms reason` without what says which event it was, by time."""
    return [
        line.partition(":")[0] + line.partition(" counted for no operation:")[2].partition(",")[0]
        for line in orphans(outcomes)
    ]


def at(*times_ms: float, key: str = "a") -> list[Row]:
    return [ev(key, int(ms * 1000)) for ms in times_ms]


@both
def test_the_completion_that_comes_behind_the_watermark_of_an_expired_operation_is_late(spec: EngineSpec) -> None:
    shards = Shards(spec)
    shards.run([([op()], [], 0), ([], [], 20)])
    outcomes = shards.step([], at(15), 20)
    assert orphans(outcomes) == ["15: complete on key a counted for no operation: late"]
    assert [row["late"] for row in outcomes] == [True]


def test_an_orphan_is_due_before_a_later_deadline() -> None:
    shards = Shards(EARLY)
    shards.step([op(deadline=90_000)], [ev("z", 15_000)], 12)
    assert shards.due_ms == [15]


def test_under_early_what_comes_after_the_outcome_was_emitted_came_after_the_end() -> None:
    outcomes = Shards(EARLY).run([([op()], at(15), 0), ([], at(12), 0), ([], [], END_MS)])
    assert [outcome["status"] for outcome in outcomes] == ["COMPLETED", "ORPHAN"]
    assert why(outcomes) == ["12 already ended"]
    # Under final 12 decides.
    outcomes = Shards(FINAL).run([([op()], at(15), 0), ([], at(12), 0), ([], [], END_MS)])
    assert why(outcomes) == ["15 already ended"]


def test_each_rejected_event_is_a_row_at_once_with_its_fault() -> None:
    spec = replace(NAMED, criterion=criteria.sum_at_least(2))
    events = [
        ev(None, 12_000, value=1.0),
        ev("a", None, value=1.0, operation_id="o"),
        ev(None, None, value=1.0),
        ev("a", 13_000, value=-1.0),
        ev("a", 14_000, value=1.0, kind="Cancel"),
        ev("a", 15_000, value=1.0, ahead=True),
        ev("a", -(2**63), value=1.0),
    ]
    outcomes = Shards(spec).step([], events, 13)
    reason = {rejection: f"counted for no operation: rejected, {rejection.reason}" for rejection in EventRejection}
    assert orphans(outcomes) == [
        f"-: complete on key a for operation o {reason[EventRejection.NULL_TIME]}",
        f"-: complete on key null {reason[EventRejection.NULL_KEY]}",
        f"-: complete on key a {reason[EventRejection.AT_NO_TIME]}",
        f"12: complete on key null {reason[EventRejection.NULL_KEY]}",
        f"13: complete on key a {reason[EventRejection.BAD_VALUE]}",
        f"14: event on key a {reason[EventRejection.UNKNOWN_KIND]}",
        f"15: complete on key a {reason[EventRejection.TIME_AHEAD]}",
    ]
    assert [row["late"] for row in sorted(outcomes, key=lambda row: str(row["resolved_at"]))] == [
        *(True, True, False, False),  # 12 to 15
        *(False, False, False),
    ]


def test_nothing_is_kept_once_the_watermark_has_passed_it() -> None:
    shards, n = Shards(EARLY), 3 * FORGET_FLOOR
    rows = [op(f"o{i}", [f"k{i}"], deadline=20_000 + i) for i in range(n)]
    events = [ev(f"k{i}", 15_000) for i in range(n)]
    shards.run([(rows, events, 0), ([], [ev(f"k{i}", 16_000 + i) for i in range(n)], 0)])
    engine = shards.engine(0)
    [ended] = engine.events.orphans.ended.logs.values()
    assert (len(engine.events.orphans), len(ended), engine.pending) == (n, n, 0)
    outcomes = shards.step([], [], 100)
    assert len(outcomes) == n and {row["reason"].partition(": ")[2] for row in outcomes} == {"already ended"}
    engine = shards.engine(0)
    assert (len(engine.events.orphans), engine.events.orphans.ended.logs, shards.due_ms) == (0, {}, [None])
    assert engine.events.orphans.past.logs == {}


@pytest.mark.parametrize("then", ["none", "control", "all"])
@pytest.mark.parametrize("now", ["none", "control", "all"])
def test_a_checkpoint_goes_on_with_the_setting_that_it_was_written_with(then: object, now: object) -> None:
    def spec(setting: object) -> EngineSpec:
        return replace(EARLY, orphans=setting, identity_width=2)  # type: ignore[arg-type]

    assert spec_of(spec(then).fingerprint()).orphans == then
    shards = Shards(spec(then))
    shards.step([op()], at(12, 25), 0)
    [blob] = shards.blobs
    assert blob is not None
    if then == now:
        assert restore(spec(now), blob, 1).spec.orphans == now
    else:
        with pytest.raises(StateMismatchError, match=f"orphans: the checkpoint was written with {then!r}.*{now!r}"):
            restore(spec(now), blob, 1)


def test_events_that_do_not_add_up_are_a_bug() -> None:
    shards = Shards(EARLY, restarts=None)
    shards.step([op()], at(12, 25), 0)
    engine = shards.engine(0)
    engine.outcomes.tally.events_counted -= 1
    with pytest.raises(BugError, match="events do not add up: 2 received, 0 counted, 0 orphans, 1 kept"):
        engine.step(None, None, 1)


@pytest.mark.parametrize("given", [False, True, "ALL", None, 1])
def test_another_setting_is_an_error_that_names_those_there_are(given: object) -> None:
    with pytest.raises(ConfigError, match=r"orphans=.* must be 'none' or 'control' or 'all'"):
        PurgatoryOptions(
            operations=Operations(id="id", keys="key", created="at", timeout="1 hour", watermark="0 seconds"),
            completions=Completions(key="key", time="at", watermark="0 seconds"),
            criterion=criteria.any_key(),
            orphans=given,  # type: ignore[arg-type]
        )


def test_pairs_of_id_and_key_come_apart_as_they_were_put_together() -> None:
    ids = pa.array([b"o", b"", b"1:2", b"\xff" * 12, b"x" * 1234])
    keys = pa.array([b"a", b"b:", b"", b":", b"y" * 99])
    for start in (0, 2, 5):
        apart = split_pairs(pair_of(ids, keys)[start:])
        assert [part.to_pylist() for part in apart] == [ids[start:].to_pylist(), keys[start:].to_pylist()]


def test_bytes_that_are_no_text_are_shown_escaped() -> None:
    assert shown(pa.array([b"pp\xffa", b"ppb", None]), 2).to_pylist() == ["\\xffa", "b", None]
    assert shown(pa.array(["ppä", None]), 2).to_pylist() == ["ä", None]
