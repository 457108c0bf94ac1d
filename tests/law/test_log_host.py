"""The host that keeps a log, under all that Spark does to its tasks: nothing of it shows in what comes out.

`tests.support.log_host_simulation` stands for Spark. The planted bugs at the end are changes of the protocol, each of
which loses or repeats something: that outcomes and counters alone show each of them is the test of the comparisons.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any
from unittest.mock import patch

import pytest

from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.spec.codes import RULES
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state import step_log
from spark_purgatory.core.state.engine_snapshot import save
from spark_purgatory.core.state.shard_head import LOG_ENTRIES, ShardHead, read_head
from spark_purgatory.core.state.step_log import STEP_VERSION, Step
from spark_purgatory.errors import PurgatoryError, StateVersionError
from spark_purgatory.spark.host import log_host
from spark_purgatory.spark.host.log_host import FAILPOINTS
from spark_purgatory.spark.host.warm_messages import Answer, Request
from tests.support.engine_driver import multiset
from tests.support.law_worlds import COLUMNS, COMPLETE_ONLY, ORPHANS, delayed, draw, spec_of, split_orphans
from tests.support.log_host_simulation import (
    AT_FAILPOINTS,
    NOTHING,
    OTHER_CHECKPOINT,
    RESTARTS,
    Chances,
    Difference,
    Host,
    Simulation,
    Worker,
    simulated,
)
from tests.support.now_and_then import each_commit
from tests.support.oracle import KINDS, decide
from tests.support.splits import Batch, splits
from tests.support.worlds import STEP_US, World

NUMBER = {"double": "double", "bigint": "bigint", "decimal": "decimal(18,2)"}
"""The engine's name of each type of a world's numbers."""
SEQUENCES: Counter[str] = Counter()
"""Simulations that were compared, by route."""
SEEN: Counter[str] = Counter()
"""What happened in them."""

ROUTES: dict[str, dict[str, Any]] = {
    "both": {"chances": Chances()},
    "warm": {"chances": replace(NOTHING, snapshot=0.1, loads=0.3)},
    "cold": {"chances": Chances(), "max_warm_bytes": 0},
    "in turn": {"chances": Chances(cold=0.5)},
    "no snapshots": {"chances": Chances(snapshot=None)},
    "one worker": {"chances": Chances(), "n_workers": 1},
    "little room": {"chances": Chances(), "max_warm_bytes": 1500},
}
"""How a world is run: what goes wrong, and what the workers hold."""


@pytest.fixture(scope="module", autouse=True)
def told(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tell how many sequences were compared; all without a difference bound its chance."""
    began = perf_counter()
    yield
    n = sum(SEQUENCES.values())
    bound = f"; chance of a difference below {3 / n:.1e} (95 %)" if n else ""
    steps = f"{SEEN['warm']:,} steps warm, {SEEN['cold']:,} cold, {SEEN['attempt lost']:,} attempts lost"
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\nlog host: {n:,} sequences, {dict(SEQUENCES)}, {steps}, in {perf_counter() - began:.0f} s{bound}")


@dataclass
class Case:
    """A world, the query over it and the micro-batches that bring it."""

    rng: random.Random
    world: World
    criterion: dict[str, Any]
    spec: EngineSpec
    batches: list[Batch]
    layout: dict[str, Any]
    late: bool

    @property
    def has_oracle(self) -> bool:
        """Whether what comes out is a function of the world."""
        return self.spec.final and not self.late and self.spec.tick_ms == 1


def case_of(seed: int, *, final: bool | None = None, late: bool | None = None, rule: str = "", worlds: int = 2) -> Case:
    """A random world of one rule, or of all, and a query; what is not given is drawn."""
    dice = random.Random(f"shape of {seed}")
    final = dice.random() < 0.6 if final is None else final
    late = dice.random() < 0.3 if late is None else late
    rule = rule or dice.choice((*RULES, "mixed", "mixed"))
    several, numbers = dice.random() < 0.4, dice.choice((*NUMBER, "double"))
    kinds = KINDS if dice.random() < 0.6 else COMPLETE_ONLY
    lookback_us = dice.choice((0, 0, 2 * STEP_US))
    tick_ms = dice.choice((1, 7)) if late else 1
    shards = dice.choice((1, 2, 3))
    orphans = dice.choice(("none", *ORPHANS)) if not several or shards == 1 else "none"
    rng, world, criterion = draw(seed, rule, several, kinds=kinds, worlds=worlds, spoiled=not late, numbers=numbers)
    spec = spec_of(
        criterion, final=final, orphans=orphans, lookback_us=lookback_us, number=NUMBER[numbers], tick_ms=tick_ms
    )
    spec = replace(spec, identity_width=1 if several else 2, whole_operations=several and spec.operation_ids)
    batches = splits(rng, *world, rng.choice((1, 3, 5)), lookback_us=lookback_us)
    if late:
        batches = delayed(rng, batches, 0.3)
    return Case(rng, world, criterion, spec, batches, {"shards": shards, "several": several}, late)


