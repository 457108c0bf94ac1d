"""The benchmarks without Spark: the engine on workloads K and W, and its growth."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import engine_w, workload_w
from benchmarks.columns import Compared, engine, table_of
from benchmarks.engine_k import run_purgatory, run_wheel
from benchmarks.engine_w import HOSTS, run_steps, shard_steps
from benchmarks.growth import Driver, Point
from benchmarks.harness import WrongOutcomeError
from benchmarks.workload_k import WorkloadK, draw

pytestmark = pytest.mark.bench


@pytest.fixture(scope="module")
def workload() -> WorkloadK:
    return draw(20_000, 50)


def test_a_purgatory_restored_and_saved_each_step_ends_as_one_that_lives_on(workload: WorkloadK) -> None:
    lives_on, restored = run_purgatory(workload), run_purgatory(workload, saving=True)
    assert restored.ended == lives_on.ended
    assert restored.coding_s > 0 == lives_on.coding_s
    ended = np.count_nonzero(workload.event >= 0)
    assert (lives_on.ended.completed, lives_on.ended.expired) == (ended, len(workload) - ended)


def test_the_wheel_alone_expires_everything(workload: WorkloadK) -> None:
    assert run_wheel(workload).ended.expired == len(workload)


@pytest.mark.parametrize("hot", [False, True])
def test_as_many_wait_after_a_step_of_growth_and_a_restore_as_before(hot: bool) -> None:
    driver = Driver(Point("pending", 2000, key_bytes=40, payload_bytes=10, hot=hot))
    driver.load()
    if not hot:
        driver.step()
    assert driver.save()[2] > 0
    assert driver.engine.pending == len(driver.waiting) == 2000
    driver.finish()
    assert driver.engine.pending == 0


def test_a_workers_memory_is_told_however_few_wait() -> None:
    driver = Driver(Point("pending", 2000))
    driver.load()
    assert driver.worker_bytes() > 1 << 20


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("with_note", [False, True])
def test_a_shard_of_workload_w_ends_as_its_arrays_say(
    host: str, with_note: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_w, "SHARDS", 1)
    drawn = workload_w.draw(3000, 4, seed=1)
    run = run_steps(shard_steps(drawn, with_note), with_note, host)
    # The last step has the watermark of the last operations, so what is due by then has left.
    due = workload_w.expected(drawn)
    assert (run.completed, run.expired) == (due.completed, due.expired)
    assert run.rows == 3000 + due.completed
    assert run.cpu_s > 0 and run.state_bytes > 0


def test_an_outcome_that_lacks_its_event_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_purgatory.core.engine.completion.evidence_of", lambda *of: {})
    steps = shard_steps(workload_w.draw(3000, 4, seed=1), True)
    with pytest.raises(WrongOutcomeError, match="lacks the event that decided"):
        run_steps(steps, True, "kept")


def test_the_pair_with_and_without_a_column_is_compared_round_by_round() -> None:
    compared = list(engine(2, lambda line: None, operations=4000))
    assert [each.round for each in compared] == [1, 1, 1, 2, 2, 2] * len(HOSTS)
    (cells,) = [list(column.cells) for column in table_of(compared).columns if column.header == "what"]
    assert cells == [f"{host}, {what}" for host in HOSTS for what in (
        "rate by CPU", "most bytes of a state", "... less the column's"
    )]  # fmt: skip


def test_a_goal_is_one_of_the_median() -> None:
    rounds = [Compared("w", "ours, rate", number, ratio, 1.0, ">= 0.85") for number, ratio in enumerate((0.7, 0.86, 2))]
    column = [list(column.cells) for column in table_of(rounds).columns]
    assert column[2:] == [["0.86"], ["0.70 .. 2.00"], ["1 .. 1"], [">= 0.85: reached"]]
    assert Compared("w", "state", 1, 1.4, 1.0, "<= 1.3").met(1.4) is False
    assert Compared("w", "state", 1, 1.4, 1.0).met(1.4) is None
