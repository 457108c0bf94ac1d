"""Where a crash could matter: named places, before and after each durable step. Without a hook they do nothing."""

from __future__ import annotations

from collections.abc import Callable

from spark_purgatory.spark.sink.drain.actions import HAS_FAILPOINTS

FAILPOINTS = tuple(f"{when} {step}" for step in (*HAS_FAILPOINTS.values(), "return") for when in ("before", "after"))

hook: Callable[[str], None] | None = None
"""Called with the name of every failpoint reached; tests set it, nothing else does."""


def reach(name: str) -> None:
    """Say that a failpoint was reached."""
    if hook is not None:
        hook(name)


def reach_beside(when: str, action: object) -> None:
    """Say that a failpoint before or after an action was reached, if the action has any."""
    if (step := HAS_FAILPOINTS.get(type(action))) is not None:
        reach(f"{when} {step}")
