"""The notebooks are notebooks: for Databricks, and for Jupyter through jupytext."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from notebooks.to_jupyter import HEADER, MAGIC, cells, pasteable
from tools.notebook_pages import is_left_out, jupyter_of, shows_only_output

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("0*.py"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_page_has_its_cells_and_all_pictures(path: Path) -> None:
    page = (PAGES / f"{path.stem}.md").read_text(encoding="utf-8")
    found = pasteable(path.read_text(encoding="utf-8"))
    said = "run python -m tools.notebook_pages " + path.stem
    assert re.findall(r"^```python\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL) == [
        text for kind, text, _ in found if kind == "code" and not is_left_out(text) and not shows_only_output(text)
    ], said
    for heading in (text.partition("\n")[0] for kind, text, _ in found if kind == "markdown"):
        assert heading in page, said
    pictures = re.findall(r"^!\[(.+)\]\((.+)\)$", page, re.MULTILINE)
    assert {name for _, name in pictures} == {file.name for file in PAGES.glob(f"{path.stem}_*.svg")}


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
