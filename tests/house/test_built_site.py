"""The built site: its search leads to the page that answers, and its pages have what GitHub cannot show."""

from __future__ import annotations

import html
import logging
import os
import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
BOX = re.compile(
    r"doc-object-name[^>]*>([^<]+)</span>(?:(?!</h\d>).)*</h\d>\s*"
    r'<div class="doc-signature highlight">(.*?)</div>',
    re.DOTALL,
)
"""A name of the reference, and the box below its heading."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    logging.getLogger("mkdocs").setLevel(logging.ERROR)
    os.environ["NO_MKDOCS_2_WARNING"] = "1"
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=False))
    return folder


def test_the_site_publishes_what_belongs_to_it(site: Path) -> None:
    assert (site / "schema.json").is_file() and not (site / "ruff.toml").exists()
    home = (site / "index.html").read_text(encoding="utf-8")
    assert '<link rel="canonical" href="https://spark-purgatory.github.io/spark-purgatory/' in home
    assert 'href="https://github.com/spark-purgatory/spark-purgatory"' in home
    assert 'data-md-component="source"' not in home, "it asks GitHub for the repository's stars"


def test_a_page_that_has_python_and_yaml_shows_them_side_by_side(site: Path) -> None:
    page = (site / "metrics.html").read_text(encoding="utf-8")
    titles = re.findall(r'<label for="__tabbed_1_\d">(.*?)</label>', page)
    assert titles == ["Python", "Job's file (YAML)"]


def test_the_reference_has_types_and_no_box_that_repeats_its_heading(site: Path) -> None:
    boxes = 0
    for page in (site / "reference").glob("*.html"):
        text = page.read_text(encoding="utf-8")
        for name, box in BOX.findall(text):
            boxes += 1
            assert re.sub(r"<[^>]+>", "", box).strip() != name, f"{page.name}: {name}"
    assert boxes > 50
    resolve = (site / "reference" / "purgatory.html").read_text(encoding="utf-8")
    assert ") -> DataFrame" in html.unescape(re.sub(r"<[^>]+>", "", resolve))
