"""The event-time engine of one shard: a `DelayedOperationPurgatory` over an `EventLog`.

One door: `step(operations, events, watermark)` -> outcomes. The clock is the watermark; nothing else tells the time.
A step has a fixed order, which decides every tie between arrival and watermark:

1. The clock moves to the watermark; what is due leaves (EXPIRED; under ``final`` also outcomes held until now).
2. Events join the log; operations already waiting on their keys are checked.
3. Operations are checked for rejection and duplication, tried, and otherwise watched.
4. The clock is moved again to the same time, for operations that arrived already due.
5. Events that nobody waiting or to come on time may need are forgotten; ended rows are compacted away.

Built on Kafka's parts; where event time asks for more, it is said here:

* Kafka's timer may fire up to a tick early. Deadlines are rounded *up* to a millisecond before they reach it, and wheels
  of a coarser tick get them rounded up to that.
* Kafka completes an operation when it is first seen to be complete (``emit="early"``). Under ``final`` a criterion that
  holds from an event time ahead of the watermark on moves the operation's timer there (`rearm`), so that every outcome
  leaves through the timer, once no earlier event can come.
* Kafka's operation that times out is not tried again. Here the log tells what the outcome is (`_fired`).

The law follows: what is decided depends on operations, events and watermark, not on steps. Relevant events are those of
``from_us <= time <= deadline``, with from_us = created - lookback, or, for an operation that arrives behind the
watermark, no earlier than what the log still promises to hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrivals import REJECTIONS, EventArrivals, OperationArrivals
from spark_purgatory.core.criteria import ANY_KEY, KEYED, LEVEL, Criterion
from spark_purgatory.core.evaluation import Cases, Verdicts, evaluate
from spark_purgatory.core.event_log import EventLog, EventSegment, Spans
from spark_purgatory.core.ids import Ids
from spark_purgatory.core.operations import OperationRows
from spark_purgatory.core.outcomes import COMPLETED, DUPLICATE, EXPIRED, REJECTED, MissingKeys, OutcomeBatch, Tally
from spark_purgatory.core.purgatory import DelayedOperationPurgatory
from spark_purgatory.core.runs import EMPTY, Bools, Int64s
from spark_purgatory.core.times import ALWAYS, NEVER, US_PER_MS, ceil_ms, saturating_add
from spark_purgatory.core.timing_wheel import SystemTimer
from spark_purgatory.errors import BugError, LimitError

COMPACT_FLOOR = 1024
"""Ended rows below which compacting is not worth a pass."""


@dataclass(frozen=True)
class EngineSpec:
    """What an engine does; equal specs read each other's state."""

    criterion: Criterion
    final: bool = False
    lookback_us: int = 0
    tick_ms: int = 1
    wheel_size: int = 20
    max_pending: int = 10_000_000
    """Operations waiting in one shard: at 100 bytes each 1 GB of state, past what a state store can write."""
    max_state_bytes: int = 1 << 30
    """Bytes of one shard's state: a JVM array ends at 2 GiB, and two versions stand on the heap."""

    def fingerprint(self) -> dict[str, str | float | int | bool]:
        """What must not change against a checkpoint, by name."""
        return {
            "criterion": self.criterion.rule,
            "need": float(self.criterion.need),
            "emit": "final" if self.final else "early",
            "lookback_us": self.lookback_us,
            "tick_ms": self.tick_ms,
        }


