"""Pictures that can be read on light and on dark ground: `... | python -m tools.pictures > picture.svg`.

Each SVG brings its own rules for ``prefers-color-scheme: dark``, because GitHub, editors and the site show it as it is.
They replace the colours of `DARK`. Text without a colour is black. matplotlib writes colours into ``style``; Graphviz
and our own drawings write them into ``fill`` and ``stroke``.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#e6edf3"
DARK = {
    "#000000": INK,
    "black": INK,
    "#1b1b1b": INK,
    "#444444": "#c3c9d1",
    "#5f6368": "#a3a8b3",
    "#808080": "#a3a8b3",
    "#b0b0b0": "#4d5561",
    "#cccccc": "#4d5561",
    "#e0e0e0": "#3b424d",
    "#ffffff": "#161b22",
    "white": "#161b22",
    # Outcomes: completed, expired as a bar and as text, waiting.
    "#2e7d32": "#66bb6a",
    "#ef6c00": "#ffa040",
    "#b84a00": "#ffa040",
    "#1565c0": "#64b5f6",
    # matplotlib's own, and those of the benchmarks.
    "#1f77b4": "#58a6dd",
    "#2ca02c": "#56c156",
    "#d62728": "#ff7b72",
    "#1f6f8b": "#5fb3d1",
    "#546e7a": "#9fb3bd",
    "#b03a2e": "#f08a80",
    "#8a5a00": "#e6a23c",
    "#6a4c93": "#b79be0",
}
"""A colour on light ground, and in its place on dark ground."""
OPENING = re.compile(r"<svg\b[^>]*>")
RULES = re.compile(r"<style>@media \(prefers-color-scheme: dark\).*?</style>\n?", re.DOTALL)
TEXT_STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "spark_purgatory", "font.family": "sans-serif"}
"""matplotlib's settings for a small picture: text as text, and the same numbers give the same file."""


def both_themes(svg: str) -> str:
    """The picture with rules for dark ground, in place of those that it had."""
    svg = RULES.sub("", svg)
    rules = [f"svg{{fill:{INK}}}"]
    for light, dark in DARK.items():
        for what in ("fill", "stroke"):
            if f'{what}="{light}"' in svg:
                rules.append(f'[{what}="{light}"]{{{what}:{dark}}}')
            if f"{what}: {light}" in svg:
                rules.append(f'[style*="{what}: {light}"]{{{what}:{dark}!important}}')
    style = f"<style>@media (prefers-color-scheme: dark){{{' '.join(rules)}}}</style>"
    return OPENING.sub(lambda found: f"{found[0]}\n{style}", svg, count=1)


def on_white(svg: str) -> str:
    """The picture without those rules, on white: a notebook puts it into a page of its own, and its rules with it."""
    ground = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return OPENING.sub(lambda found: f"{found[0]}\n{ground}", RULES.sub("", svg), count=1)


def svg_of(figure: Figure) -> str:
    """The figure without a ground, the same each time that it is drawn."""
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return both_themes(re.sub(r" +$", "", text.getvalue(), flags=re.MULTILINE))


def save(figure: Figure, path: Path) -> None:
    """Write the figure to a file: an SVG for both grounds, or another format on white."""
    from matplotlib import rc_context  # Only those who want a picture need it.

    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(TEXT_STYLE):
        if path.suffix == ".svg":
            path.write_text(svg_of(figure), encoding="utf-8")
        else:
            figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.stdout.write(both_themes(sys.stdin.read()))
