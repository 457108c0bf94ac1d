"""The page of the gallery shows what its notebooks hold and print; its job's file is right.

`tests/spark/test_notebooks.py` runs the notebooks, and `tests/spark/test_gallery.py` the job.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from notebooks.to_jupyter import pasteable
from spark_purgatory.cli import app
from tests.support.doc_page import BLOCK

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
CASES = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
LINK = re.compile(r"\]\(notebooks/(0\d_\w+)\.md\)")


def test_there_are_three_cases_and_each_is_a_question() -> None:
    assert len(CASES) == 3
    assert all(case.partition("\n")[0].endswith("?") for case in CASES)
    assert [LINK.findall(case) for case in CASES] == [["07_flights"], ["08_storms"], ["09_transplants"]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: LINK.findall(case)[0])
def test_a_case_shows_a_cell_of_its_notebook_and_what_the_notebook_printed(case: str) -> None:
    name = LINK.findall(case)[0]
    blocks = dict(BLOCK.findall(case))
    assert blocks.keys() == {"python", "text"}
    cells = pasteable((ROOT / "notebooks" / f"{name}.py").read_text(encoding="utf-8"))
    assert blocks["python"].rstrip() in [text for kind, text, _ in cells if kind == "code"]
    lines = blocks["python"].splitlines()
    assert 10 <= len(lines) <= 15 and max(map(len, lines)) <= 80
    printed = (ROOT / "docs" / "notebooks" / f"{name}.md").read_text(encoding="utf-8")
    assert blocks["text"] in [text for language, text in BLOCK.findall(printed) if language == "text"]


def test_check_accepts_the_job_of_the_flights() -> None:
    ran = CliRunner(env={"FLIGHTS": "/tmp/flights"}).invoke(app, ["check", str(ROOT / "conf" / "flights.yaml")])
    assert ran.exit_code == 0, ran.output
    assert "/tmp/flights/scheduled" in ran.output
