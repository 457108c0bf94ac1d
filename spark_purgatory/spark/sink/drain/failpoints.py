"""Failpoints: named places before and after each durable step, where a crash could matter."""

from __future__ import annotations

from collections.abc import Callable

from spark_purgatory.spark.sink.drain.actions import HAS_FAILPOINTS

FAILPOINTS = tuple(f"{when} {step}" for step in (*HAS_FAILPOINTS.values(), "return") for when in ("before", "after"))
hook: Callable[[str], None] | None = None  # Called with the name of each failpoint reached. Only tests set it.


def reach(name: str) -> None:
    """Report that a failpoint was reached."""
    if hook is not None:
        hook(name)


def reach_action(when: str, action: object) -> None:
    """Report the failpoint before or after an action, if the action has one."""
    if (step := HAS_FAILPOINTS.get(type(action))) is not None:
        reach(f"{when} {step}")
