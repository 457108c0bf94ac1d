"""Orders and payments for queries that are killed, damaged or live long: a `World` of any length, file by file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.support.places_world import TIMEOUT_S, World

A_FILE = 500
COLUMNS = ["order_id", "status"]


@dataclass(frozen=True)
class Orders(World):
    """One every so many milliseconds."""

    every_ms: int = 1000

    @property
    def step_ms(self) -> int:
        """Between two orders."""
        return self.every_ms


def ends_s(number: int) -> int:
    """The second of event time at which an order is paid, or is too late, if there is one a second."""
    return number + (TIMEOUT_S if number % 4 == 3 else 37 * number % (TIMEOUT_S + 1))


def land(folder: Path, files: range, size: int = A_FILE, every_ms: int = 1000) -> None:
    """Files that a query reads in their order, of so many orders each."""
    for number in files:
        Orders(0, every_ms).land(folder, range(number * size, (number + 1) * size))
        for name in ("orders", "payments"):
            path = folder / name / f"{number * size:09d}.json"
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
