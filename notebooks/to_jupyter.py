"""Databricks notebooks as Jupyter notebooks: ``python notebooks/to_jupyter.py notebooks/01_tour.py``.

jupytext reads many text formats, but not that of Databricks. So the cells are written in its percent format, and
jupytext does the rest. ``01_tour.ipynb`` lies beside the source, or in the folder that ``--to`` names.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

HEADER = "# Databricks notebook source"
SEPARATOR = "# COMMAND ----------"
MAGIC = "# MAGIC"
SUPPORT = Path(__file__).with_name("notebook_support.py")


def cells(source: str) -> list[tuple[str, str, int]]:
    """The cells of a notebook in Databricks' source format: "markdown" or "code", the text, its first line."""
    lines = source.splitlines()
    if not lines or lines[0] != HEADER:
        raise ValueError(f"the first line must be {HEADER!r}: this is no notebook of Databricks")
    starts = [0] + [i for i, line in enumerate(lines) if line == SEPARATOR]
    found = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        first = next((i for i in range(start + 1, end) if lines[i].strip()), end)
        text = lines[first:end]
        while text and not text[-1].strip():
            text.pop()
        if not text:
            continue
        if not any(line.startswith(MAGIC) for line in text):
            found.append(("code", "\n".join(text), first + 1))
        elif text[0] == f"{MAGIC} %md" and all(line.startswith(MAGIC) for line in text):
            plain = [line.removeprefix(MAGIC).removeprefix(" ") for line in text[1:]]
            found.append(("markdown", "\n".join(plain), first + 2))
        else:
            raise ValueError(f"line {first + 1}: a cell is either Python, or all {MAGIC!r} and begins with %md")
    return found


def percent(source: str) -> str:
    """The same notebook in jupytext's percent format."""
    parts = []
    for kind, text, _ in cells(source):
        if kind == "markdown":
            text = "\n".join(f"# {line}".rstrip() for line in text.splitlines())
            parts.append(f"# %% [markdown]\n{text}\n")
        else:
            parts.append(f"# %%\n{text}\n")
    return "\n".join(parts)


def convert(notebook: Path, to: Path | None = None) -> Path:
    """Write a notebook as .ipynb; where it is."""
    import jupytext

    target = to or notebook.with_suffix(".ipynb")
    read = jupytext.reads(percent(notebook.read_text(encoding="utf-8")), fmt="py:percent")
    read.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    jupytext.write(read, target, fmt="ipynb")
    return target


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--to", type=Path, help="folder for the .ipynb files")
    given = parser.parse_args()
    for each in given.notebooks:
        if given.to:
            given.to.mkdir(parents=True, exist_ok=True)
            shutil.copy(SUPPORT, given.to)  # the notebooks import it
        print(convert(each, given.to / f"{each.stem}.ipynb" if given.to else None))
