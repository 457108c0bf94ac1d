"""Every picture can be read on white and on the dark ground of GitHub and of the site, and is what its tool draws."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tools.bench_picture import PICTURE, drawn
from tools.timeline_pictures import pictures

ROOT = Path(__file__).resolve().parents[2]
PICTURES = sorted((ROOT / "docs").rglob("*.svg"))
DARK_GROUNDS = ("#0d1117", "#1e2129")
"""GitHub's, and that of the site's dark colours."""
NAMES = {"black": "#000000", "white": "#ffffff"}
RULE = re.compile(r"(svg|\[[^\]]+\])\{(\w+):(#\w{6})(?:!important)?\}")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def contrast(colour: str, ground: str) -> float:
    """WCAG's contrast of two colours, 1 to 21."""

    def luminance(text: str) -> float:
        parts = [int(text[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    bright, dim = sorted((luminance(NAMES.get(colour, colour)), luminance(ground)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def given(element: ElementTree.Element, what: str) -> str | None:
    """The colour that an element gives for ``fill`` or ``stroke``."""
    styled = re.search(rf"\b{what}: ([#\w]+)", element.get("style", ""))
    return styled[1] if styled else element.get(what)


def colours(svg: str) -> set[tuple[str, str, str]]:
    """What is drawn ("text", "stroke"), its colour on light ground and its colour on dark ground."""
    found: set[tuple[str, str, str]] = set()
    dark = {(what, where): colour for where, what, colour in RULE.findall(svg)}

    def on_dark(what: str, light: str) -> str:
        styled, plain = f'[style*="{what}: {light}"]', f'[{what}="{light}"]'
        return dark.get((what, styled), dark.get((what, plain), light))

    def look(element: ElementTree.Element, light: str, shade: str, is_text: bool) -> None:
        fill, stroke = given(element, "fill"), given(element, "stroke")
        if fill and fill != "none":
            light, shade = fill, on_dark("fill", fill)
        is_text |= (element.get("id") or "").startswith("text_") or element.tag.endswith("}text")
        if is_text and element.tag.endswith(("}text", "}tspan", "}use")):
            found.add(("text", light, shade))
        if stroke and stroke not in ("none", "transparent"):
            found.add(("stroke", stroke, on_dark("stroke", stroke)))
        for child in element:
            look(child, light, shade, is_text)

    look(ElementTree.fromstring(svg), "black", dark.get(("fill", "svg"), "black"), False)
    return found


def faults(svg: str) -> list[str]:
    """Words of a contrast below 4.5 on any ground, and lines that are seen on white and not on dark ground."""
    wrong = [] if "prefers-color-scheme: dark" in svg else ["it has no rules for dark ground"]
    for what, light, dark in sorted(colours(svg)):
        on_white, on_dark = contrast(light, "#ffffff"), min(contrast(dark, ground) for ground in DARK_GROUNDS)
        if what == "text" and min(on_white, on_dark) < 4.5:
            wrong.append(f"text {light}: {on_white:.1f} on white, {on_dark:.1f} on dark")
        if what == "stroke" and on_white >= 3 > on_dark:
            wrong.append(f"line {light}: {on_white:.1f} on white, {on_dark:.1f} on dark")
    return wrong


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_can_be_read_on_both_grounds(path: Path) -> None:
    svg = path.read_text(encoding="utf-8")
    assert colours(svg) and faults(svg) == []


def test_a_picture_that_cannot_be_read_is_found() -> None:
    drawn = '<text fill="#cccccc">a</text><text>b</text><path stroke="black"/>'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg">{drawn}</svg>'
    assert faults(svg) == [
        "it has no rules for dark ground",
        "line black: 21.0 on white, 1.1 on dark",
        "text #cccccc: 1.6 on white, 10.0 on dark",
        "text black: 21.0 on white, 1.1 on dark",
    ]


def test_the_timelines_are_those_that_the_tool_draws() -> None:
    for name, content in pictures().items():
        assert (ROOT / "docs" / "pictures" / name).read_text(encoding="utf-8") == content, name


def test_the_picture_of_the_benchmarks_is_of_the_figures_in_their_table() -> None:
    assert PICTURE.read_text(encoding="utf-8") == drawn(), "run python -m tools.bench_picture"


def test_the_wide_and_the_narrow_timeline_fit_their_screens() -> None:
    for name, content in pictures().items():
        width = int(re.search(r'viewBox="0 0 (\d+)', content)[1])  # type: ignore[index]
        assert width <= (358 if "phone" in name else 780)
        # A capital of Helvetica is at most 0.75 of its size wide, and a letter 0.56 on average.
        for x, extra, words in re.findall(r'<text x="([\d.]+)" y="[\d.]+"(.*?)>(.*?)</text>', content):
            size = int((re.search(r'font-size="(\d+)"', extra) or [0, 13])[1])
            taken = 0.56 * size * len(re.sub(r"<[^>]+>", "", words))
            left = float(x) - (taken if 'anchor="end"' in extra else taken / 2 if 'anchor="middle"' in extra else 0)
            assert left >= -1 and left + taken <= width + 1, f"{name}: {words}"


def test_the_pictures_of_html_in_pages_exist_and_have_words_for_those_who_do_not_see_them() -> None:
    shown = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        shown += re.findall(r'(?:src|srcset)="([^"]+\.svg)"', text)
        for path in re.findall(r'(?:src|srcset)="([^"]+\.svg)"', text):
            assert (page.parent / path).is_file(), f"{page.name}: {path}"
        assert all('alt="' in image for image in re.findall(r"<img [^>]+>", text)), page.name
    assert sum("timeline_phone" in path for path in shown) == 3


def test_the_site_leaves_the_colours_of_pictures_to_them() -> None:
    assert "invert(" not in (ROOT / "docs" / "stylesheets" / "site.css").read_text(encoding="utf-8")
