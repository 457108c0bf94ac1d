"""`python -m tools.bench_picture`: docs/pictures/bench.svg, of the first row of the table in benchmarks/RESULTS.md."""

from __future__ import annotations

import re
from pathlib import Path

from tools.pictures import both_themes

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
PICTURE = ROOT / "docs" / "pictures" / "bench.svg"
COLOURS = ("#1565c0", "#90caf9", "#90a4ae")
WIDTH, BARS, STEP = 420, 350, 46
UNITS = {"s": "seconds"}
WHERE = (
    "Two cores of a shared AMD EPYC, local[2]; the same operations",
    "arrive in each micro-batch (make bench-long).",
)


def figures() -> tuple[str, str, dict[str, float]]:
    """What was measured, its unit, and the figure of each contender."""
    row = RESULTS.read_text(encoding="utf-8").split("| --- |", 1)[1].splitlines()[1]
    title, ours, others = (cell.strip() for cell in row.strip("|").split("|")[:3])
    found = [("spark_purgatory", *each) for each in measures(ours)] + [("Spark", *each) for each in measures(others)]
    (unit,) = {unit for *_, unit in found}
    separators = {"spark_purgatory": ", ", "Spark": " "}
    return title, unit, {f"{whose}{separators[whose]}{name}": float(number) for whose, name, number, _ in found}


def measures(cell: str) -> list[tuple[str, str, str]]:
    """``a 1 s, b 2 s`` as names, numbers and units."""
    return re.findall(r"([^,]+?) ([\d.]+) (\w+)(?:, |$)", cell)


def drawn() -> str:
    """The picture, narrow enough for a phone: the name of each contender above its bar."""
    title, unit, measured = figures()
    height = 50 + STEP * len(measured) + 38
    scale = BARS / max(measured.values())
    seen = f"{title}, {UNITS[unit]}: " + ", ".join(f"{name} {number}" for name, number in measured.items())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{seen}" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="Helvetica,Arial,sans-serif" font-size="14" fill="#1b1b1b">',
        f'<text x="0" y="18" font-size="16" font-weight="bold">{title}</text>',
        f'<text x="0" y="38" fill="#5f6368">{UNITS[unit]}; less is better</text>',
    ]
    for place, ((name, number), colour) in enumerate(zip(measured.items(), COLOURS, strict=True)):
        y, width = 50 + STEP * place, number * scale
        parts.append(f'<text x="0" y="{y + 16}">{name}</text>')
        parts.append(f'<rect x="0" y="{y + 22}" width="{width:.0f}" height="18" fill="{colour}"/>')
        parts.append(f'<text x="{width + 8:.0f}" y="{y + 36}" font-weight="bold">{number} {unit}</text>')
    for line, words in enumerate(WHERE):
        parts.append(f'<text x="0" y="{height - 22 + 16 * line}" fill="#5f6368" font-size="12">{words}</text>')
    return both_themes("\n".join([*parts, "</svg>", ""]))


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
    print(PICTURE)
