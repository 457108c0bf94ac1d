"""Databricks notebooks as Jupyter notebooks: ``python notebooks/to_jupyter.py notebooks/01_tour.py``.

jupytext reads many text formats, but not that of Databricks. So the cells are written in its percent format, and
jupytext does the rest. ``01_tour.ipynb`` lies next to the source, or in the folder that ``--to`` names. Imports
from `notebook_support` become a cell of functions, so that each cell can be pasted anywhere.
"""

from __future__ import annotations

import argparse
import ast
import re
from pathlib import Path

HEADER = "# Databricks notebook source"
SEPARATOR = "# COMMAND ----------"
MAGIC = "# MAGIC"
SUPPORT = Path(__file__).with_name("notebook_support.py")
HELPERS = "# The helpers of this notebook."
"""The first line of the cell of functions."""
IMPORT = re.compile(r"^from notebook_support import ([\w, ]+)\n", re.MULTILINE)


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


def pasteable(source: str) -> list[tuple[str, str, int]]:
    """The cells of `cells`, with the helpers that a notebook imports as a cell before the one that imports them."""
    found = []
    for kind, text, line in cells(source):
        if kind == "code" and (helpers := IMPORT.search(text)):
            found.append(("code", helper_cell(helpers[1].split(", ")), line))
            text = IMPORT.sub("", text)
        found.append((kind, text, line))
    return found


def helper_cell(names: list[str]) -> str:
    """The functions of `notebook_support` with these names, below the imports that they need."""
    support = SUPPORT.read_text(encoding="utf-8")
    body = ast.parse(support).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef) and node.name in names]
    used = {node.id for each in functions for node in ast.walk(each) if isinstance(node, ast.Name)}
    imports = []
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            node.names = [alias for alias in node.names if (alias.asname or alias.name) in used]
            if node.names:
                imports.append(ast.unparse(node))
    texts = [ast.get_source_segment(support, each) or "" for each in functions]
    return "\n\n\n".join([HELPERS + "\n" + "\n".join(imports), *texts])


def percent(source: str) -> str:
    """The same notebook in jupytext's percent format."""
    parts = []
    for kind, text, _ in pasteable(source):
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
        print(convert(each, given.to / f"{each.stem}.ipynb" if given.to else None))
