"""Where commands print."""

from __future__ import annotations

import re
import sys
import textwrap
from contextlib import AbstractContextManager, nullcontext
from io import TextIOWrapper
from typing import Any

from rich.console import Console
from rich.text import Text

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys instead of showing them, except for line ends and tabs."""


def printable(text: str) -> str:
    r"""A text that a terminal shows and does not obey: control characters become ``\u001b``, as JSON writes them."""
    return CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class PlainConsole(Console):
    """A console that prints texts as they are: brackets are not a style, ``:key:`` is not a picture, and control
    characters are escaped.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(markup=False, emoji=False, **given)

    def render_str(self, text: str, **given: Any) -> Text:
        """Every text that is printed, in tables too."""
        return super().render_str(printable(text), **given)


def terminal(stderr: bool = False) -> Console:
    """The console of commands."""
    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return PlainConsole(stderr=stderr)


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
    return console.status(Text(printable(what))) if console.is_terminal else nullcontext()