def run(case: Case, **given: Any) -> tuple[list[dict[str, Any]], Simulation]:
    """Outcomes of a simulation that compares itself, and the simulation."""
    with simulated(case.spec, case.rng, **{**case.layout, **given}) as simulation:
        outcomes = simulation.run(case.batches)
    return outcomes, simulation


def check_against_oracle(case: Case, outcomes: list[dict[str, Any]]) -> None:
    """Under ``final`` and with every row on time, outcomes are the oracle's."""
    expected, unheard = split_orphans(
        decide(
            *case.world,
            criterion=case.criterion,
            orphans=case.spec.orphans,
            lookback_us=case.spec.lookback_us,
            doubles=case.spec.number == "double",
            whole_operations=case.spec.identity_width == 1,
        )
    )
    found, left_over = split_orphans(outcomes)
    assert multiset(found, *COLUMNS) == multiset(expected, *COLUMNS)
    assert left_over == unheard


def compare(route: str, seeds: Sequence[int]) -> None:
    """Run worlds, each compared with engines that are never saved, and with the oracle where it has a say."""
    for seed in seeds:
        case = case_of(seed)
        outcomes, simulation = run(case, **ROUTES[route])
        if case.has_oracle:
            check_against_oracle(case, outcomes)
            SEEN["compared with the oracle"] += 1
        SEQUENCES[route] += 1
        SEEN["late"] += case.late
        SEEN.update(simulation.seen)


@pytest.mark.parametrize("block", each_commit(range(10), lambda block: block < 2))
@pytest.mark.parametrize("route", ROUTES)
def test_outcomes_are_those_of_engines_that_are_never_saved(route: str, block: int) -> None:
    first = 100 * list(ROUTES).index(route) + 3 * block
    compare(route, range(first, first + 3))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
@pytest.mark.parametrize("route", ROUTES)
def test_a_long_series_of_worlds_comes_out_as_from_engines_that_are_never_saved(route: str, block: int) -> None:
    first = 100_000 * list(ROUTES).index(route) + 1000 * (block + 1)
    compare(route, range(first, first + 25))


@pytest.mark.parametrize(
    ("action", "failpoint"),
    each_commit(
        [(action, failpoint) for action in AT_FAILPOINTS for failpoint in FAILPOINTS],
        lambda case: (AT_FAILPOINTS.index(case[0]) + FAILPOINTS.index(case[1])) % 2 == 0,
    ),
)
def test_what_happens_at_each_step_of_the_protocol_changes_nothing(failpoint: str, action: str) -> None:
    chances = replace(NOTHING, snapshot=0.5, at_failpoint=0.5, actions=(action,), failpoints=(failpoint,), loads=0.2)
    seen: Counter[str] = Counter()
    for seed in range(5, 25):
        seen.update(run(case_of(seed, worlds=1), chances=chances)[1].seen)
        SEQUENCES["at a failpoint"] += 1
        if seen[f"{action} {failpoint}"] > 3:
            return
    pytest.fail(f"{action} {failpoint} has happened {seen[f'{action} {failpoint}']} times: it should be more often")


