"""Each check in each scenario, on the simulation."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_purgatory.core.engine.evidence import _Asked
from spark_purgatory.core.engine.shard_events import OrphanEvents
from spark_purgatory.core.engine.waiting import Waiting
from spark_purgatory.core.state import engine_snapshot
from spark_purgatory.spark.move import tables
from spark_purgatory.spark.sink import record_accumulator
from tests.simulation.cells import CELLS, CHECKS, HAPPENS, HOSTS, wrong_with
from tests.simulation.planted import Patch, planted
from tests.support.now_and_then import EVERY_CASE, each_commit


def is_sampled(cell: tuple[str, str]) -> bool:
    return (list(CHECKS).index(cell[0]) + list(HAPPENS).index(cell[1])) % 4 == 0


@pytest.mark.parametrize(("check", "happens"), each_commit(CELLS, is_sampled))
def test_a_check_holds_in_a_scenario(check: str, happens: str) -> None:
    number = list(CHECKS).index(check) + list(HAPPENS).index(happens)
    assert wrong_with(check, happens, HOSTS if EVERY_CASE else [HOSTS[number % 2]]) == ""


def copies_are_kept(patch: Patch) -> None:
    """An export has the copies that each shard has of an event."""
    patch(tables, "_without_copies", lambda table: table.drop_columns(["shard"]))


def events_behind_the_resolution(patch: Patch) -> None:
    patch(_Asked, "_cut", lambda self, span: span)


def no_orphan_is_released(patch: Patch) -> None:
    patch(OrphanEvents, "release", lambda self, *given: [])


def nothing_is_staged(patch: Patch) -> None:
    patch(record_accumulator, "_waiting", lambda *given: [])


def nobody_waits_long(patch: Patch) -> None:
    ages = Waiting._ms
    patch(Waiting, "_ms", lambda self, elapsed: ages(self, lambda until_us: elapsed(until_us) // 2))


def the_oldest_is_unknown(patch: Patch) -> None:
    gauges_of = engine_snapshot.gauges_of
    patch(engine_snapshot, "gauges_of", lambda engine: {**gauges_of(engine), "oldest_us": None})


@pytest.mark.parametrize(
    ("plant", "check", "happens"),
    [
        (copies_are_kept, "a rule by row", "moved"),
        (events_behind_the_resolution, "the largest events", "restart"),
        (no_orphan_is_released, "ORPHANs, all", "replay, same rows"),
        (nothing_is_staged, "staged rows", "restart"),
        (nobody_waits_long, "pending", "restart"),
        (the_oldest_is_unknown, "gauges", "other host"),
    ],
)
def test_a_cell_with_a_planted_fault_is_red(plant: Callable[[Patch], None], check: str, happens: str) -> None:
    with planted(plant):
        assert "Wrong" in (said := wrong_with(check, happens)) or "Error" in said, said
