"""A page of the documentation, run block by block.

The blocks of a page run in order, in one namespace. A ``text`` block is what the block before it prints: word for word
after Python, and without its numbers, which are times and sizes, after a command.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"
WITH_SERVERS = {"kafka.md", "object_store.md"}
"""How-to pages that `tests/places/test_pages.py` runs."""
IN_TURN = [
    *(DOCS / f"{name}.md" for name in ("tutorial", "sources", "criteria", "reference/errors")),
    *sorted(path for path in (DOCS / "how-to").glob("*.md") if path.name not in {*WITH_SERVERS, "iceberg.md"}),
]
"""Pages that `tests/spark/test_docs_snippets.py` runs, block by block; `tests/iceberg` runs the one on Iceberg."""
FRAGMENTS = [
    DOCS / f"{name}.md"
    for name in (
        "accumulator",
        "metrics",
        "keys_and_times",
        "operations",
        "upgrading",
        "shipping",
        "choosing",
    )
]
"""Pages with parts of a program, which it runs one after the other."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"\A# ([\w./-]+\.(?:yaml|py))\n")
WIDTH = 100
"""Columns of the terminal in which the commands run."""


class Page:
    """One page, run block by block."""

    def __init__(
        self,
        text: str,
        name: str,
        places: Mapping[str, str],
        command: Callable[[list[str]], str],
        names: Mapping[str, Any] | None = None,
    ) -> None:
        """``places``: what the page calls folders and servers, and what they are here; ``command`` runs the words of a
        line that begins with spark-purgatory or python and tells what it printed; ``names``: what the page's Python
        knows. A block of Python whose first line names a file is written there and not run.
        """
        self.names = dict(names or {})
        self.name = name
        self.ran: list[str] = []
        self._places = places
        self._command = command
        self._text = text
        self._printed = ""

    def run(self) -> None:
        """Run every block; AssertionError if one prints something else than the page shows."""
        for match in BLOCK.finditer(self._text):
            language, code = match.groups()
            for shown, real in self._places.items():
                code = code.replace(shown, real)
            line = self._text.count("\n", 0, match.start(2))
            match language:
                case "python" if name := FILE_NAME.match(code):
                    Path(name[1]).write_text(code, encoding="utf-8")
                case "python":
                    self._printed = self._python(code, line)
                case "bash":
                    self._printed = "".join(map(self._line, code.replace("\\\n", " ").splitlines()))
                case "yaml":
                    name = FILE_NAME.match(code)
                    assert name, f"{self.name}, line {line}: the first line of a YAML block names its file"
                    Path(name[1]).write_text(code, encoding="utf-8")
                case "text":
                    self._compare(code, line)
                case _:
                    continue
            self.ran.append(language)

    def _python(self, code: str, line: int) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            # Blank lines in front, so that a traceback has the page's line numbers.
            exec(compile("\n" * line + code, self.name, "exec"), self.names)
        return printed.getvalue()

    def _line(self, line: str) -> str:
        words = shlex.split(line, comments=True)
        if words[:1] not in (["spark-purgatory"], ["python"]):
            return ""  # pip and the like
        if words[-2:-1] != [">"]:
            return self._command(words)
        Path(words[-1]).write_text(self._command(words[:-2]), encoding="utf-8")
        return ""

    def _compare(self, shown: str, line: int) -> None:
        said = f"{self.name}, line {line}: the page shows\n{shown}\nand this was printed:\n{self._printed}"
        wanted, printed = lines_of(shown), lines_of(self._printed)
        if self.ran[-1] == "python":
            assert wanted and wanted == printed, said
        else:
            assert {without_numbers(each) for each in wanted} <= {without_numbers(each) for each in printed}, said


def lines_of(text: str) -> list[str]:
    """The lines that are not blank, without spaces at their ends."""
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def without_numbers(line: str) -> str:
    """A line as words: numbers, and the lines and spaces that their width changes, left out."""
    return " ".join(re.sub(r"[\d.,]+|[─━┏┳┓┡╇┩└┴┘│┃]+", " ", line).split())
