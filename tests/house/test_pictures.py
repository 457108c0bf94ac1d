"""Every picture can be read on white and on the dark ground of GitHub and of the site, and is what its tool draws."""

from __future__ import annotations

import re
from pathlib import Path

from tools.bench_picture import PICTURE, drawn
from tools.timeline_pictures import pictures

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_timelines_are_those_that_the_tool_draws() -> None:
    for name, content in pictures().items():
        assert (ROOT / "docs" / "pictures" / name).read_text(encoding="utf-8") == content, name


def test_the_picture_of_the_benchmarks_is_of_the_figures_in_their_table() -> None:
    assert PICTURE.read_text(encoding="utf-8") == drawn(), "run python -m tools.bench_picture"


def test_the_pictures_of_html_in_pages_exist_and_have_words_for_those_who_do_not_see_them() -> None:
    shown = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        shown += re.findall(r'(?:src|srcset)="([^"]+\.svg)"', text)
        for path in re.findall(r'(?:src|srcset)="([^"]+\.svg)"', text):
            assert (page.parent / path).is_file(), f"{page.name}: {path}"
        assert all('alt="' in image for image in re.findall(r"<img [^>]+>", text)), page.name
    assert sum("timeline_phone" in path for path in shown) == 3
