"""Histories by their seeds: played, and a failing one told as a list of its fewest steps."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

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


Fails = Callable[[Sequence[Step]], bool]


def shrunk(steps: Sequence[Step], fails: Fails) -> list[Step]:
    """Leave out steps, and then what is given to them, for as long as something can be left out."""
    left = list(steps)
    while True:
        fewer = _without(left, fails)
        fewer = [step for at in range(len(fewer)) for step in [_plainer(fewer, at, fails)]]
        if fewer == left:
            return left
        left = fewer


def _without(steps: Sequence[Step], fails: Fails) -> list[Step]:
    left, size = list(steps), max(1, len(steps) // 2)
    while size:
        at = 0
        while at < len(left):
            fewer = left[:at] + left[at + size :]
            if fails(fewer):
                left = fewer
            else:
                at += size
        size //= 2
    return left


def _plainer(steps: list[Step], at: int, fails: Fails) -> Step:
    """The step with as little as it needs; ``steps`` get it."""
    for name, value in list(steps[at].given.items()):
        given = dict(steps[at].given)
        given[name] = type(value)() if isinstance(value, (str, tuple, bool)) else 1
        if name == "steps":
            given[name] = 0
        plainer = [*steps[:at], steps[at]._replace(given=given), *steps[at + 1 :]]
        if given != steps[at].given and fails(plainer):
            steps[at] = plainer[at]
    return steps[at]
