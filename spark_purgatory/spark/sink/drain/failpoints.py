"""Where a crash could matter: named places, before and after each durable step. Without a hook they do nothing."""

from __future__ import annotations

from collections.abc import Callable

STEPS = ("parts", "intent", "drain commit", "read-back", "clean-up", "return")
FAILPOINTS = tuple(f"{when} {step}" for step in STEPS for when in ("before", "after"))

hook: Callable[[str], None] | None = None
"""Called with the name of every failpoint reached; tests set it, nothing else does."""


def reach(name: str) -> None:
    """Say that a failpoint was reached."""
    if hook is not None:
        hook(name)
