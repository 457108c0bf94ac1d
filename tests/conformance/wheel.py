"""Traces of SystemTimer over TimingWheel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from spark_purgatory.core.kafka.timing_wheel import SystemTimer
from tests.conformance.kafka_purgatory import bucket_ms, clocks_ms, level_of
from tests.conformance.traces import Inputs, Step

ADDS = frozenset({"add", "readd"})


class WheelReplayer:
    """Drives a SystemTimer; a task's row is the order in which its id was first seen."""

    inputs: ClassVar[Inputs] = {
        "add": frozenset({"id", "exp"}),
        "readd": frozenset({"id", "exp"}),
        "cancel": frozenset({"id"}),
        "advance": frozenset({"to"}),
    }
    state: ClassVar[frozenset[str]] = frozenset({"size"})
    unordered: ClassVar[frozenset[tuple[str, str]]] = frozenset({("advance", "fired")})
    partial: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, config: dict[str, Any]) -> None:
        self.timer = SystemTimer(
            tick_ms=config.get("tick_ms", 1),
            wheel_size=config.get("wheel_size", 20),
            start_ms=config["start_ms"],
        )
        self.row_of: dict[int, int] = {}
        self.id_of: list[int] = []

    def joins(self, batch: Sequence[Step], step: Step) -> bool:
        """Adds may share a call, and cancels; no task twice."""
        ops = {step["op"], *(other["op"] for other in batch)}
        same_call = ops <= ADDS or ops == {"cancel"}
        return same_call and step["id"] not in {other["id"] for other in batch}

    def run(self, batch: Sequence[Step]) -> list[Step]:
        """Carry out steps in one call of the timer."""
        op = batch[0]["op"]
        if op in ADDS:
            answers = self.add(batch)
        elif op == "cancel":
            answers = [{"removed": int(removed)} for removed in self.timer.cancel(self.rows(batch))]
        elif op == "advance":
            answers = [self.advance(step) for step in batch]
        else:
            answers = [{} for _ in batch]
        answers[-1]["size"] = self.timer.size
        return answers

    def finish(self) -> None:
        """The timer has nothing that it derives from something else."""

    def add(self, batch: Sequence[Step]) -> list[Step]:
        """Arm tasks, new ones and known ones alike."""
        deadlines_ms = np.array([step["exp"] for step in batch], np.int64)
        levels, buckets = level_of(self.timer, deadlines_ms), bucket_ms(self.timer, deadlines_ms)
        all_armed = self.timer.add(self.rows(batch), deadlines_ms)
        return [
            {"res": "armed", "level": level, "bucket": bucket}
            if armed
            else {"res": "fired", "level": None, "bucket": None}
            for armed, level, bucket in zip(all_armed.tolist(), levels.tolist(), buckets.tolist(), strict=True)
        ]

    def advance(self, step: Step) -> Step:
        fired = [self.id_of[row] for row in self.timer.advance_clock(step["to"]).tolist()]
        return {"fired": fired, "clocks": clocks_ms(self.timer)}

    def rows(self, batch: Sequence[Step]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Rows of the steps' tasks, (n,) int64; a new id gets the next row."""
        for step in batch:
            if step["id"] not in self.row_of:
                self.row_of[step["id"]] = len(self.id_of)
                self.id_of.append(step["id"])
        return np.array([self.row_of[step["id"]] for step in batch], np.int64)
