"""``python -m tests.iceberg [--spark 4.0] [ARGUMENTS]``: pytest on this folder, or on what the arguments name.

It takes a release of Spark that Iceberg has a runtime for, by default the last one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from tests.matrix.cells import CELLS
from tests.matrix.environments import CACHE, ROOT, environment_of


def main() -> int:
    """Run pytest there."""
    cells = {cell.name.partition("-")[2]: cell for cell in CELLS if cell.iceberg}
    parser = argparse.ArgumentParser(prog="python -m tests.iceberg")
    parser.add_argument("--spark", choices=cells, default=[*cells][-1])
    asked, given = parser.parse_known_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    environment = environment_of(cells[asked.spark])
    what = given if any(word.startswith("tests/") for word in given) else ["tests/iceberg", *given]
    command = [environment.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *what]
    return subprocess.run(command, env=environment.variables(), cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
