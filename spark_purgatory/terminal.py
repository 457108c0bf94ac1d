"""The console of commands."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from io import TextIOWrapper
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

# Characters that a terminal obeys instead of showing them, except for line ends and tabs.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""Return a text whose control characters are escaped as in JSON, for example as ``\u001b``."""
    return CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class PlainConsole(Console):
    """A console without styles in brackets and pictures like ``:key:``, which escapes control characters."""

    def __init__(self, **given: Any) -> None:
        super().__init__(markup=False, emoji=False, **given)

    def render_str(self, text: str, **given: Any) -> Text:
        """Escape every text that is printed, also in tables."""
        return super().render_str(printable(text), **given)


def terminal(stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return PlainConsole(stderr=stderr)


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a sentence: on a terminal in lines that end between words, elsewhere as one line that can be searched."""
    if console.is_terminal:
        text = "\n".join(_lines(line, console.width) for line in text.splitlines())
    console.print(text, style=style, soft_wrap=True, highlight=False)


def _lines(line: str, width: int) -> str:
    """Cut a line between words, with its indent in all parts; a long path stays whole."""
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table of a name and numbers in each row."""
    made = Table(title=title, title_justify="left")
    for i, name in enumerate(head):
        made.add_column(name, justify="right" if i else "left")
    for row in rows:
        made.add_row(*row)
    return made


def at_work(console: Console, what: str) -> AbstractContextManager[object]:
    return console.status(Text(printable(what))) if console.is_terminal else nullcontext()