class EventTimePurgatory:
    """One shard: operations, events, ids and the clock."""

    def __init__(self, spec: EngineSpec, identity_width: int = 1) -> None:
        self.spec = spec
        self.log = EventLog()
        self.ids = Ids(identity_width)
        self.rows = OperationRows()
        self.watermark_ms = 0
        """0 means: no watermark yet, as in Spark. Nothing is late and nothing is due."""
        self.tally = Tally()
        self.purgatory = DelayedOperationPurgatory(
            SystemTimer(spec.tick_ms, spec.wheel_size), try_complete=self._try, on_expiration=self._fired, purge_interval=0
        )
        self._outcomes: list[OutcomeBatch] = []
        self._held: dict[str, Int64s] = {"rows": EMPTY, "resolved_us": EMPTY}

    @property
    def pending(self) -> int:
        """Operations waiting."""
        return self.purgatory.next_row - self.purgatory.ended

    @property
    def watermark_us(self) -> int:
        """The watermark in microseconds; ALWAYS while there is none."""
        return self.watermark_ms * US_PER_MS if self.watermark_ms > 0 else ALWAYS

    def step(
        self, operations: OperationArrivals | None, events: EventArrivals | None, watermark_ms: int
    ) -> list[pa.RecordBatch]:
        """Take what arrived, decide what can be decided at this watermark; returns outcomes."""
        self.watermark_ms = max(self.watermark_ms, watermark_ms)
        self._outcomes = []
        self._advance()
        if events is not None and len(events):
            self._take_events(events)
        if operations is not None and len(operations):
            self._take_operations(operations)
            self._advance()
        self.ids.forget(self.watermark_us)
        self._forget_events()
        self._compact()
        self._conserve()
        return [batch.to_arrow() for batch in self._outcomes if len(batch.payload)]

    def next_due_ms(self) -> int | None:
        """The watermark at which this shard must be called again; None while nothing waits."""
        return self.purgatory.timer.next_due_ms()

    def _advance(self) -> None:
        if self.watermark_ms > 0:
            self.purgatory.advance_clock(self.watermark_ms)

    # Events

    def _take_events(self, events: EventArrivals) -> None:
        self.tally.events_received += len(events)
        fine = np.flatnonzero(events.rejection == 0)
        self.tally.events_rejected += len(events) - len(fine)
        events = events.take(fine)
        self.tally.events_late += int(np.count_nonzero(events.time_us <= self.watermark_us))
        if not len(events):
            return
        segment = EventSegment.build(events.keys, events.key_hash, events.time_us, events.value)
        self.log.append(segment)
        if self.pending:
            self._held = {"rows": EMPTY, "resolved_us": EMPTY}
            self.purgatory.check_and_complete(segment.group_keys, segment.group_hash)
            self._rearm_held()

    def _rearm_held(self) -> None:
        rows, due_ms = self._held["rows"], self._tick_up(self._held["resolved_us"])
        armed_ms = cast(Int64s, self.purgatory.timer.armed_tick.values)[rows] * self.spec.tick_ms
        moved = due_ms != armed_ms
        if moved.any():
            self.purgatory.rearm(rows[moved], due_ms[moved])

    def _forget_events(self) -> None:
        """Forget events with ``watermark >= time + lookback`` that no waiting operation reads."""
        floor = int(saturating_add(np.array([self.watermark_us]), -self.spec.lookback_us)[0])
        if floor == ALWAYS:
            return
        if self.spec.criterion.code == ANY_KEY:
            # A waiting operation has no event at all, or (final) only events ahead of the watermark.
            self.log.forget(floor)
        else:
            self.log.forget(floor, self._needed_from, levels=self.spec.criterion.code == LEVEL)

    def _needed_from(self, segment: EventSegment) -> Int64s:
        """Earliest time that a waiting operation reads, for every group of the segment."""
        needed_from = np.full(len(segment.group_hash), NEVER)
        group, entries = self.purgatory.watchers.find(segment.group_keys, segment.group_hash, ordered=False)
        rows = self.purgatory.watchers.row_of.values[entries]
        waiting = self.purgatory.state.values[rows] == 0
        np.minimum.at(needed_from, group[waiting], self.rows.from_us[rows[waiting]])
        return needed_from

    # Operations

    def _take_operations(self, operations: OperationArrivals) -> None:
        self.tally.received += len(operations)
        self._reject(operations.take(np.flatnonzero(operations.rejection)))
        operations = operations.take(np.flatnonzero(operations.rejection == 0))
        identity = [operations.ids] if len(self.ids.columns) == 1 else [operations.ids, operations.keys]
        repeated = self.ids.duplicates(
            identity, operations.id_hash, operations.created_us, operations.deadline_us, self.watermark_us
        )
        if repeated.any():
            self._duplicate(operations.take(np.flatnonzero(repeated)))
            operations = operations.take(np.flatnonzero(~repeated))
            identity = [operations.ids] if len(self.ids.columns) == 1 else [operations.ids, operations.keys]
        if not len(operations):
            return
        if self.pending + len(operations) > self.spec.max_pending:
            raise LimitError(
                f"max_pending_per_shard is {self.spec.max_pending:,} and {self.pending + len(operations):,} operations "
                "would wait in one shard: use more shards (a new checkpoint), or raise the limit; nothing was lost"
            )
        self.ids.add(identity, operations.id_hash, operations.deadline_us)
        self._register(operations)

    def _register(self, operations: OperationArrivals) -> None:
        floor = saturating_add(np.array([self.watermark_us]), 1 - self.spec.lookback_us)
        from_us = saturating_add(operations.created_us, -self.spec.lookback_us)
        late = operations.created_us <= self.watermark_us
        from_us = np.where(late, np.maximum(from_us, floor), from_us)
        self.rows.append(operations.created_us, from_us, operations.deadline_us, late, operations.payload)
        self._held = {"rows": EMPTY, "resolved_us": EMPTY}
        self.purgatory.try_complete_else_watch(operations.keys, operations.offsets, self._due_ms, operations.key_hash)

    def _due_ms(self, rows: Int64s) -> Int64s:
        """When the timer must look at rows just tried: at the deadline or, under final, when the outcome may leave."""
        due_us = self.rows.deadline_us[rows]
        held = self._held["rows"]
        if len(held):
            due_us[rows.searchsorted(held)] = self._held["resolved_us"]
        return self._tick_up(due_us)

    def _tick_up(self, times_us: Int64s) -> Int64s:
        ticks = -(-ceil_ms(times_us) // self.spec.tick_ms)
        return ticks * self.spec.tick_ms

    # Decisions

    def _try(self, rows: Int64s) -> Bools:
        """Evaluate waiting rows; those decided leave now, those decided ahead of the watermark are noted to be held."""
        verdicts, entries, owner = self._evaluate(rows)
        limit = self.watermark_us if self.spec.final else NEVER - 1
        decided = verdicts.resolved_us <= limit
        if self.spec.final:
            held = np.flatnonzero(~decided & (verdicts.resolved_us != NEVER))
            self._held = {"rows": rows[held], "resolved_us": verdicts.resolved_us[held]}
        self._emit(COMPLETED, rows, decided, verdicts, entries, owner)
        return decided

    def _fired(self, rows: Int64s) -> None:
        """The timer fired: the deadline has passed, or an outcome held need not wait any longer."""
        verdicts, entries, owner = self._evaluate(rows)
        completed = verdicts.resolved_us != NEVER
        self._emit(COMPLETED, rows, completed, verdicts, entries, owner)
        self._emit(EXPIRED, rows, ~completed, verdicts, entries, owner)

    def _evaluate(self, rows: Int64s) -> tuple[Verdicts, Int64s, Int64s]:
        watchers, criterion = self.purgatory.watchers, self.spec.criterion
        entries, owner = watchers.entries_of(rows)
        counts = np.bincount(owner, minlength=len(rows))
        from_us, deadline_us = self.rows.from_us[rows], self.rows.deadline_us[rows]
        hashes = cast(Int64s, watchers.hashes.values)[entries]
        spans = self.log.spans(watchers.keys, entries, hashes, from_us[owner], deadline_us[owner])
        history: list[Spans] = []
        if criterion.code == LEVEL:
            always = np.full(len(entries), ALWAYS)
            history = self.log.spans(watchers.keys, entries, hashes, always, deadline_us[owner])
        cases = Cases(
            rule=np.full(len(rows), criterion.code),
            need=np.full(len(rows), float(criterion.need)),
            created_us=self.rows.created_us[rows],
            from_us=from_us,
            deadline_us=deadline_us,
            first_entry=np.cumsum(counts) - counts,
            owner=owner,
            level_need=np.full(len(entries), float(criterion.need)),
        )
        return evaluate(cases, spans, history), entries, owner

    def _emit(
        self, status: int, rows: Int64s, chosen: Bools, verdicts: Verdicts, entries: Int64s, owner: Int64s
    ) -> None:
        if not chosen.any():
            return
        keys = self.purgatory.watchers.keys
        if self.spec.criterion.code in KEYED:
            missing_entry = chosen[owner] & ~verdicts.satisfied
            counts = np.bincount(owner[missing_entry], minlength=len(rows))[chosen]
            missing = MissingKeys(keys.take(entries[missing_entry]), counts, np.ones(len(counts), bool))
        else:
            missing = MissingKeys.none(int(chosen.sum()), keys.chunks[0].type)
        rows = rows[chosen]
        deadline_us = self.rows.deadline_us[rows]
        resolved_us = deadline_us if status == EXPIRED else verdicts.resolved_us[chosen]
        created_us, late = self.rows.created_us[rows], self.rows.late[rows]
        self._add(
            OutcomeBatch(
                self.rows.payload.take(rows), status, created_us, resolved_us, verdicts.matched[chosen], missing, late
            )
        )

    def _reject(self, rows: OperationArrivals) -> None:
        if len(rows):
            reasons = pa.array(REJECTIONS).take(pa.array(rows.rejection))
            self._unwatched(REJECTED, rows, reasons, np.zeros(len(rows), bool))

    def _duplicate(self, rows: OperationArrivals) -> None:
        reason = "the id was seen before and its deadline has not passed"
        self._unwatched(DUPLICATE, rows, pa.repeat(reason, len(rows)), None)

    def _unwatched(self, status: int, rows: OperationArrivals, reasons: pa.Array, dated: Bools | None) -> None:
        n = len(rows)
        late = rows.created_us <= self.watermark_us if dated is None else np.zeros(n, bool)
        missing = MissingKeys.none(n, rows.keys.type)
        self._add(
            OutcomeBatch(
                rows.payload, status, rows.created_us, rows.created_us, np.zeros(n, np.int64), missing, late, reasons, dated
            )
        )

    def _add(self, batch: OutcomeBatch) -> None:
        self.tally.by_status[batch.status] += len(batch.payload)
        self._outcomes.append(batch)

    # House-keeping

    def _compact(self) -> None:
        if self.purgatory.ended <= self.pending + COMPACT_FLOOR:
            return
        self.rows.keep(np.flatnonzero(self.purgatory.compact() >= 0))

    def _conserve(self) -> None:
        tally = self.tally
        if tally.received != tally.decided() + self.pending:
            raise BugError(
                f"conservation: {tally.received} operations received, {tally.decided()} decided, {self.pending} pending"
            )


