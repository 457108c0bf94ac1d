"""The notebooks are notebooks: for Databricks, and for Jupyter through jupytext."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import jupytext
import nbformat
import pytest

from notebooks.to_jupyter import HEADER, MAGIC, cells, convert, pasteable, percent
from tools.notebook_pages import draws, is_left_out, jupyter_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("0*.py"))
SHARED = set(re.findall(r"^def (\w+)", (ROOT / "notebooks" / "notebook_support.py").read_text("utf-8"), re.MULTILINE))
TITLE = {path.stem: int(path.name[:2]) for path in NOTEBOOKS}


def test_there_are_nine_and_the_page_about_them_names_each() -> None:
    page = (ROOT / "notebooks" / "README.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 9
    assert set(re.findall(r"\((0\d_\w+\.py)\)", page)) == {path.name for path in NOTEBOOKS}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_opens_as_a_jupyter_notebook_with_the_same_cells(path: Path, tmp_path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    meant = [(kind, text) for kind, text, _ in pasteable(source)]
    assert meant[0][0] == "markdown" and meant[0][1].startswith(f"# {TITLE[path.stem]}. ")
    notebook = nbformat.read(convert(path, tmp_path / "notebook.ipynb"), as_version=4)
    nbformat.validate(notebook)
    assert [(cell["cell_type"], cell["source"]) for cell in notebook["cells"]] == meant
    for cell in notebook["cells"]:
        assert MAGIC not in cell["source"] and "COMMAND ---" not in cell["source"]
        if cell["cell_type"] == "code":
            ast.parse(cell["source"])
    # jupytext opens the percent format as it is, too.
    assert len(jupytext.reads(percent(source), fmt="py:percent").cells) == len(meant)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_page_has_its_cells_and_all_pictures(path: Path) -> None:
    page = (PAGES / f"{path.stem}.md").read_text(encoding="utf-8")
    found = pasteable(path.read_text(encoding="utf-8"))
    said = "run python -m tools.notebook_pages " + path.stem
    assert re.findall(r"^```python\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL) == [
        text for kind, text, _ in found if kind == "code" and not is_left_out(text) and not draws(text)
    ], said
    for heading in (text.partition("\n")[0] for kind, text, _ in found if kind == "markdown"):
        assert heading in page, said
    pictures = re.findall(r"^!\[(.+)\]\((.+)\)$", page, re.MULTILINE)
    assert {name for _, name in pictures} == {file.name for file in PAGES.glob(f"{path.stem}_*.svg")}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_explains_asserts_and_draws(path: Path) -> None:
    found = cells(path.read_text(encoding="utf-8"))
    code = "\n".join(text for kind, text, _ in found if kind == "code")
    assert sum(kind == "markdown" for kind, _, _ in found) >= 5
    assert len(re.findall(r"^ *assert ", code, re.MULTILINE)) >= 3
    assert len(re.findall(r"^plt\.show\(\)", code, re.MULTILINE)) >= 1


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_jupyter_notebook_has_the_cells_of_the_source_and_the_output_of_the_page(path: Path) -> None:
    file = ROOT / "notebooks" / "jupyter" / f"{path.stem}.ipynb"
    assert file.read_text(encoding="utf-8") == jupyter_of(path), "run python -m tools.notebook_pages " + path.stem
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell["cell_type"] == "code"]
    assert [cell["source"] for cell in code] == [
        text for kind, text, _ in pasteable(path.read_text(encoding="utf-8")) if kind == "code"
    ]
    outputs = [output for cell in code for output in cell["outputs"]]
    page = (PAGES / f"{path.stem}.md").read_text(encoding="utf-8")
    printed = [output["text"] for output in outputs if output["output_type"] == "stream"]
    assert printed == re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL) != []
    drawn = [output["data"] for output in outputs if output["output_type"] == "display_data"]
    assert [each["text/plain"] for each in drawn] == re.findall(r"^!\[(.+)\]\(.+\)$", page, re.MULTILINE) != []
    assert all(each["image/svg+xml"].startswith("<?xml") for each in drawn)
    assert not any("<style>@media" in each["image/svg+xml"] for each in drawn), "its rules would reach the whole page"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_reader_can_paste_its_cells_and_sees_every_column(path: Path) -> None:
    page = (PAGES / f"{path.stem}.md").read_text(encoding="utf-8")
    assert "import notebook_support" not in page and "from notebook_support" not in page
    for printed in re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        assert not re.search(r" \.\.\. ", printed), "pandas hides columns: print(frame.to_string())"
        assert "1970-01-01" not in printed, "a watermark that is not there yet"
    names: set[str] = set()
    for kind, text, _ in pasteable(path.read_text(encoding="utf-8")):
        if kind == "code":
            tree = ast.parse(text)
            names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            called = {node.func.id for node in ast.walk(tree)
                      if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}  # fmt: skip
            assert called & SHARED <= names, "a helper is called before the cell that defines it"


def test_jupytext_alone_does_not_know_the_cells_of_databricks() -> None:
    """If this fails, jupytext has learnt them, and `notebooks/to_jupyter.py` can go."""
    source = NOTEBOOKS[0].read_text(encoding="utf-8")
    read = jupytext.reads(source, fmt="py")
    assert [cell["source"] for cell in read.cells] != [text for _, text, _ in cells(source)]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import os\n", "the first line must be"),
        (f"{HEADER}\n{MAGIC} %md\n# a comment\n", "line 2: a cell is either Python"),
        (f"{HEADER}\nx = 1\n\n# COMMAND ----------\n\n{MAGIC} %sql\n{MAGIC} SELECT 1\n", "line 6: a cell is either"),
    ],
)
def test_what_is_no_notebook_is_refused(source: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        cells(source)
