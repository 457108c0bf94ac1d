"""Each check in each scenario, on the simulation."""

from __future__ import annotations

import pytest

from tests.simulation.cells import CELLS, CHECKS, HAPPENS, HOSTS, wrong_with
from tests.support.now_and_then import EVERY_CASE, each_commit


def is_sampled(cell: tuple[str, str]) -> bool:
    return (list(CHECKS).index(cell[0]) + list(HAPPENS).index(cell[1])) % 4 == 0


@pytest.mark.parametrize(("check", "happens"), each_commit(CELLS, is_sampled))
def test_a_check_holds_in_a_scenario(check: str, happens: str) -> None:
    number = list(CHECKS).index(check) + list(HAPPENS).index(happens)
    assert wrong_with(check, happens, HOSTS if EVERY_CASE else [HOSTS[number % 2]]) == ""
