"""Histories by their seeds: played, and a failing one told as a list of its fewest steps."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.simulation.shrink import shrunk
from tests.simulation.simulation import Simulation
from tests.simulation.sink import edges
from tests.simulation.world import Scenario, Step, history


class Failure(NamedTuple):
    """A history that fails."""

    seed: int
    scenario: Scenario
    steps: Sequence[Step]
    said: str

    def __str__(self) -> str:
        steps = "\n".join(f"  {number + 1}. {step} [{step.seed}]" for number, step in enumerate(self.steps))
        return f"seed {self.seed}: {self.said}\n  {self.scenario}\n{steps}\n  the end of the source, and a drain"


@dataclass
class Played:
    """What came of histories."""

    histories: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    cpu_seconds: float = 0.0

    @property
    def a_minute(self) -> float:
        """Histories a minute of one core."""
        return 60 * self.histories / max(self.cpu_seconds, 0.001)


@contextmanager
def quiet() -> Iterator[None]:
    """The product's warnings say what was done to it, a hundred times a second."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with edges():
            yield
    finally:
        logging.disable(before)


def why_wrong(scenario: Scenario, steps: Sequence[Step], seen: Counter[str] | None = None) -> str:
    """Play one history; what is wrong with it, "" if nothing is."""
    simulation = Simulation(scenario)
    try:
        simulation.play(steps)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        if seen is not None:
            seen.update(simulation.seen)
    return ""


def play(seeds: Iterable[int], until: Callable[[Played], bool] = lambda played: False, shrinks: bool = True) -> Played:
    """The histories of the seeds, until something is so."""
    played = Played()
    with quiet():
        for seed in seeds:
            began = time.process_time()
            scenario, steps = history(seed)
            said = why_wrong(scenario, steps, played.seen)
            played.histories += 1
            played.cpu_seconds += time.process_time() - began
            if said:
                fewest = shrunk(steps, _fails(scenario)) if shrinks else steps
                played.failures.append(Failure(seed, scenario, fewest, why_wrong(scenario, fewest) or said))
            if until(played):
                break
    return played


def _fails(scenario: Scenario) -> Callable[[Sequence[Step]], bool]:
    return lambda steps: why_wrong(scenario, steps) != ""
