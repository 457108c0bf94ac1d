"""The event-time engine of one shard: a `DelayedOperationPurgatory` over an `EventLog`.

One door: `step(operations, events, watermark)` -> outcomes. The clock is the watermark; nothing else tells the time.
A step has a fixed order, which decides every tie between arrival and watermark:

1. The clock moves to the watermark; what is due leaves (EXPIRED; under ``final`` also outcomes held until now). Events
   that nobody waiting, or to come on time, may need are forgotten.
2. Events join the log; operations already waiting on their keys are checked.
3. Operations are checked for rejection and duplication, tried, and otherwise watched.
4. The clock is moved again to the same time, for operations that arrived already due.
5. SeenIds whose deadline has passed are forgotten; ended rows are compacted away.

Built on Kafka's parts; where event time asks for more, it is said here:

* Kafka's timer may fire up to a tick early. Here deadlines are rounded *up* to the tick before they reach it, and the
  watermark *down* to the tick at the door: one clock for the timer, ids and the log, which never runs ahead.
* Kafka completes an operation when it is first seen to be complete (``emit="early"``). Under ``final`` a criterion that
  holds from an event time ahead of the watermark on moves the operation's timer there (`rearm`), so that every outcome
  leaves through the timer, once no earlier event can come.
* Kafka's operation that times out is not tried again. Here the log tells what the outcome is (`_fired`).

The law follows: what is decided depends on operations, events and watermark, not on steps. Relevant events are those of
``from_us <= time <= deadline``, with from_us = created - lookback, or, for an operation that arrives behind the
watermark, no earlier than what the log still promises to hold.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays.sorted_runs import EMPTY, Bools, Int64s
from spark_purgatory.core.arrays.times import MAX_TIME_US, MIN_TIME_US, US_PER_MS, clock_ms, saturating_add, tick_up_ms
from spark_purgatory.core.engine.deduplication import Deduplication
from spark_purgatory.core.engine.operation_table import OperationTable
from spark_purgatory.core.engine.outcomes import DUPLICATE, EXPIRED, REJECTED, MissingKeys, OutcomeBatch, Outcomes
from spark_purgatory.core.engine.resolver import Resolutions, Resolver
from spark_purgatory.core.engine.seen_ids import SeenIds
from spark_purgatory.core.engine.shard_events import ShardEvents
from spark_purgatory.core.events.event_log import EventSegment
from spark_purgatory.core.kafka.purgatory import WAITING, DelayedOperationPurgatory
from spark_purgatory.core.kafka.timing_wheel import SystemTimer
from spark_purgatory.core.spec.arrivals import REJECTIONS, EventArrivals, OperationArrivals
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.errors import LimitError

DUPLICATE_REASON = "the id was seen before and its deadline has not passed"


def duplicates_of(table: OperationTable, rows: Int64s, key_type: pa.DataType) -> OutcomeBatch:
    """The outcomes of rows, (n,), that turned out to be DUPLICATEs: settled as they were created."""
    created_us, zeros = table.created_us[rows], np.zeros(len(rows), np.int64)
    none, reasons = MissingKeys.none(len(rows), key_type), pa.repeat(DUPLICATE_REASON, len(rows))
    payload, late = table.payload.take(rows), table.late[rows]
    return OutcomeBatch(payload, DUPLICATE, created_us, created_us, zeros, none, late, reasons)


def sound(operations: OperationArrivals, outcomes: Outcomes) -> OperationArrivals:
    """The operations but for those that are REJECTED, whose outcomes are given."""
    bad = np.flatnonzero(operations.rejection)
    if not len(bad):
        return operations
    rows, none = operations.take(bad), np.zeros(len(bad), bool)
    reasons = pa.array(REJECTIONS).take(pa.array(rows.rejection))
    outcomes.unwatched(REJECTED, rows, reasons, late=none, dated=none)
    return operations.take(np.flatnonzero(operations.rejection == 0))


def counts_from(created_us: Int64s, watermark_us: int, lookback_us: int) -> tuple[Int64s, Bools]:
    """The earliest event time that counts for each operation, (n,) int64, and which are late: those may count no more
    than what the log promises to hold.
    """
    late = created_us <= watermark_us
    promised = saturating_add(np.array([watermark_us]), 1 - lookback_us)
    from_us = saturating_add(created_us, -lookback_us)
    return np.where(late, np.maximum(from_us, promised), from_us), late


def earliest_read(purgatory: DelayedOperationPurgatory, from_us: Int64s, segment: EventSegment) -> Int64s:
    """Earliest time that a waiting row reads, for every group of the segment, (G,) int64; ``from_us`` is (rows,)."""
    earliest = np.full(len(segment.group_hash), MAX_TIME_US)
    group, entries = purgatory.watchers.find(segment.group_keys, segment.group_hash)
    rows = purgatory.watchers.rows_of(entries)
    reads = purgatory.state.values[rows] == WAITING
    np.minimum.at(earliest, group[reads], from_us[rows[reads]])
    return earliest


class EventTimePurgatory:
    """One shard: operations, events, ids and the clock."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.events = ShardEvents(spec)
        self.ids = SeenIds(spec.identity_width)
        self.rows = OperationTable(spec)
        self.outcomes = Outcomes()
        self.watermark_ms = 0
        """Rounded down to the tick. 0 means: no watermark yet, as in Spark. Nothing is late and nothing is due."""
        timer = SystemTimer(spec.tick_ms, spec.wheel_size, start_ms=MIN_TIME_US // US_PER_MS)
        self.purgatory = DelayedOperationPurgatory(
            timer, try_complete=self._try, on_expiration=self._fired, purge_interval=0
        )
        self.standing = Deduplication(spec, self.ids, self.rows, self.purgatory)
        self._held: tuple[Int64s, Int64s] = (EMPTY, EMPTY)
        """Rows last tried that their timer must look at, at another time than their deadline, and that time."""

    @property
    def pending(self) -> int:
        """Operations waiting."""
        return self.purgatory.next_row - self.purgatory.ended

    @property
    def watermark_us(self) -> int:
        """The watermark in microseconds; MIN_TIME_US while there is none."""
        return min(self.watermark_ms * US_PER_MS, MAX_TIME_US) if self.watermark_ms > 0 else MIN_TIME_US

    def step(
        self, operations: OperationArrivals | None, events: EventArrivals | None, watermark_ms: int
    ) -> list[pa.RecordBatch]:
        """Take what arrived, decide what can be decided at this watermark; returns outcomes."""
        self.watermark_ms = max(self.watermark_ms, clock_ms(watermark_ms, self.spec.tick_ms))
        if len(self.standing.contested):
            self._settle()
        self._advance()
        self._forget_events()
        if events is not None and len(events):
            self._take_events(events)
        if operations is not None and len(operations):
            self._take_operations(operations)
            self._advance()
        self.standing.forget(self.watermark_us)
        self._release_orphans()
        if self.purgatory.is_worth_compacting:
            waiting = self.purgatory.waiting()
            self.rows.keep(waiting, self.purgatory.watchers.entries_of(waiting)[0])
            self.standing.renumber(self.purgatory.compact())
        self.outcomes.tally.conserve(self.pending)
        return self.outcomes.take()

    def next_due_ms(self) -> int | None:
        """The watermark at which this shard must be called again; None while nothing waits."""
        due_ms = self.purgatory.timer.next_due_ms()
        unheard_us = self.events.orphans.earliest_us()
        if unheard_us is None:
            return due_ms
        orphan_us = saturating_add(np.array([unheard_us]), self.spec.lookback_us)
        return min(MAX_TIME_US if due_ms is None else due_ms, int(tick_up_ms(orphan_us, self.spec.tick_ms)[0]))

    def _advance(self) -> None:
        if self.watermark_ms > 0:
            self.purgatory.advance_clock(self.watermark_ms)

    def _take_events(self, events: EventArrivals) -> None:
        tally = self.outcomes.tally
        tally.events_received += len(events)
        fine = events.take(np.flatnonzero(events.rejection == 0))
        tally.events_rejected += len(events) - len(fine)
        tally.events_late += int(np.count_nonzero(fine.time_us <= self.watermark_us))
        if not len(fine):
            return
        touched = self.events.take(fine)
        if self.pending:
            self._held = (EMPTY, EMPTY)
            self.purgatory.check_and_complete(touched.group_keys, touched.group_hash)
            self._arm(*self._held)

    def _settle(self) -> None:
        """Contested rows whose creation has passed: DUPLICATEs leave, those that stand wait for their own time."""
        extend = (lambda rows: self.judge.judge(rows).deadline_us) if self.events.controls.extends else None
        fallen, standing = self.standing.settle(self.watermark_us, extend)
        self.purgatory.force_complete(fallen)
        if len(fallen):
            self.outcomes.add(duplicates_of(self.rows, fallen, self.purgatory.watchers.keys.chunks[0].type))
        if len(standing):
            self._arm(standing, self._due_us(self.judge.judge(standing)))

    def _arm(self, rows: Int64s, due_us: Int64s) -> None:
        """Move rows whose timer stands at another time."""
        due_ms = self._ticks_ms(rows, due_us)
        moved = due_ms != self.purgatory.timer.armed_tick.values[rows] * self.spec.tick_ms
        if moved.any():
            self.purgatory.rearm(rows[moved], due_ms[moved])

    def _take_operations(self, operations: OperationArrivals) -> None:
        self.outcomes.tally.received += len(operations)
        operations = sound(operations, self.outcomes)
        while len(operations):
            operations = self._take_sound(operations)

    def _take_sound(self, operations: OperationArrivals) -> OperationArrivals:
        """Take all but those, returned, that an earlier row of their id may or may not outlast."""
        repeated, waiting = self.standing.fallen(operations, self.watermark_us, self.events.controls.extends)
        if repeated.any():
            rows = operations.take(np.flatnonzero(repeated))
            late = rows.created_us <= self.watermark_us
            self.outcomes.unwatched(DUPLICATE, rows, pa.repeat(DUPLICATE_REASON, len(rows)), late)
        left = operations.take(np.flatnonzero(~repeated & ~waiting))
        if len(left):
            self._register(left)
        return operations.take(np.flatnonzero(waiting))

    def _register(self, operations: OperationArrivals) -> None:
        drawn_in, id_slot = self.standing.register(operations, self.watermark_us)
        self._arm(drawn_in, self.rows.created_us[drawn_in])
        from_us, late = counts_from(operations.created_us, self.watermark_us, self.spec.lookback_us)
        self.rows.append(operations, from_us, late, id_slot)
        self._held = (EMPTY, EMPTY)
        self.purgatory.try_complete_else_watch(operations.keys, operations.offsets, self._due_ms, operations.key_hash)
        if self.pending > self.spec.max_pending:
            raise LimitError(
                f"max_pending_per_shard is {self.spec.max_pending:,} and {self.pending:,} operations would wait in one "
                "shard: use more shards (a new checkpoint), or raise the limit; nothing was lost"
            )

    def _due_ms(self, rows: Int64s) -> Int64s:
        """When the timer must look at rows just tried: at the deadline or, under final, when the outcome may leave."""
        due_us = self.rows.deadline_us[rows]
        held, leaves_us = self._held
        due_us[rows.searchsorted(held)] = leaves_us
        return self._ticks_ms(rows, due_us)

    def _ticks_ms(self, rows: Int64s, due_us: Int64s) -> Int64s:
        """Ticks of due times; a contested row is due at its creation, whatever may be known of its end."""
        if len(self.standing.contested):
            due_us = np.where(np.isin(rows, self.standing.contested), self.rows.created_us[rows], due_us)
        return tick_up_ms(due_us, self.spec.tick_ms)

    @property
    def judge(self) -> Resolver:
        """What evaluates rows over the logs as they are now."""
        return Resolver(self.spec, self.rows, self.purgatory.watchers, self.events.log, self.events.controls)

    def _try(self, rows: Int64s) -> Bools:
        """Judge waiting rows; those decided leave now, those decided ahead of the watermark are noted to be held."""
        resolutions = self.judge.judge(rows)
        decided = resolutions.holds
        if self.events.controls:
            self.standing.extend(rows, resolutions.deadline_us)
        if self.spec.final or self.events.controls:
            due_us = self._due_us(resolutions)
            if self.spec.final:
                decided = decided & (due_us <= self.watermark_us)
            # Control events may have moved the deadline, or undone what was held.
            held = np.flatnonzero(~decided & (resolutions.holds | bool(self.events.controls)))
            self._held = (rows[held], due_us[held])
        self._emit_settled(resolutions, decided)
        return decided

    def _due_us(self, resolutions: Resolutions) -> Int64s:
        """When outcomes may leave under final, or else expire, (n,) int64.

        Not before the creation (lookback): until then the id may be contested.
        """
        leaves_us = np.maximum(resolutions.resolved_us, resolutions.created_us)
        return np.where(resolutions.holds, leaves_us, resolutions.deadline_us)

    def _fired(self, rows: Int64s) -> None:
        """The timer fired: the deadline has passed, or an outcome held need not wait any longer."""
        resolutions = self.judge.judge(rows)
        self._emit_settled(resolutions, resolutions.holds)
        self._emit(EXPIRED, resolutions, ~resolutions.holds)

    def _emit_settled(self, resolutions: Resolutions, chosen: Bools) -> None:
        for status, rows in resolutions.settled_as(chosen):
            self._emit(status, resolutions, rows)

    def _emit(self, status: int, resolutions: Resolutions, chosen: Bools) -> None:
        if chosen.any():
            self.outcomes.add(self.judge.outcomes_of(status, resolutions, chosen))
            self.events.orphans.leave(self.judge, resolutions, chosen)

    def _release_orphans(self) -> None:
        if not self.spec.orphans:
            return
        waiting = self.purgatory.state.values == WAITING
        for batch in self.events.orphans.release(self.judge, waiting, self._floor_us):
            self.outcomes.add(batch)

    @property
    def _floor_us(self) -> int:
        """Events up to here are heard by no operation that comes on time."""
        return int(saturating_add(np.array([self.watermark_us]), -self.spec.lookback_us)[0])

    def _forget_events(self) -> None:
        purgatory, from_us = self.purgatory, self.rows.from_us
        needed_from = partial(earliest_read, purgatory, from_us)
        self.events.forget(
            self._floor_us, needed_from, lambda: int(from_us[purgatory.waiting()].min(initial=MAX_TIME_US))
        )
