"""A slice of the simulation's histories, what they have found before, and the planted faults that they must find."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from spark_purgatory.spark.sink import record_accumulator
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder
from tests.simulation.life import LINGER_S, Left, live, lost_or_doubled, scheduled
from tests.simulation.planted import PLANTED, Patch, hunt, planted
from tests.simulation.play import Played, play, quiet, why_wrong
from tests.simulation.recorded import Recording, replayed
from tests.simulation.storage import Disk, DiskPath
from tests.simulation.world import SINKS, Step, history, scenario
from tests.support.now_and_then import EVERY_CASE

HISTORIES = int(os.environ.get("HISTORIES", "220"))
SEES = {
    "a drain takes what Spark has not committed": 7,
    "a step depends on the order of its rows": 342,
    "a drain that an earlier run left is not tried again": 19,
    "no read-back": 3,
    "a half-written folder counts": 15,
    "an open intent is taken as committed": 7,
    "an open intent is taken as not committed": 8,
    "an intent forgets what it leaves": 8,
    "no intent": 2,
    "nothing is synchronised": 3,
    "a timer is too late": 23,
    "any token fits": 1,
    "an entry of a shard's log is forgotten": 1,
    "a micro-batch that waits for room loses its record": 429,
    "a note goes on behind rows that replaced it": 182,
    "a token is given before the commit": 10,
    "a snapshot is not written": 52,
    "a snapshot is of the step before": 52,
    "a snapshot does not begin the log anew": 15,
    "an entry is not written": 1,
    "an entry is written over another": 10,
    "a timer is set once": 1,
    "the last entry is replayed twice": 22,
    "a log is replayed from its end": 59,
    "the last entry is not replayed": 1,
    "an entry lacks the watermark": 1,
    "an entry lacks the events of the second task": 76,
}
"""The first seed that shows a planted fault, if it is not 0; where it shows nothing any more, others are tried."""


HAPPENINGS = (
    "a task fails", "a late state", "a late commit", "staged files lost", "ConcurrentRun", "stopped: StagingError",
    "stopped: ForeignWriterError", "stopped: StorageError", "stopped: StateVersionError", "crash after stage",
    "crash after intend", "crash after commit", "crash before clean up", "crash before commits", "crash after commits",
    "a move to the blob host", "a move to the log host",
)  # fmt: skip


@pytest.fixture(scope="module")
def played() -> Played:
    return play(range(HISTORIES))


def test_histories_of_crashes_replays_and_failing_storage_lose_and_double_nothing(played: Played) -> None:
    assert not played.failures, "\n".join(map(str, played.failures))
    print(f"{played.histories:,} histories, {played.a_minute:,.0f} a minute of one core")


@pytest.mark.parametrize("what", HAPPENINGS)
def test_the_histories_have_in_them_what_can_happen(played: Played, what: str) -> None:
    assert played.seen[what], f"{what!r} is in none of {HISTORIES} histories"


def test_a_history_is_the_same_each_time() -> None:
    with quiet():
        for seed in range(15):
            scenario, steps = history(seed)
            assert history(seed)[1] == steps
            first, again = Counter[str](), Counter[str]()
            assert why_wrong(scenario, steps, first) == why_wrong(scenario, steps, again) == ""
            assert first == again, f"seed {seed}"


@pytest.mark.parametrize("name", PLANTED)
def test_the_histories_show_a_planted_fault(name: str) -> None:
    first = SEES.get(name, 0)
    _, failure = hunt(PLANTED[name], most=1, first=first, shrinks=False)
    if failure is None:
        _, failure = hunt(PLANTED[name], shrinks=False)
    assert failure is not None, f"5,000 histories with this fault are like those without it: {name}"


class Found(NamedTuple):
    """A fault that was mended: a history that shows it, and how to take the mend back."""

    sink: str
    steps: tuple[Step, ...]
    undo: Callable[[Patch], None]


def nothing_is_synchronised_at_a_start(patch: Patch) -> None:
    patch(StagingFolder, "synchronise", lambda self: None)


def new_folders_keep_their_names_to_themselves(patch: Patch) -> None:
    patch(DiskPath, "exists", lambda self: True)


def the_folder_around_a_checkpoint_keeps_no_names(patch: Patch) -> None:
    sync = Disk.sync
    patch(Disk, "sync", lambda self, opened: None if opened == "/" else sync(self, opened))


def a_reader_asks_for_no_later_drain(patch: Patch) -> None:
    patch(record_accumulator, "compare", lambda *given: None)


MOVED = {"shards": 2, "partitions": 2, "host": ""}
FOUND = {
    "an entry that a killed run had renamed and not synchronised": Found(
        "nothing lingers",
        (
            Step("micro-batch", 1, {"files": 1}),
            Step("micro-batch", 2, {"files": 1, "crash": "after rename", "at": 3}),
            Step("micro-batch", 3, {"files": 1, "commits": ("absent", "absent")}),
            Step("micro-batch", 4, {"files": 1, "power loss": "after tasks", "at": 2}),
        ),
        nothing_is_synchronised_at_a_start,
    ),
    "a folder of the staging log whose name was not synchronised": Found(
        "files fill",
        (
            Step("micro-batch", 1, {"files": 1}),
            Step("micro-batch", 2, {"files": 1, "power loss": "before rename"}),
        ),
        new_folders_keep_their_names_to_themselves,
    ),
    "entries that a move had copied and nobody had synchronised": Found(
        "files fill",
        (
            Step("micro-batch", 1, {"files": 2}),
            Step("move", 2, MOVED),
            Step("micro-batch", 3, {"files": 1, "power loss": "after tasks"}),
        ),
        nothing_is_synchronised_at_a_start,
    ),
    "the name of a checkpoint that a move had made": Found(
        "nothing lingers",
        (
            Step("micro-batch", 1, {"files": 2}),
            Step("move", 2, MOVED),
            Step("micro-batch", 3, {"files": 1}),
            Step("micro-batch", 4, {"files": 1, "power loss": "after commits"}),
        ),
        the_folder_around_a_checkpoint_keeps_no_names,
    ),
    "a reader of the checkpoint that was moved, once the new one has drained": Found(
        "nothing lingers",
        (
            *(Step("micro-batch", number, {"files": 1}) for number in (1, 2)),
            Step("move", 3, MOVED),
            Step("micro-batch", 4, {"files": 1}),
        ),
        a_reader_asks_for_no_later_drain,
    ),
    "a reader of a list that lacks the last intent": Found(
        "nothing lingers",
        (
            Step("micro-batch", 1, {"files": 1}),
            Step("micro-batch", 2, {"files": 1, "crash": "after commit"}),
            Step("micro-batch", 3, {"files": 1}),
            Step("list lags", 4, {"by": 1}),
        ),
        a_reader_asks_for_no_later_drain,
    ),
}
"""Histories of faults that the simulation has found and that were mended."""


def told_of(name: str) -> set[str]:
    """What is wrong with a history that was found, with six seeds."""
    found = FOUND[name]
    storage = "store" if "list" in name else "disk"
    plain = replace(scenario(20), format=2, storage=storage, sink=SINKS[found.sink], beside="", timeouts=(1,))
    with quiet():
        seeds = [[step._replace(seed=step.seed + 10 * seed) for step in found.steps] for seed in range(6)]
        return {why_wrong(plain, steps) for steps in seeds}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_before_stays_mended(name: str) -> None:
    assert told_of(name) == {""}


@pytest.mark.parametrize("name", FOUND)
def test_a_history_that_was_found_shows_the_fault_where_its_mend_is_taken_back(name: str) -> None:
    with planted(FOUND[name].undo):
        assert told_of(name) - {""}


FILE = Path(__file__).parents[1] / "data" / "recorded_crashes.jsonl.gz"
RECORDINGS = [Recording.of(json.loads(line)) for line in gzip.decompress(FILE.read_bytes()).splitlines()]


@pytest.mark.parametrize("recording", RECORDINGS, ids=[f"{each.host}, {each.emit}" for each in RECORDINGS])
def test_recorded_crashes_end_with_the_same_table(recording: Recording) -> None:
    assert len([run for run in recording.runs if run.crashed_at]) >= 12
    assert replayed(recording, f"kept {recording.host} {recording.emit}") == recording.table


def grows(drains: int, restarts: int, host: str) -> dict[str, tuple[int, int]]:
    """What there is more of in the second half of a life than in its first tenth and a constant: figures of both."""
    left, simulation = live(drains, restarts, host)
    assert simulation.seen["restart"] >= restarts / 2
    assert simulation.table.version >= drains * 0.8, "a drain a micro-batch"
    assert lost_or_doubled(simulation) == 0
    first, second = left[: max(60, len(left) // 10)], left[len(left) // 2 :]
    most = {
        name: (max(getattr(each, name) for each in first), max(getattr(each, name) for each in second))
        for name in Left._fields
    }
    print(f"{host}: {drains:,} drains, {simulation.seen['restart']:,} restarts: {most}")
    return {name: both for name, both in most.items() if both[1] > both[0] + 4}


@pytest.mark.parametrize("host", ["blob", "log"])
def test_files_entries_and_memory_do_not_grow_in_a_life_of_hundreds_of_drains(host: str) -> None:
    assert grows(80, 16, host) == {}


@pytest.mark.parametrize("host", ["blob", "log"])
def test_a_wall_clock_that_is_set_loses_and_doubles_nothing_and_stops_no_lingering(host: str) -> None:
    """Hours, days and years forth and back, within runs and between them: a second a micro-batch goes on passing."""
    micro_batches, restarts = (6000, 150) if EVERY_CASE else (120, 4)
    left, simulation = live(micro_batches, restarts, host, clock_is_set=0.1)
    seen, waits_s = simulation.seen, [each.files for each in left]
    assert seen["restart"] >= restarts / 3 and seen["the clock is set"] >= micro_batches / 20
    assert lost_or_doubled(simulation, LINGER_S * 3) == 0
    assert max(waits_s) <= 2 * LINGER_S, "a file a micro-batch; a run that begins lets what it finds linger once more"
    print(
        f"{host}: {micro_batches:,} micro-batches, {seen['restart']} restarts, clock set {seen['the clock is set']} "
        f"times, {simulation.table.version} commits, at most {max(waits_s)} files staged"
    )


@pytest.mark.parametrize("host", ["blob", "log"])
def test_two_hundred_scheduled_runs_have_the_outcomes_of_one_run(host: str) -> None:
    """Inputs bring rows together, in turn or not at all; a run ends with everything drained, with what is ripe, or
    killed."""
    for seed in range(20 if EVERY_CASE else 1):
        runs, one = scheduled(200, host, seed)
        assert {"crash after commit", "crash before return"} <= runs.seen.keys()
        found, expected = (
            Counter((each.judge.meaning[number]["row"], each.judge.meaning[number]["status"]) for number in table)
            for each in (runs, one)
            if (table := list(each.table.ours().elements()))
        )
        assert found == expected and expected.total() == 200 // 3 * 2
        print(f"{host}: 200 runs, {runs.table.version} commits: {dict(runs.seen)}")


@pytest.mark.slow
@pytest.mark.parametrize("host", ["blob", "log"])
def test_files_entries_and_memory_do_not_grow_in_a_life_of_ten_thousand_drains(host: str) -> None:
    assert grows(10_000, 1_000, host) == {}
