"""Which releases the tests were run with: what `make test-matrix` wrote into the file beside this one."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from spark_purgatory.doctor.finding import Finding, note
from spark_purgatory.worker_python import release_numbers

FILE = Path(__file__).with_name("verified.json")
OLDEST_SPARK = (4, 0)
"""Releases before it lack what the library calls."""
TAKE = "take Spark 4.0.5 or later: pip install 'spark-purgatory[spark]'"


@cache
def verified() -> dict[str, Any]:
    """The file: ``date``, ``cells`` (an environment each, and how its tests ended), ``upgrades`` of checkpoints."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def verified_releases() -> list[str]:
    """The releases of Spark that the tests passed with, the oldest first."""
    passed = {cell["spark"] for cell in verified()["cells"] if not cell["failed"]}
    return sorted(passed, key=release_numbers)


def release_finding(what: str, found: str) -> Finding:
    """Whether a release of Spark was tested. One that was not is worth knowing, and no reason to stop."""
    if release_numbers(found)[:2] < OLDEST_SPARK:
        return Finding(what, found, TAKE)
    tested = verified_releases()
    if found in tested:
        return Finding(what, f"{found}, tested on {verified()['date']}")
    return note(what, f"{found}; tested are {', '.join(tested)} ({verified()['date']})")
