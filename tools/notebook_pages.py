"""`python -m tools.notebook_pages`: docs/notebooks, made by running the notebooks; names of some make only those."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib
from matplotlib import pyplot
from matplotlib.figure import Figure

from notebooks.notebook_support import local_session
from notebooks.to_jupyter import cells
from tools.pictures import svg_of

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("0*.py"))
PAGES = ROOT / "docs" / "notebooks"
MADE = """*This page is a run of [notebooks/{name}.py](../../notebooks/{name}.py): its code, what it printed and what it
drew. `python -m tools.notebook_pages` makes it, and a test runs the notebook and compares.*
"""
OTHER = re.compile(r"\]\((0\d_\w+)\.py\)")
"""A link to another notebook: its page is there too."""


def page_of(
    notebook: Path, names: dict[str, Any], look_at: Callable[[Figure], None] = lambda figure: None
) -> tuple[str, dict[str, str]]:
    """Run a notebook; its page, and its pictures by their names.

    ``names`` is what its cells know, ``spark`` for instance; ``look_at`` is called with each picture.
    """
    parts: list[str] = []
    pictures: dict[str, str] = {}

    def show() -> None:
        for number in pyplot.get_fignums():
            figure = pyplot.figure(number)
            look_at(figure)
            name = f"{notebook.stem}_{len(pictures) + 1}.svg"
            pictures[name] = svg(figure)
            parts.append(f"![{'; '.join(axes.get_title() for axes in figure.axes)}]({name})")
        pyplot.close("all")

    matplotlib.use("Agg")
    for kind, text, line in cells(notebook.read_text(encoding="utf-8")):
        if kind == "markdown":
            parts.append(OTHER.sub(r"](\1.md)", text).replace("](../docs/", "](../"))
            continue
        parts.append(f"```python\n{text}\n```")
        drawn = len(parts)
        with contextlib.redirect_stdout(io.StringIO()) as printed, mock.patch.object(pyplot, "show", show):
            # Blank lines, so that an error names the line of the file.
            exec(compile("\n" * (line - 1) + text, notebook, "exec"), names)
        if said := "\n".join(each.rstrip() for each in printed.getvalue().strip("\n").splitlines()):
            parts.insert(drawn, f"```text\n{said}\n```")
    title, _, rest = parts[0].partition("\n")
    return "\n\n".join([title, MADE.format(name=notebook.stem) + rest, *parts[1:], ""]), pictures


def svg(figure: Figure) -> str:
    """The picture for both grounds, the same each time that it is drawn."""
    with matplotlib.rc_context({"svg.hashsalt": "notebooks"}):
        return svg_of(figure)


def main(names: list[str]) -> None:
    """Run notebooks, and write their pages."""
    sys.path.insert(0, str(ROOT / "notebooks"))  # where the cells find notebook_support
    spark = local_session()
    PAGES.mkdir(exist_ok=True)
    for notebook in NOTEBOOKS:
        if names and notebook.stem not in names:
            continue
        text, pictures = page_of(notebook, {"spark": spark, "__name__": "__main__"})
        for old in PAGES.glob(f"{notebook.stem}*"):
            old.unlink()
        for name, content in {f"{notebook.stem}.md": text, **pictures}.items():
            (PAGES / name).write_text(content, encoding="utf-8")
            print(PAGES / name)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
