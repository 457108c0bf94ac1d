"""The inputs of an evaluation: operations with their criteria, and their relevant events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from spark_purgatory.core.arrays.numbers import Floats, Numbers
from spark_purgatory.core.arrays.sorted_runs import Bools, Int64s, parts_of
from spark_purgatory.core.events.control_log import ControlEffects
from spark_purgatory.core.events.event_log import Spans
from spark_purgatory.core.events.redelivery import MAX_DELIVERIES, Redeliveries, RepeatedDeliveries
from spark_purgatory.core.spec.codes import Rule, among
from spark_purgatory.core.spec.criteria import ADDING


@dataclass(frozen=True)
class EvaluationInput:
    """n operations to evaluate, with m entries. The entries of one operation are adjacent and in order."""

    rule: Int64s  # (n,) codes of Rule
    need: Floats  # (n,)
    sum_need: Numbers  # (n,) the sum that values must reach
    created_us: Int64s  # (n,)
    from_us: Int64s  # (n,) earliest time that counts
    deadline_us: Int64s  # (n,)
    first_entry: Int64s  # (n,)
    owner: Int64s  # (m,) operation of each entry, ascending
    level_need: Numbers  # (m,) level that each entry's key must reach
    effects: ControlEffects | None = None  # None: no control event applies to any of them

    def has(self, rules: tuple[Rule, ...]) -> Bools:
        """Flag the operations with one of the rules, (n,) bool."""
        return among(self.rule, rules)

    @property
    def need_nothing(self) -> Bools:
        """Flags of operations that are complete at their created time, (n,) bool: they need a sum of 0."""
        return self.has(ADDING) & (self.need <= 0)


@dataclass(frozen=True)
class RelevantEvents:
    """The relevant events of all inputs."""

    spans: list[Spans]
    repeated: list[RepeatedDeliveries]  # deliveries of events whose id occurs again

    @staticmethod
    def of(inputs: EvaluationInput, spans: list[Spans]) -> RelevantEvents:
        """Take the events of spans. Sums and the other rules may read the same events from different segments."""
        by_sum: dict[bool, list[tuple[Int64s, Spans]]] = {}
        for span in spans:
            if len(span.owner):
                operations = inputs.owner[span.owner]
                by_sum.setdefault(inputs.rule[operations[0]] in ADDING, []).append((operations, span))
        found = (RepeatedDeliveries.of(len(inputs.rule), each) for each in by_sum.values())
        return RelevantEvents(spans, [deliveries for deliveries in found if deliveries is not None])

    def parts(self, n: int) -> Iterator[slice]:
        """Yield parts of n operations, each with at most `MAX_DELIVERIES` of events whose id occurs again."""
        costs = np.zeros(n, np.int64)
        for deliveries in self.repeated:
            costs += deliveries.counts()
        return parts_of(costs, MAX_DELIVERIES)

    @cached_property
    def redeliveries(self) -> list[Redeliveries]:
        """The deliveries of events that are already counted."""
        return [deliveries.redeliveries() for deliveries in self.repeated]
