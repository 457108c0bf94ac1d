"""Traces of DelayedOperationPurgatory with a SystemTimer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from spark_purgatory.core.kafka.timing_wheel import SystemTimer
from spark_purgatory.errors import EmptyWatchKeysError
from tests.conformance.kafka_purgatory import KafkaPurgatory, validate
from tests.conformance.traces import Inputs, Step

Int64s = np.ndarray[tuple[int], np.dtype[np.int64]]
Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]

DRIVER_OPS = frozenset({"event", "level", "fail_key", "heal_key"})
BATCHED_OPS = frozenset({"watch", "check", "force"})


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


class PurgatoryReplayer:
    """Drives a DelayedOperationPurgatory; the criteria are the trace driver's and live outside of the engine.

    An operation refused for want of watch keys never gets a row. In Kafka it is an object all the same, and a
    trace may force it: it then completes on its own, without the purgatory.
    """

    inputs: ClassVar[Inputs] = {
        "event": frozenset({"key", "value"}),
        "level": frozenset({"key", "value"}),
        "fail_key": frozenset({"key"}),
        "heal_key": frozenset({"key"}),
        "watch": frozenset({"id", "crit", "watch", "delay_ms"}),
        "check": frozenset({"key"}),
        "force": frozenset({"id"}),
        "cancel_key": frozenset({"key"}),
        "advance": frozenset({"to"}),
    }
    state: ClassVar[frozenset[str]] = frozenset({"watched", "delayed", "estimated"})
    unordered: ClassVar[frozenset[tuple[str, str]]] = frozenset({("advance", "completed"), ("advance", "expired")})
    partial: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, config: dict[str, Any]) -> None:
        self.now_ms: int = config["start_ms"]
        timer = SystemTimer(
            tick_ms=config.get("tick_ms", 1),
            wheel_size=config.get("wheel_size", 20),
            start_ms=config["start_ms"],
        )
        self.purgatory = KafkaPurgatory(
            timer,
            purge_interval=config.get("purge_interval", 1000),
            timer_enabled=config.get("timer_enabled", True),
            try_complete=self.try_complete,
            on_complete=lambda rows: self.completed.extend(rows.tolist()),
            on_expiration=lambda rows: self.expired.extend(rows.tolist()),
        )
        self.driver = DriverState()
        self.operations: list[DrivenOperation] = []
        """By row."""
        self.row_of: dict[int, int] = {}
        self.refused: dict[int, DrivenOperation] = {}
        self.completed: list[int] = []
        self.expired: list[int] = []
        """Rows that the engine completed, expired during the present call, in its order."""

    def try_complete(self, rows: Int64s) -> Bools:
        """Which criteria hold now, asked by the engine."""
        return np.array([self.operations[row].holds() for row in rows.tolist()], bool)

    def joins(self, batch: Sequence[Step], step: Step) -> bool:
        """Watches may share a call, checks, and forces; no operation twice, none that is refused."""
        both = [*batch, step]
        if {other["op"] for other in both} != {step["op"]} or step["op"] not in BATCHED_OPS:
            return False
        if step["op"] == "check":
            return True
        distinct = len({other["id"] for other in both}) == len(both)
        refused = any(other.get("watch") == [] or other["id"] in self.refused for other in both)
        return distinct and not refused

    def run(self, batch: Sequence[Step]) -> list[Step]:
        """Carry out steps in one call of the purgatory."""
        self.completed.clear()
        self.expired.clear()
        op = batch[0]["op"]
        if op in DRIVER_OPS:
            answers = [self.drive(step) for step in batch]
        elif op == "watch":
            answers = self.watch(batch)
        elif op == "check":
            answers = self.check(batch)
        elif op == "force":
            answers = self.force(batch)
        elif op == "cancel_key":
            answers = [self.cancel_key(step) for step in batch]
        elif op == "advance":
            answers = [self.advance(step) for step in batch]
        else:
            answers = [{} for _ in batch]
        answers[-1] |= {
            "watched": self.purgatory.watchers.watched,
            "delayed": self.purgatory.timer.size,
            "estimated": self.purgatory.estimated_total,
        }
        return answers

    def finish(self) -> None:
        validate(self.purgatory)

    def drive(self, step: Step) -> Step:
        """Change what the driver knows of a key; the engine is not called."""
        key = step["key"]
        if step["op"] == "event":
            self.driver.count[key] += 1
            self.driver.total[key] += step["value"]
        elif step["op"] == "level":
            self.driver.level[key] = max(step["value"], self.driver.level.get(key, 0))
        elif step["op"] == "fail_key":
            self.driver.failed.add(key)
        else:
            self.driver.failed.discard(key)
        return {}

    def watch(self, batch: Sequence[Step]) -> list[Step]:
        operations = [DrivenOperation(step["id"], step["crit"], self.driver) for step in batch]
        first_row = self.purgatory.next_row
        self.operations[first_row:] = operations
        keys = [key for step in batch for key in step["watch"]]
        offsets = np.cumsum([0, *(len(step["watch"]) for step in batch)])
        deadlines_ms = self.now_ms + np.array([step["delay_ms"] for step in batch], np.int64)
        try:
            rows, completed = self.purgatory.watch(pa.array(keys, pa.string()), offsets, deadlines_ms)
        except EmptyWatchKeysError:
            assert len(batch) == 1, "a refused operation shares no call"
            assert self.purgatory.next_row == first_row, "a refused operation gets no row"
            del self.operations[first_row:]
            self.refused[batch[0]["id"]] = operations[0]
            return [{"ret": None, "err": "empty_watch_keys", **self.ended([])}]
        assert rows.tolist() == list(range(first_row, first_row + len(batch))), rows
        self.row_of |= {step["id"]: row for step, row in zip(batch, rows.tolist(), strict=True)}
        return [
            {"ret": ret, "err": None, **self.ended([row])}
            for ret, row in zip(completed.tolist(), rows.tolist(), strict=True)
        ]

    def check(self, batch: Sequence[Step]) -> list[Step]:
        """checkAndComplete; what completed is dealt out to the keys by their counts."""
        counts = self.purgatory.check(pa.array([step["key"] for step in batch], pa.string())).tolist()
        ends = np.cumsum(counts).tolist()
        assert ends[-1] == len(self.completed), f"{ends[-1]} counted, {len(self.completed)} completed"
        return [
            {"ret": count, **self.ended(self.completed[end - count : end])}
            for count, end in zip(counts, ends, strict=True)
        ]

    def force(self, batch: Sequence[Step]) -> list[Step]:
        if batch[0]["id"] in self.refused:
            return [self.force_refused(self.refused[batch[0]["id"]])]
        rows = [self.row_of[step["id"]] for step in batch]
        forced = self.purgatory.force_complete(np.array(rows, np.int64)).tolist()
        return [{"ret": ret, **self.ended([row])} for ret, row in zip(forced, rows, strict=True)]

    def force_refused(self, operation: DrivenOperation) -> Step:
        """forceComplete of an operation that the purgatory never had."""
        if operation.ended:
            return {"ret": False, **self.ended([])}
        operation.ended = True
        acks = {str(operation.id): operation.acks()} if operation.need else {}
        return {"ret": True, "completed": [operation.id], "expired": [], "acks": acks}

    def cancel_key(self, step: Step) -> Step:
        rows = self.purgatory.cancel_for_key(step["key"]).tolist()
        return {"ids": [self.operations[row].id for row in rows], **self.ended(self.completed)}

    def advance(self, step: Step) -> Step:
        """The clock moves, the timer and then the purge run."""
        self.now_ms = step["to"]
        expired = self.purgatory.advance(self.now_ms).tolist()
        assert expired == self.expired, f"returned {expired}, onExpiration ran for {self.expired}"
        return self.ended(self.completed)

    def ended(self, rows: Sequence[int]) -> Step:
        """Of ``rows``: ids that completed and expired in this call, in the engine's order, and their acks."""
        among = set(rows)
        completed = [self.operations[row] for row in self.completed if row in among]
        return {
            "completed": [operation.id for operation in completed],
            "expired": [self.operations[row].id for row in self.expired if row in among],
            "acks": {str(operation.id): operation.acks() for operation in completed if operation.need},
        }
