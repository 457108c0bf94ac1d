"""docs/testing.md: every snippet runs, as tests that a reader would copy."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
TESTS = re.findall(r"^def (test_\w+)", "\n".join(SNIPPETS), re.MULTILINE)


def namespace() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for snippet in SNIPPETS:
        exec(snippet, names)
    return names


@pytest.mark.long
@pytest.mark.parametrize("name", TESTS)
def test_a_snippet_passes(name: str, spark: SparkSession, tmp_path: Path) -> None:
    fixtures = {"spark": spark}
    test = namespace()[name]
    for number, parameters in enumerate(cases(test)):
        given = {**fixtures, "tmp_path": tmp_path / str(number), **parameters}
        test(**{argument: given[argument] for argument in inspect.signature(test).parameters})


def cases(test: Any) -> list[dict[str, Any]]:
    """What `pytest.mark.parametrize` gives the test, once a call."""
    found: list[dict[str, Any]] = [{}]
    for mark in getattr(test, "pytestmark", []):
        name, values = mark.args
        found = [{**case, name: value} for case in found for value in values]
    return found


def test_there_are_snippets_of_every_kind() -> None:
    assert len(TESTS) >= 7
