"""Where commands print."""

from __future__ import annotations

import textwrap
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console


def terminal(stderr: bool = False) -> Console:
    """A console that prints words as they are: in "pip install 'spark-purgatory[plot]'" the brackets are no style."""
    return Console(stderr=stderr, markup=False)


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a sentence. A terminal's lines end between words, and a long path stays whole; elsewhere a sentence is one
    line, to be searched.
    """
    if console.is_terminal:
        text = "\n".join(_lines(line, console.width) for line in text.splitlines())
    console.print(text, style=style, soft_wrap=True, highlight=False)


def _lines(line: str, width: int) -> str:
    """A line, cut between words; what follows is as far to the right as its beginning."""
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def at_work(console: Console, what: str) -> AbstractContextManager[object]:
    """Show on a terminal that something goes on."""
    return console.status(what) if console.is_terminal else nullcontext()
