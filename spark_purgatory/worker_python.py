"""Whether a Python can run Spark's workers, with its packages."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

PACKAGES = ("numpy", "pandas", "pyarrow")
"""What it needs at least; how it finds ``spark_purgatory`` is Spark's matter too."""
SLICES_BY_NUMBERS_FROM: Mapping[tuple[int, ...], tuple[int, ...]] = {(4, 0): (4, 0, 5), (4, 1): (4, 1, 4)}
"""Releases before these give pyarrow a float where it asks for an int, and pyarrow 26 refuses it."""
STRICT_ARROW = (26,)
ASKED = f"import {', '.join(PACKAGES)}, sys; print(*sys.version_info[:2])"


@cache
def why_unfit(executable: str) -> str:
    """What is wrong with it, to be said after its name; "" if nothing is."""
    path = shutil.which(executable)
    if path is None:
        return "which is not there"
    if Path(path).parent == Path(sys.executable).parent and Path(path).samefile(sys.executable):
        return ""
    tried = subprocess.run([path, "-c", ASKED], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        said = (tried.stderr.strip() or f"exit code {tried.returncode}").splitlines()[-1]
        return f"which is {path} and lacks packages ({said})"
    here = tuple(map(str, sys.version_info[:2]))
    there = tuple(tried.stdout.split())
    return "" if there == here else f"which is {path} and Python {'.'.join(there)}, not {'.'.join(here)} as here"


def arrow_remedy(spark: str, arrow: str) -> str:
    """What to do about a pyarrow that ``applyInPandasWithState`` of a Spark fails with; "" if it does not.

    Args:
        spark: a release of Spark, ``4.0.5``.
        arrow: a version of pyarrow, ``26.0.1``.
    """
    mended = SLICES_BY_NUMBERS_FROM.get(release_numbers(spark)[:2], ())
    if release_numbers(spark) >= mended or release_numbers(arrow) < STRICT_ARROW:
        return ""
    return f"pip install 'pyarrow<{STRICT_ARROW[0]}', or take Spark {'.'.join(map(str, mended))}"


def release_numbers(release: str) -> tuple[int, ...]:
    """``4.2.0.dev1`` -> ``(4, 2, 0)``."""
    parts = release.split(".")
    count = next((at for at, part in enumerate(parts) if not part.isdigit()), len(parts))
    return tuple(int(part) for part in parts[:count])
