"""The resolution of waiting operations: the one place that adapts event time to Kafka's purgatory.

`DelayedOperationPurgatory` calls ``try_complete`` for operations that a check or a registration found, and
``on_expiration`` for those whose timer fired. Both resolve rows over the logs of events and emit outcomes. Three things
differ from Kafka:

* Kafka completes an operation when it is first seen to be complete. Under ``emit="final"``, an outcome that lies ahead
  of the watermark is *held*: the operation stays, and its timer moves to the time at which the outcome may leave.
* Control events may move a deadline or undo a held outcome. So if there are any, trying a row also returns when it is
  due.
* Kafka does not try an operation again when it times out. Here the logs decide the outcome.

Deadlines are rounded up to ticks and the watermark down, so an operation never expires before the watermark has reached
its deadline. Kafka's timer may fire up to a tick early.
"""

from __future__ import annotations

import numpy as np

from spark_purgatory.core.arrays.sorted_runs import Bools, Int64s
from spark_purgatory.core.arrays.times import MAX_TIME_US, MIN_TIME_US, US_PER_MS, clock_ms, tick_up_ms
from spark_purgatory.core.engine.deduplication import Deduplication
from spark_purgatory.core.engine.evidence import evidence_of
from spark_purgatory.core.engine.operation_table import OperationTable
from spark_purgatory.core.engine.outcomes import Outcomes
from spark_purgatory.core.engine.resolver import Resolutions, Resolver
from spark_purgatory.core.engine.shard_events import ShardEvents
from spark_purgatory.core.events.event_log import EventSegment
from spark_purgatory.core.kafka.purgatory import DelayedOperationPurgatory
from spark_purgatory.core.kafka.timing_wheel import SystemTimer
from spark_purgatory.core.spec.arrivals import OperationArrivals
from spark_purgatory.core.spec.codes import Status
from spark_purgatory.core.spec.criteria import AT_DEADLINE, Criterion
from spark_purgatory.core.spec.engine_spec import EngineSpec

COMPACT_SHARE = 4  # rows of some 80 bytes that have ended take at most a fifth of the rows' memory


class Completion:
    """A purgatory whose operations are resolved over logs of events, and their outcomes."""

    def __init__(self, spec: EngineSpec, events: ShardEvents, outcomes: Outcomes) -> None:
        timer = SystemTimer(spec.tick_ms, spec.wheel_size, start_ms=MIN_TIME_US // 1000)
        self.purgatory = DelayedOperationPurgatory(timer, purge_interval=0, compact_share=COMPACT_SHARE)
        self.rows = OperationTable(spec, self.purgatory.watchers)
        self.deduplication = Deduplication(spec, self.rows, self.purgatory)
        self.watermark_ms = 0  # rounded down to the tick; 0: no watermark yet, so nothing is late and nothing is due
        self._spec, self._events, self._outcomes = spec, events, outcomes

    @property
    def watermark_us(self) -> int:
        """The watermark in microseconds; MIN_TIME_US while there is none."""
        return min(self.watermark_ms * US_PER_MS, MAX_TIME_US) if self.watermark_ms > 0 else MIN_TIME_US

    @property
    def resolver(self) -> Resolver:
        """A resolver of rows over the logs as they are now."""
        return Resolver(self._spec, self.rows, self.purgatory.watchers, self._events.log, self._events.controls)

    # --- what a step calls -----------------------------------------------------------------------------

    def move_watermark(self, watermark_ms: int) -> None:
        """Move the watermark forward; an earlier one changes nothing."""
        self.watermark_ms = max(self.watermark_ms, clock_ms(watermark_ms, self._spec.tick_ms))

    def expire(self) -> None:
        """Move the clock to the watermark, and emit the outcomes whose time has come."""
        if self.watermark_ms > 0:
            self.purgatory.advance_clock(self, self.watermark_ms)

    def check(self, arrived: EventSegment) -> None:
        """Try the operations that wait on the keys of events that arrived."""
        if not self._only_deadlines:
            self.purgatory.check_and_complete(self, arrived.group_keys, arrived.group_hash)

    def register(self, operations: OperationArrivals) -> None:
        """Try operations that are already in the table, and watch those that stay."""
        rows, keys = self.purgatory.next_row + np.arange(len(operations)), operations.keys
        deadlines_ms = self.ticks_ms(rows, operations.deadline_us)
        self.purgatory.try_complete_else_watch(self, keys, operations.offsets, deadlines_ms, operations.key_hash)

    def move_timers(self, rows: Int64s, due_us: Int64s) -> None:
        """Set the timers of rows, (n,), to other times, (n,)."""
        self.purgatory.rearm(rows, self.ticks_ms(rows, due_us))

    def due_us(self, resolutions: Resolutions) -> Int64s:
        """Return when outcomes may leave under final, or rows expire, (n,) int64.

        With a lookback this is not before the created time, because until then another row of the id may come.
        """
        leaves_us = np.maximum(resolutions.resolved_us, resolutions.created_us)
        return np.where(resolutions.is_resolved, leaves_us, resolutions.deadline_us)

    @property
    def _only_deadlines(self) -> bool:
        """True if only its deadline can end an operation."""
        criterion = self._spec.criterion
        return isinstance(criterion, Criterion) and criterion.code in AT_DEADLINE and not self._events.controls

    # --- what the purgatory calls ----------------------------------------------------------------------

    def try_complete(self, rows: Int64s, /) -> tuple[Bools, Int64s | None]:
        """Resolve waiting rows, (n,); flags those whose outcome leaves now, and returns when the others are due."""
        if self._only_deadlines:
            return np.zeros(len(rows), bool), None
        resolutions = self.resolver.resolve(rows)
        leaves, due_ms = resolutions.is_resolved, None
        final, has_controls = self._spec.final, bool(self._events.controls)
        if has_controls:
            self.deduplication.extend(rows, resolutions.deadline_us)
        if final or has_controls or self._spec.may_have(AT_DEADLINE):
            due_us = self.due_us(resolutions)
            due_ms = self.ticks_ms(rows, due_us)
            leaves = leaves & ~((final | resolutions.awaits_deadline) & (due_us > self.watermark_us))
        self._emit_resolved(resolutions, leaves)
        return leaves, due_ms

    def on_expiration(self, rows: Int64s, /) -> None:
        """Emit the outcomes of rows whose timer fired: they expire, or their held outcome may leave."""
        resolutions = self.resolver.resolve(rows)
        self._emit_resolved(resolutions, resolutions.is_resolved)
        self._emit(Status.EXPIRED, resolutions, ~resolutions.is_resolved)

    def ticks_ms(self, rows: Int64s, due_us: Int64s) -> Int64s:
        """Round due times up to ticks; an undecided row is due at its created time."""
        undecided = self.deduplication.undecided
        if len(undecided):
            due_us = np.where(np.isin(rows, undecided), self.rows.created_us[rows], due_us)
        return tick_up_ms(due_us, self._spec.tick_ms)

    # --- outcomes --------------------------------------------------------------------------------------

    def _emit_resolved(self, resolutions: Resolutions, chosen: Bools) -> None:
        for status, rows in resolutions.by_status(chosen):
            self._emit(status, resolutions, rows)

    def _emit(self, status: Status, resolutions: Resolutions, chosen: Bools) -> None:
        if chosen.any():
            batch = self.resolver.outcomes_of(status, resolutions, chosen)
            if self._spec.evidence is not None:
                batch.evidence = evidence_of(self.resolver, status, resolutions, chosen)
            self._outcomes.add(batch)
            self._events.orphans.leave(self.resolver, resolutions, chosen, self.watermark_us)
