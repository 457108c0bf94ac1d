"""``python -m tests.iceberg``: the tests of this folder, on the release of Spark that Iceberg has a runtime for."""

from __future__ import annotations

import subprocess
import sys

from tests.matrix.cells import Cell
from tests.matrix.environments import CACHE, ROOT, environment_of
from tests.support.iceberg_lake import SPARK


def main() -> int:
    """Run pytest there."""
    CACHE.mkdir(parents=True, exist_ok=True)
    environment = environment_of(Cell("iceberg", SPARK))
    command = [environment.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(sys.argv[1:] or ["tests/iceberg"])]
    return subprocess.run(command, env=environment.variables(), cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
