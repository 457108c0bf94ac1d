"""A failing history with the fewest steps that still fail, each with the least that happens in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.simulation.world import Step

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
