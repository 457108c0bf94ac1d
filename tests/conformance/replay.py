"""Carrying out a trace and comparing answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from tests.conformance.accumulator import AccumulatorReplayer
from tests.conformance.bufferpool import BufferPoolReplayer
from tests.conformance.purgatory import PurgatoryReplayer
from tests.conformance.traces import Inputs, Step, Trace
from tests.conformance.wheel import WheelReplayer

DIAGNOSTICS = frozenset({"evals", "polled", "order"})
LABELS = frozenset({"i", "op"})
NOTHING: tuple[Any, ...] = (None, [], {})
"""An answer that a trace may leave out instead of writing it."""


class Replayer(Protocol):
    """Drives the engine through the steps of one kind of trace."""

    inputs: ClassVar[Inputs]
    state: ClassVar[frozenset[str]]
    """Answers about the whole after a step; of steps that shared a call only the last has them."""
    unordered: ClassVar[frozenset[tuple[str, str]]]
    """(op, answer): lists to be sorted before they are compared."""
    partial: ClassVar[frozenset[str]]
    """Answers that are objects of which a trace may hold some entries only; the others are not compared."""

    def __init__(self, config: dict[str, Any]) -> None: ...

    def joins(self, batch: Sequence[Step], step: Step) -> bool:
        """Whether ``step`` may share one call of the engine with the steps of ``batch``."""

    def run(self, batch: Sequence[Step]) -> list[Step]:
        """Carry out steps in one call; for each, every answer there is, whether the trace has it or not."""

    def finish(self) -> None:
        """Called after the last step: check what the engine can check of itself."""


REPLAYERS: dict[str, type[Replayer]] = {
    "wheel": WheelReplayer,
    "purgatory": PurgatoryReplayer,
    "accumulator": AccumulatorReplayer,
    "bufferpool": BufferPoolReplayer,
}


@dataclass(frozen=True)
class Mismatch:
    """The first step of a trace whose answers differ; only the answers that do."""

    source: str
    number: int
    op: str
    expected: dict[str, Any]
    got: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.source}: step {self.number}, {self.op}\n  expected {self.expected}\n  got      {self.got}"


@dataclass
class Replay:
    """What came of one trace."""

    mismatch: Mismatch | None = None
    unknown: Counter[str] = field(default_factory=Counter)
    """Operations and answers that the replayer does not know; they were passed over."""


def replay(trace: Trace, *, batched: bool = False) -> Replay:
    """Carry out a trace up to its first mismatch."""
    outcome = Replay()
    batch: list[Step] = []
    try:
        replayer = REPLAYERS[trace.kind](trace.config)
        start = 0
        while start < len(trace.steps) and outcome.mismatch is None:
            batch = next_batch(replayer, trace.steps, start, batched)
            start += len(batch)
            compare(trace.source, start, replayer, batch, replayer.run(batch), outcome)
        if outcome.mismatch is None:
            replayer.finish()
    except Exception as error:
        step: Step = batch[-1] if batch else {"op": "start"}
        answered = {"raised": repr(error)}
        outcome.mismatch = Mismatch(trace.source, step.get("i", -1), step["op"], {"raised": None}, answered)
    return outcome


def next_batch(replayer: Replayer, steps: Sequence[Step], start: int, batched: bool) -> list[Step]:
    """The steps from ``start`` on that share a call; one, unless ``batched``."""
    batch = [steps[start]]
    while batched and start + len(batch) < len(steps) and replayer.joins(batch, steps[start + len(batch)]):
        batch.append(steps[start + len(batch)])
    return batch


def compare(
    source: str, end: int, replayer: Replayer, batch: Sequence[Step], answers: Sequence[Step], outcome: Replay
) -> None:
    """Compare the answers of the steps before ``end``; the first step that differs goes to ``outcome``."""
    assert len(batch) == len(answers), f"{len(batch)} steps, {len(answers)} answers"
    for number, (step, got) in enumerate(zip(batch, answers, strict=True), start=end - len(batch)):
        wanted = wanted_answers(replayer, step, is_last=number == end - 1)
        outcome.unknown.update(f"{step['op']}: answer {key!r}" for key in wanted.keys() - got.keys())
        differing = [
            key
            for key, value in got.items()
            if (key in wanted or key not in replayer.state)
            and not is_same(replayer, step["op"], key, wanted.get(key), value)
        ]
        if differing:
            expected = {key: wanted.get(key) for key in differing}
            answered = {key: got[key] for key in differing}
            outcome.mismatch = Mismatch(source, step.get("i", number), step["op"], expected, answered)
            return


def wanted_answers(replayer: Replayer, step: Step, *, is_last: bool) -> Step:
    """Kafka's answers in a step, without those that a shared call cannot show."""
    inputs = replayer.inputs.get(step["op"], frozenset())
    passed_over = inputs | LABELS | DIAGNOSTICS | (frozenset() if is_last else replayer.state)
    return {key: value for key, value in step.items() if key not in passed_over}


def is_same(replayer: Replayer, op: str, key: str, expected: Any, got: Any) -> bool:
    """Whether two answers are one; what a step did may be left out of a trace where it is nothing."""
    if expected in NOTHING and got in NOTHING:
        return True
    if key in replayer.partial and isinstance(expected, dict) and isinstance(got, dict):
        common = expected.keys() & got.keys()
        expected, got = ({entry: value[entry] for entry in common} for value in (expected, got))
    expected, got = without_nulls(expected), without_nulls(got)
    return bool(in_order(replayer, op, key, expected) == in_order(replayer, op, key, got))


def without_nulls(value: Any) -> Any:
    """``value`` without entries that are null in the objects inside it: a trace may leave those out too."""
    if isinstance(value, list):
        return [without_nulls(element) for element in value]
    if isinstance(value, dict):
        return {key: without_nulls(element) for key, element in value.items() if element is not None}
    return value


def in_order(replayer: Replayer, op: str, key: str, value: Any) -> Any:
    """``value``, sorted if its order says nothing."""
    return sorted(value) if (op, key) in replayer.unordered and isinstance(value, list) else value
