"""Checks if a Python, with its packages, can run Spark's workers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

PACKAGES = ("numpy", "pandas", "pyarrow")  # besides ``spark_purgatory``, which Spark may ship to workers
# Earlier releases of these lines give pyarrow a float instead of an int, which pyarrow 26 refuses.
SLICES_BY_NUMBERS_FROM: Mapping[tuple[int, ...], tuple[int, ...]] = {(4, 0): (4, 0, 5), (4, 1): (4, 1, 4)}
STRICT_ARROW = (26,)
ASKED = f"import {', '.join(PACKAGES)}, sys; print(*sys.version_info[:2])"


@cache
def why_unfit(executable: str) -> str:
    """Return what is wrong with a Python, as a text after its name; "" if nothing is."""
    path = shutil.which(executable)
    if path is None:
        return "which is not there"
    if Path(path).parent == Path(sys.executable).parent and Path(path).samefile(sys.executable):
        return ""
    tried = subprocess.run([path, "-c", ASKED], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        printed = (tried.stderr.strip() or f"exit code {tried.returncode}").splitlines()[-1]
        return f"which is {path} and lacks packages ({printed})"
    here = tuple(map(str, sys.version_info[:2]))
    found = tuple(tried.stdout.split())
    return "" if found == here else f"which is {path} and Python {'.'.join(found)}, not {'.'.join(here)} as here"


def arrow_remedy(spark: str, arrow: str) -> str:
    """Return the remedy if ``applyInPandasWithState`` of Spark (``4.0.5``) fails with pyarrow (``26.0.1``), or ""."""
    mended = SLICES_BY_NUMBERS_FROM.get(release_numbers(spark)[:2], ())
    if release_numbers(spark) >= mended or release_numbers(arrow) < STRICT_ARROW:
        return ""
    return f"pip install 'pyarrow<{STRICT_ARROW[0]}', or take Spark {'.'.join(map(str, mended))}"


def release_numbers(release: str) -> tuple[int, ...]:
    """Return the numbers of a release: ``4.2.0.dev1`` -> ``(4, 2, 0)``."""
    parts = release.split(".")
    count = next((at for at, part in enumerate(parts) if not part.isdigit()), len(parts))
    return tuple(int(part) for part in parts[:count])
