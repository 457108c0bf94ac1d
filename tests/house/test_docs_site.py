"""The site has every page of docs/ and loads nothing from other servers; `make docs` follows its links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
HOOKS = (ROOT / "site_hooks.py").read_text(encoding="utf-8")
PAGES = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))


def entries(nav: Any) -> Iterator[str]:
    """The paths in a navigation, which is nested."""
    if isinstance(nav, str):
        yield nav
    else:
        for each in nav.values() if isinstance(nav, dict) else nav:
            yield from entries(each)


def test_the_navigation_has_every_page_once() -> None:
    outside = dict(re.findall(r'^    "([\w./]+\.md)": "([\w./]+\.md)",$', HOOKS, re.MULTILINE))
    assert all((ROOT / path).is_file() for path in outside)
    assert sorted(entries(SITE["nav"])) == sorted([*PAGES, *outside.values()])


def test_a_page_loads_nothing_from_other_servers() -> None:
    assert SITE["theme"]["font"] is False
    assert "repo_url" not in SITE, "the theme would ask GitHub for the stars of the repository at each page view"
    for name in ("extra_css", "extra_javascript"):
        assert all((ROOT / "docs" / path).is_file() for path in SITE.get(name, [])), name


@pytest.mark.parametrize("page", PAGES)
def test_a_diagram_is_a_picture(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert "```mermaid" not in text, "the site would load a script from another server to draw it"
