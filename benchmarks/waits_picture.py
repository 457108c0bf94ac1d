"""`python -m benchmarks.waits_picture`: docs/pictures/long_waits.svg, milliseconds against what waits.

It draws what `benchmarks.long_waits` and `benchmarks.beside_flink` wrote last, and measures nothing. Where several
files have the same contender at the same size, the first one counts: ratios are only right within one run, so run all
contenders of the picture in one: `--contenders blob,log,join,flink_rocksdb`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.harness import ROOT
from benchmarks.long_results import Standing, draw_picture

RESULTS = ROOT / "bench-results"
PICTURE = ROOT / "docs" / "pictures" / "long_waits.svg"


def read(files: list[Path]) -> list[Standing]:
    """Standings of all files, each contender and size once."""
    found: dict[tuple[str, int, str], Standing] = {}
    for file in files:
        for fields in json.loads(file.read_text(encoding="utf-8"))["standings"]:
            at = Standing(**fields)
            found.setdefault((at.series, at.waiting, at.contender), at)
    return list(found.values())


def main(
    results: Annotated[list[Path] | None, typer.Argument(help="Files of numbers, the most important first.")] = None,
    picture: Annotated[Path, typer.Option(help="Where the picture goes.")] = PICTURE,
) -> None:
    """Draw the picture of the documentation."""
    files = results or [file for file in (RESULTS / "long_waits.json", RESULTS / "flink_l.json") if file.exists()]
    if not files:
        raise typer.BadParameter(f"there is no {RESULTS / 'long_waits.json'}: run make bench-long first")
    draw_picture(picture, read(files))
    print(f"picture: {picture}")


if __name__ == "__main__":
    typer.run(main)
