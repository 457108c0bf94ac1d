"""Where commands print."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from rich.console import Console


def terminal(stderr: bool = False) -> Console:
    """A console that prints words as they are: in "pip install 'spark-purgatory[plot]'" the brackets are no style."""
    return Console(stderr=stderr, markup=False)


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a sentence. A terminal's lines end between words; elsewhere a sentence is one line, to be searched."""
    console.print(text, style=style, soft_wrap=not console.is_terminal, highlight=False)


def at_work(console: Console, what: str) -> AbstractContextManager[object]:
    """Show on a terminal that something goes on."""
    return console.status(what) if console.is_terminal else nullcontext()
