"""`python -m tools.bench_picture`: docs/pictures/bench.svg, of the first row of the table in benchmarks/RESULTS.md."""

from __future__ import annotations

import re
from pathlib import Path

from tools.pictures import both_themes

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
PICTURE = ROOT / "docs" / "pictures" / "bench.svg"
COLOURS = ("#1565c0", "#90caf9", "#90a4ae")
LEFT, WIDTH, STEP = 300, 370, 36
UNITS = {"s": "seconds"}


def figures() -> tuple[str, str, dict[str, float]]:
    """What was measured, its unit, and the figure of each contender."""
    row = RESULTS.read_text(encoding="utf-8").split("| --- |", 1)[1].splitlines()[1]
    title, unit, ours, others = (cell.strip() for cell in row.strip("|").split("|")[:4])
    found = {f"spark_purgatory, {name}": number for name, number in pairs(ours)}
    return title, unit, {**found, **{f"Spark {name}": number for name, number in pairs(others)}}


def pairs(cell: str) -> list[tuple[str, float]]:
    """``a 1, b 2`` as names and numbers."""
    return [(name, float(number)) for name, number in re.findall(r"([^,]+?) ([\d.]+)(?:, |$)", cell)]


def drawn() -> str:
    """The picture: a bar for each contender."""
    title, unit, measured = figures()
    height = 44 + STEP * len(measured) + 34
    scale = WIDTH / max(measured.values())
    seen = f"{title}, {UNITS[unit]}: " + ", ".join(f"{name} {number}" for name, number in measured.items())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{seen}" viewBox="0 0 760 {height}" '
        f'width="760" height="{height}" font-family="Helvetica,Arial,sans-serif" font-size="14" fill="#1b1b1b">',
        f'<text x="0" y="20" font-size="16" font-weight="bold">{title} ({UNITS[unit]}; less is better)</text>',
    ]
    for place, ((name, number), colour) in enumerate(zip(measured.items(), COLOURS, strict=True)):
        y, width = 44 + STEP * place, number * scale
        parts.append(f'<text x="0" y="{y + 17}">{name}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y + 2}" width="{width:.0f}" height="22" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + width + 8:.0f}" y="{y + 18}">{number} {unit}</text>')
    where = (
        "Two cores of a shared AMD EPYC, local[2]; the same operations arrive in each micro-batch (make bench-long)."
    )
    parts.append(f'<text x="0" y="{height - 10}" fill="#5f6368" font-size="12">{where}</text>')
    return both_themes("\n".join([*parts, "</svg>", ""]))


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
    print(PICTURE)