@pytest.mark.parametrize("how", RESTARTS)
def test_a_restart_before_every_micro_batch_changes_nothing(how: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(20, 24):
        chances = replace(NOTHING, restart=0.6, restarts=(how,), loads=0.5)
        seen.update(run(case_of(seed), chances=chances)[1].seen)
    assert seen[f"restart, {how}"] > 3
    SEQUENCES["restart"] += 4


def test_every_state_that_is_committed_loads_to_the_engine_that_made_it() -> None:
    for seed in range(40, 45):
        _, simulation = run(case_of(seed), chances=Chances(loads=1.0))
        assert simulation.seen["loaded"] >= len(simulation.taken)
        SEQUENCES["loaded"] += 1


def test_without_failures_each_step_but_the_first_is_made_by_the_holder() -> None:
    case = case_of(7, final=True, late=False)
    _, simulation = run(case, chances=replace(NOTHING, loads=0))
    assert (simulation.seen["cold"], simulation.seen["missed"]) == (len(simulation.committed), 0)
    assert simulation.seen["warm"] > 0


def test_without_room_no_step_is_made_by_a_holder() -> None:
    _, simulation = run(case_of(7, final=True, late=False), chances=NOTHING, max_warm_bytes=0)
    assert simulation.seen["warm"] == 0
    assert simulation.seen["cold"] > len(simulation.committed)
    assert all(read_head(state.values["head"]).holder == "" for state in simulation.committed.values())


def test_the_policy_of_the_head_saves_the_engine_after_some_hundred_steps() -> None:
    """With workers that are all gone now and then, so that long logs are replayed."""
    case = case_of(4, final=True, late=False, rule="count")
    case.batches = with_quiet_micro_batches(case, 270)
    chances = replace(NOTHING, snapshot=None, cold=0.02, loads=0.02)
    _, simulation = run(case, chances=chances, shards=1)
    snapshots = simulation.seen["before snapshot"]
    assert 2 <= snapshots <= 1 + len(case.batches) // LOG_ENTRIES[0]
    assert simulation.seen["cold"] > 2


def with_quiet_micro_batches(case: Case, count: int) -> list[Batch]:
    """The case's micro-batches; before it ends, so many with one event that concerns nobody."""
    event = {**case.world.events[0], "key": "elsewhere", "kind": "complete", "event_id": None, "operation_id": None}
    bring, ends = case.batches[:-3], case.batches[-3:]
    case.world.events.extend([event] * count)
    return [*bring, *(Batch([], [event], bring[-1].watermark_ms) for _ in range(count)), *ends]


def test_a_release_whose_steps_are_others_goes_on_from_snapshots_and_writes_logs_of_its_own() -> None:
    case = case_of(4, final=True, late=False, rule="count")
    batches = with_quiet_micro_batches(case, 4)
    chances = replace(NOTHING, snapshot=1.0, loads=1.0)
    with simulated(case.spec, case.rng, chances=chances, shards=1, several=False) as simulation:
        simulation.run(batches[:-6])
        simulation.chances = replace(chances, snapshot=0.0, cold=1.0)
        later = STEP_VERSION + 1
        with patch.object(log_host, "STEP_VERSION", later), patch.object(step_log, "STEP_VERSION", later):
            outcomes = simulation.run(batches[-6:])
            assert read_head(simulation.committed[0].values["head"]).step_version == later
    assert simulation.seen["after log"] > 2
    check_against_oracle(case, outcomes)


def test_a_release_whose_steps_are_others_refuses_a_log() -> None:
    case = case_of(4, final=True, late=False, rule="count")
    batches = with_quiet_micro_batches(case, 4)
    with simulated(case.spec, case.rng, chances=replace(NOTHING, snapshot=0.0), shards=1) as simulation:
        simulation.run(batches[:-6])
        simulation.end_workers()
        later = (patch.object(module, "STEP_VERSION", STEP_VERSION + 1) for module in (log_host, step_log))
        refused = pytest.raises(
            StateVersionError, match=rf"step version {STEP_VERSION}, but .* reads version {STEP_VERSION + 1}"
        )
        with next(later), next(later), refused:
            simulation.run(batches[-6:])


# --- planted bugs ---------------------------------------------------------------------------------------


class TokenNotChecked(Worker):
    """Whatever is held is used."""

    def step(self, request: Request) -> Answer | None:
        held = self._kept.get(request.shard_id)
        return super().step(request if held is None else replace(request, token=held.token))


class DirtyEngineReused(Worker):
    """An engine keeps its token in a step that fails."""

    def step(self, request: Request) -> Answer | None:
        held = self._kept.get(request.shard_id)
        engine = None if held is None else held.engine
        try:
            return super().step(request)
        except MemoryError:
            assert held is not None
            held.engine, held.token = engine, request.token
            self._kept[request.shard_id] = held
            raise


class TokenGivenBefore(Worker):
    """An engine has the old token until its step's head is committed: as if it were taken away only then."""

    def step(self, request: Request) -> Answer | None:
        answer = super().step(request)
        if answer is not None:
            self._kept[request.shard_id].token = request.token
        return answer


class TokenKept(Host):
    """A shard's token never changes."""

    def _call(self, step: Step, watermark_ms: int, fired_ms: int | None = None) -> Any:
        with patch.object(log_host.secrets, "token_hex", lambda size: "0" * 2 * size):
            return super()._call(step, watermark_ms, fired_ms)


class TokenCounts(Host):
    """Tokens are numbers that count up: those of an old run come again."""

    def _call(self, step: Step, watermark_ms: int, fired_ms: int | None = None) -> Any:
        stored = self._head.get()
        if stored is None:
            with patch.object(log_host.secrets, "token_hex", lambda size: f"{self._handle.key:0{2 * size}x}"):
                return super()._call(step, watermark_ms, fired_ms)
        token = int(read_head(bytes(stored[0])).token, 16) + 1
        with patch.object(log_host.secrets, "token_hex", lambda size: f"{token:0{2 * size}x}"):
            return super()._call(step, watermark_ms, fired_ms)


class SnapshotMisses(Host):
    """The log is cleared, and the snapshot stays the one before."""

    def _write(
        self, head: ShardHead, entry: bytes, request: Request, answer: Answer, timer_ms: int | None
    ) -> ShardHead:
        before = self._snapshot.get()
        written = super()._write(head, entry, request, answer, timer_ms)
        if before is not None:
            self._snapshot.update((bytes(before[0]),))
        return written


class SnapshotOfBefore(Worker):
    """The snapshot is taken before the step whose entry it stands for."""

    def step(self, request: Request) -> Answer | None:
        held = self._kept.get(request.shard_id)
        before = None if held is None or held.token != request.token else save(held.engine, request.shards)
        answer = super().step(request)
        return answer if answer is None or answer.snapshot is None else replace(answer, snapshot=before)


class LogKept(Host):
    """A snapshot does not begin the log anew."""

    def _write(
        self, head: ShardHead, entry: bytes, request: Request, answer: Answer, timer_ms: int | None
    ) -> ShardHead:
        written = super()._write(head, entry, request, answer, timer_ms)
        if answer.snapshot is not None:
            self._log.updateValue((written.next_entry,), (entry,))
            written = replace(written, next_entry=written.next_entry + 1, log_bytes=len(entry))
            self._head.update((log_host.write_head(written),))
        return written


class EntryNotWritten(Host):
    """A warm step's entry is left out, and the head does not count it."""

    def _write(
        self, head: ShardHead, entry: bytes, request: Request, answer: Answer, timer_ms: int | None
    ) -> ShardHead:
        written = super()._write(head, entry, request, answer, timer_ms)
        if answer.snapshot is None:
            self._log.removeKey((head.next_entry,))
            written = replace(written, next_entry=head.next_entry, log_bytes=head.log_bytes)
            self._head.update((log_host.write_head(written),))
        return written


class NumbersRepeat(Host):
    """An entry is written over the one before it."""

    def _write(
        self, head: ShardHead, entry: bytes, request: Request, answer: Answer, timer_ms: int | None
    ) -> ShardHead:
        if answer.snapshot is None and head.log_entries:
            self._log.updateValue((head.next_entry - 1,), (entry,))
        return super()._write(head, entry, request, answer, timer_ms)


class TimerKept(Host):
    """A timer stays where the deadline moves."""

    def _set_timer(self, then_ms: int | None, now_ms: int | None, fired_ms: int | None) -> None:
        super()._set_timer(None, now_ms, fired_ms)


class TimerAsInTheOtherHost(Host):
    """A timer a millisecond before the deadline: right where Spark fires at ``timeout < watermark``."""

    def _set_timer(self, then_ms: int | None, now_ms: int | None, fired_ms: int | None) -> None:
        super()._set_timer(*(None if at is None else at - 1 for at in (then_ms, now_ms)), fired_ms)


class TimerOnlyOnce(Host):
    """A call of a timer sets none again."""

    def _set_timer(self, then_ms: int | None, now_ms: int | None, fired_ms: int | None) -> None:
        if fired_ms is None:
            super()._set_timer(then_ms, now_ms, fired_ms)


def replayed_twice(engine: EventTimePurgatory, entries: Sequence[bytes]) -> None:
    """Replay the last entry once more."""
    replay(engine, [*entries, *entries[-1:]])


def replayed_in_disorder(engine: EventTimePurgatory, entries: Sequence[bytes]) -> None:
    """Replay from the end."""
    replay(engine, [*reversed(entries)])


def replayed_but_the_last(engine: EventTimePurgatory, entries: Sequence[bytes]) -> None:
    """Leave the last entry out."""
    replay(engine, [*entries[:-1]])


def written_without_watermark(step: Step) -> bytes:
    """An entry without the watermark."""
    return write_entry(replace(step, watermark_ms=0))


def written_without_events_of_another_task(step: Step) -> bytes:
    """An entry with the first blob of events alone."""
    return write_entry(replace(step, events=step.events[:1]))


replay, write_entry = step_log.replay, step_log.write_entry

WRONG_HOSTS: list[type[Host]] = [
    TokenKept,
    SnapshotMisses,
    LogKept,
    EntryNotWritten,
    NumbersRepeat,
    TimerKept,
    TimerAsInTheOtherHost,
    TimerOnlyOnce,
]
WRONG_WORKERS: list[type[Worker]] = [
    TokenNotChecked,
    DirtyEngineReused,
    TokenGivenBefore,
    SnapshotOfBefore,
]
WRONG_LOGS = [
    (step_log, "replay", replayed_twice),
    (step_log, "replay", replayed_in_disorder),
    (step_log, "replay", replayed_but_the_last),
    (log_host, "write_entry", written_without_watermark),
    (log_host, "write_entry", written_without_events_of_another_task),
]
PLANTED_SEEDS = range(2, 26)
SEES: Mapping[str, int] = {
    "TokenCounts": 26, "TokenKept": 2, "SnapshotMisses": 4, "LogKept": 2, "EntryNotWritten": 3, "NumbersRepeat": 11,
    "TimerKept": 3, "TimerAsInTheOtherHost": 6, "TimerOnlyOnce": 2, "TokenNotChecked": 2, "DirtyEngineReused": 4,
    "TokenGivenBefore": 2, "SnapshotOfBefore": 7, "replayed_twice": 3, "replayed_in_disorder": 11,
    "replayed_but_the_last": 3, "written_without_watermark": 3, "written_without_events_of_another_task": 6,
}  # fmt: skip
"""The world that shows each bug, tried first. Where worlds are drawn otherwise the others are searched again."""
TROUBLE = Chances(held_step=0.1, restart=0.5, looks=False)
FAILING_STEPS = Chances(held_step=0.4, thrown_away=0.4, restart=0.1, looks=False)
"""So that a holder whose step failed is asked again: whoever loads the shard meanwhile must fail too."""


def caught(bug: str = "", chances: Chances = TROUBLE, seeds: Sequence[int] = PLANTED_SEEDS, **given: Any) -> str:
    """What finds a planted bug first; what is no comparison and no error of ours is passed on."""
    for seed in (*([SEES[bug]] if bug else []), *seeds):
        case = case_of(seed, final=True, late=False)
        try:
            check_against_oracle(case, run(case, chances=chances, **given)[0])
        except (Difference, PurgatoryError) as error:
            return f"seed {seed}: {type(error).__name__}: {error}"
    return ""


def test_nothing_is_caught_where_nothing_is_planted() -> None:
    assert caught(seeds=PLANTED_SEEDS[:8]) == ""


@pytest.mark.parametrize("wrong", WRONG_HOSTS, ids=lambda wrong: wrong.__name__)
def test_a_host_that_breaks_the_protocol_is_caught(wrong: type[Host]) -> None:
    assert caught(wrong.__name__, host_class=wrong)


def test_a_holder_of_an_old_run_whose_tokens_come_again_is_caught() -> None:
    """Two runs from one checkpoint, and then the first run's checkpoint: its tokens are those of the second."""
    chances = replace(NOTHING, restart=0.8, restarts=(OTHER_CHECKPOINT,), looks=False)
    found = caught("TokenCounts", chances, seeds=range(2, 200), host_class=TokenCounts, n_workers=1)
    assert found, "it takes one world of thirty"
    assert caught(chances=chances, n_workers=1, seeds=[SEES["TokenCounts"], *PLANTED_SEEDS[:3]]) == ""


@pytest.mark.parametrize("wrong", WRONG_WORKERS, ids=lambda wrong: wrong.__name__)
def test_a_worker_that_breaks_the_protocol_is_caught(wrong: type[Worker]) -> None:
    assert caught(wrong.__name__, worker_class=wrong) or caught(chances=FAILING_STEPS, worker_class=wrong)


@pytest.mark.parametrize(("module", "name", "wrong"), WRONG_LOGS, ids=[wrong.__name__ for *_, wrong in WRONG_LOGS])
def test_a_log_that_is_written_or_read_wrongly_is_caught(module: Any, name: str, wrong: Any) -> None:
    with patch.object(module, name, wrong):
        assert caught(wrong.__name__)
