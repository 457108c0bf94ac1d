"""The site has every page of docs/ and loads nothing from other servers; `make docs` follows its links."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
HOOKS = (ROOT / "site_hooks.py").read_text(encoding="utf-8")
TABLE = "|+│┃┏┡└"
COLUMNS = 96
"""Of code that fits a page at 1280 pixels; `docs/ruff.toml` says the same for the Python of pages."""
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
    partial = (ROOT / SITE["theme"]["custom_dir"] / "partials" / "source.html").read_text(encoding="utf-8")
    assert "data-md-component" not in partial, "the theme would ask GitHub for the stars at each view of a page"
    for name in ("extra_css", "extra_javascript"):
        assert all((ROOT / "docs" / path).is_file() for path in SITE.get(name, [])), name


def too_wide(text: str) -> list[str]:
    """Lines of code, and of tables that are printed, that a page cuts. Sentences may be longer."""
    wide = []
    for language, code in re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
        lines = [line for line in inspect.cleandoc(code).splitlines() if len(line) > COLUMNS]
        wide += [line for line in lines if language != "text" or line[0] in TABLE]
    return wide


@pytest.mark.parametrize("page", PAGES)
def test_code_fits_its_page(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    if page.startswith("notebooks/"):
        text = re.sub(r"^```text\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)  # wide results scroll
    assert too_wide(text) == []
