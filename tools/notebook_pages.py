"""`python -m tools.notebook_pages`: docs/notebooks and notebooks/jupyter, made by running the notebooks.

A page is for the site and GitHub; an ``.ipynb`` file with the same output is for Jupyter, Databricks and Fabric. Names
of some notebooks make only those. The cells are run as a reader pastes them, without `notebook_support`.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib
import nbformat
from matplotlib import pyplot
from matplotlib.figure import Figure
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from notebooks.notebook_support import local_session
from notebooks.to_jupyter import HELPERS, pasteable
from tools.pictures import on_white, svg_of

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("0*.py"))
PAGES = ROOT / "docs" / "notebooks"
JUPYTER = ROOT / "notebooks" / "jupyter"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
MADE = """*A run of [notebooks/{name}.py](../../notebooks/{name}.py), which has the whole code.*
"""
ROWS = "# The rows of this notebook."
"""The first line of a cell that makes or prepares rows."""
CHECK = "# The check of this notebook."
"""The first line of a cell that compares outcomes with other data."""
LEFT_OUT = "<!-- left out -->"
"""Stands on a page for code of which it has only the output."""
OTHER = re.compile(r"\]\((0\d_\w+)\.py\)")
"""A link to another notebook: its page is there too."""
PRINTED = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"^!\[(.+)\]\((.+)\)$", re.MULTILINE)
OUTPUT = re.compile(
    r"^(?:```python\n.*?^```|<!-- left out -->)\n((?:\n```text\n.*?^```\n)?)((?:\n!\[[^\n]+\]\([^\n]+\)\n)*)",
    re.MULTILINE | re.DOTALL,
)
"""A page's cell of code: what it printed, and its pictures."""


@dataclass
class Cell:
    """A cell that ran: its text, what it printed, and its pictures as title and SVG."""

    kind: str
    text: str
    printed: str = ""
    pictures: list[tuple[str, str]] = field(default_factory=list)


def run_of(notebook: Path, names: dict[str, Any]) -> list[Cell]:
    """Run a notebook. ``names`` is what its cells know, such as ``spark``."""
    done: list[Cell] = []

    def show() -> None:
        for number in pyplot.get_fignums():
            figure = pyplot.figure(number)
            title = "; ".join(axes.get_title() for axes in figure.axes)
            done[-1].pictures.append((title, svg(figure)))
        pyplot.close("all")

    matplotlib.use("Agg")
    for kind, text, line in pasteable(notebook.read_text(encoding="utf-8")):
        done.append(Cell(kind, text))
        if kind == "markdown":
            continue
        with contextlib.redirect_stdout(io.StringIO()) as printed, mock.patch.object(pyplot, "show", show):
            # Blank lines, so that an error names the line of the file.
            exec(compile("\n" * (line - 1) + text, notebook, "exec"), names)
        done[-1].printed = "\n".join(each.rstrip() for each in printed.getvalue().strip("\n").splitlines())
    return done


def is_left_out(text: str) -> bool:
    """Return True if a page does not have a cell: helpers, imports and the session, checks that print nothing."""
    checks = "assert " in text and not re.search(r"print\(|\.show\(", text)
    return text.startswith(HELPERS) or "local_session()" in text or checks


def shows_only_output(text: str) -> bool:
    """Return True if a page has what a cell draws or prints, and not its code."""
    return "\nplt.show()" in text or text.startswith((CHECK, ROWS))


def page_of(name: str, run: list[Cell]) -> tuple[str, dict[str, str]]:
    """The page of a notebook that ran, without code that only it needs, and its pictures by their names."""
    parts: list[str] = []
    pictures: dict[str, str] = {}
    for cell in run:
        if cell.kind == "markdown":
            parts.append(OTHER.sub(r"](\1.md)", cell.text).replace("](../docs/", "](../"))
            continue
        if is_left_out(cell.text):
            assert not cell.printed and not cell.pictures
            continue
        parts.append(LEFT_OUT if shows_only_output(cell.text) else f"```python\n{cell.text}\n```")
        if cell.printed:
            parts.append(f"```text\n{cell.printed}\n```")
        for title, drawn in cell.pictures:
            file = f"{name}_{len(pictures) + 1}.svg"
            pictures[file] = drawn
            parts.append(f"![{title}]({file})")
    title, _, rest = parts[0].partition("\n")
    return "\n\n".join([title, MADE.format(name=name) + rest, *parts[1:]]) + "\n", pictures


def jupyter_of(notebook: Path) -> str:
    """The same as a notebook of Jupyter: the cells of the source, with the output and the pictures of its page."""
    made = new_notebook(metadata={"language_info": {"name": "python"}, "kernelspec": KERNEL})
    shown = iter(OUTPUT.findall((PAGES / f"{notebook.stem}.md").read_text(encoding="utf-8")))
    for number, (kind, text, _) in enumerate(pasteable(notebook.read_text(encoding="utf-8")), start=1):
        if kind == "markdown":
            text = OTHER.sub(r"](\1.ipynb)", text).replace("](../docs/", "](../../docs/")
            made.cells.append(new_markdown_cell(text, id=f"cell-{number}"))
            continue
        printed, drawn = ("", "") if is_left_out(text) else next(shown)
        outputs = [new_output("stream", name="stdout", text=each) for each in PRINTED.findall(printed)]
        for title, file in PICTURE.findall(drawn):
            data = {"image/svg+xml": on_white((PAGES / file).read_text(encoding="utf-8")), "text/plain": title}
            outputs.append(new_output("display_data", data=data))
        made.cells.append(new_code_cell(text, id=f"cell-{number}", outputs=outputs))
    return nbformat.writes(made) + "\n"


def svg(figure: Figure) -> str:
    """The picture for both grounds, the same each time that it is drawn."""
    with matplotlib.rc_context({"svg.hashsalt": "notebooks"}):
        return svg_of(figure)


def main(names: list[str]) -> None:
    """Run notebooks, and write their pages."""
    spark = local_session()
    PAGES.mkdir(exist_ok=True)
    JUPYTER.mkdir(exist_ok=True)
    for notebook in NOTEBOOKS:
        if names and notebook.stem not in names:
            continue
        run = run_of(notebook, {"spark": spark, "__name__": "__main__"})
        text, pictures = page_of(notebook.stem, run)
        for old in PAGES.glob(f"{notebook.stem}*"):
            old.unlink()
        for name, content in {f"{notebook.stem}.md": text, **pictures}.items():
            (PAGES / name).write_text(content, encoding="utf-8")
            print(PAGES / name)
        (JUPYTER / f"{notebook.stem}.ipynb").write_text(jupyter_of(notebook), encoding="utf-8")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
