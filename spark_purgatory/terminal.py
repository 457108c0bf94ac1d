"""Where commands print."""

from __future__ import annotations

from rich.console import Console


def terminal(stderr: bool = False) -> Console:
    """A console that prints words as they are: in "pip install 'spark-purgatory[plot]'" the brackets are no style."""
    return Console(stderr=stderr, markup=False)
