"""A finding and its remedy; the releases of Spark that were tested."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from spark_purgatory.worker_python import release_numbers

FILE = Path(__file__).with_name("verified.json")  # What `make test-matrix` wrote
OLDEST_SPARK = (4, 0)  # Releases before it lack what the library calls
TAKE = "take Spark 4.0.5 or later: pip install 'spark-purgatory[spark]'"


@dataclass(frozen=True)
class Finding:
    """A check: its subject, what was found, and what to do about it ("" if nothing)."""

    what: str
    found: str
    remedy: str = ""
    is_note: bool = False  # Worth knowing, but neither right nor wrong

    @property
    def status(self) -> str:
        """``ok``, ``NO`` where something must be done, ``note``."""
        return "NO" if self.remedy else "note" if self.is_note else "ok"


def note(what: str, found: str) -> Finding:
    return Finding(what, found, is_note=True)


@cache
def verified() -> dict[str, Any]:
    """The file: ``date``, ``cells`` (an environment each with its tests' results), ``upgrades`` of checkpoints."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def verified_releases() -> list[str]:
    """The releases of Spark that the tests passed with, the oldest first."""
    return sorted({cell["spark"] for cell in verified()["cells"] if not cell["failed"]}, key=release_numbers)


def release_finding(what: str, found: str) -> Finding:
    """Report whether a release of Spark was tested. An untested one is a note, not a fault."""
    if release_numbers(found)[:2] < OLDEST_SPARK:
        return Finding(what, found, TAKE)
    tested = verified_releases()
    if found in tested:
        return Finding(what, f"{found}, tested on {verified()['date']}")
    return note(what, f"{found}; tested are {', '.join(tested)} ({verified()['date']})")
