"""The schema of a job's file is the models', and takes and refuses what `spark-purgatory check` does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.support.doc_page import BLOCK
from tools.job_schema import SCHEMA, text

ROOT = Path(__file__).resolve().parents[2]
FILES = [*sorted((ROOT / "conf").glob("*.yaml")), ROOT / "spark_purgatory" / "demo" / "orders.yaml"]
MADE = json.loads(SCHEMA.read_text(encoding="utf-8"))
WHOLE = [
    code
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for language, code in BLOCK.findall(page.read_text(encoding="utf-8"))
    if language == "yaml" and re.search(r"^checkpoint: ", code, re.MULTILINE) and "\noperations:" in code
]
"""Whole files that pages show."""


def test_the_schema_is_that_of_the_models() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == text(), "run python -m tools.job_schema"


@pytest.mark.parametrize("file", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_files_of_the_repository_fit_it(file: Path) -> None:
    jsonschema.validate(yaml.safe_load(file.read_text(encoding="utf-8")), MADE)


def test_the_files_of_the_pages_fit_it() -> None:
    assert len(WHOLE) >= 3
    for code in WHOLE:
        jsonschema.validate(yaml.safe_load(code), MADE)


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("purgatory", "shards", "many"),
        ("purgatory", "emit", "later"),
        ("purgatory", "shard", 4),
        ("purgatory", "shards", 0),
        ("operations", "timout", "1 minute"),
        ("output", "batch_size", []),
    ],
)
def test_a_wrong_field_is_refused(section: str, name: str, value: Any) -> None:
    job = yaml.safe_load(FILES[-1].read_text(encoding="utf-8"))
    job[section][name] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(job, MADE)
