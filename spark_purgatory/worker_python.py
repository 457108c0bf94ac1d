"""Whether a Python on this machine can run Spark's workers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

PACKAGES = ("numpy", "pandas", "pyarrow")
"""What it needs at least; how it finds ``spark_purgatory`` is Spark's matter too."""
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
