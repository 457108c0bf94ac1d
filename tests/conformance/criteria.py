"""The state that the driver of a purgatory trace kept, and the criteria it evaluated: plain Python."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class DriverState:
    """What the driver knows of every key; Kafka is not called when it changes."""

    count: Counter[str] = field(default_factory=Counter)
    total: Counter[str] = field(default_factory=Counter)
    level: dict[str, int] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)


class DrivenOperation:
    """An operation with its criterion; counts from the moment it is made."""

    def __init__(self, id_: int, crit: dict[str, Any], driver: DriverState) -> None:
        self.id = id_
        self.type: str = crit["type"]
        self.keys: list[str] = list(dict.fromkeys(crit.get("keys", ())))
        self.n: int = crit.get("n", 0)
        self.need: dict[str, int] = crit.get("need", {})
        self.settled: dict[str, str] = {}
        self.ended = False
        """Ended without the engine, which refused it."""
        self._driver = driver
        self._count_before = {key: driver.count[key] for key in self.keys}
        self._total_before = {key: driver.total[key] for key in self.keys}

    def holds(self) -> bool:
        """Evaluate, as one tryComplete does; LEVEL settles keys for good."""
        if self.type == "LEVEL":
            self._settle()
            return len(self.settled) == len(self.need)
        counts = [self._driver.count[key] - self._count_before[key] for key in self.keys]
        match self.type:
            case "ANY":
                return any(counts)
            case "ALL":
                return all(counts)
            case "QUORUM":
                return sum(count > 0 for count in counts) >= self.n
            case "COUNT":
                return sum(counts) >= self.n
            case "SUM":
                return sum(self._driver.total[key] - self._total_before[key] for key in self.keys) >= self.n
        raise ValueError(f"operation {self.id} has criterion {self.type!r}, which is not one of the six")

    def acks(self) -> dict[str, str]:
        """What each key of a LEVEL operation is answered with once it ended; empty for the others."""
        return {key: self.settled.get(key, "REQUEST_TIMED_OUT") for key in self.need}

    def _settle(self) -> None:
        for key, level in self.need.items():
            if key in self.settled:
                continue
            if key in self._driver.failed:
                self.settled[key] = "NOT_LEADER_OR_FOLLOWER"
            elif self._driver.level.get(key, 0) >= level:
                self.settled[key] = "NONE"
