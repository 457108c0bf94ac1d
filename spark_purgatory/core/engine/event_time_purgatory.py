"""The event-time engine of one shard: operations, events and a watermark in, outcomes out.

`EventTimePurgatory.step` is the only entry, and the watermark is the only clock. A step has these stages in this order,
which decides every tie between an arrival and the watermark (semantics 3); none depends on the order of its rows:

1. **Decide ids**: undecided rows whose created time has passed are accepted, or leave as DUPLICATE.
2. **Expire**: the clock moves to the watermark. Operations whose deadline has passed leave as EXPIRED. Under
   ``emit="final"``, held outcomes leave whose time has come.
3. **Forget events** that neither a waiting operation needs nor one that will come on time.
4. **Complete**: events join the logs, and the operations that wait on their keys are tried.
5. **Admit**: operations are rejected, found to be duplicates, or accepted. Accepted ones are tried, and watched if they
   are not complete.
6. **Expire** again at the same watermark, because operations may have arrived after their deadline.
7. **Clean up**: ids whose deadline has passed and events that counted for no operation leave. Resolved rows are
   removed.

Kafka's purgatory calls ``try_complete`` for operations that a check or a registration found, and ``on_expiration`` for
those whose timer fired. Three things differ from Kafka:

* Kafka completes an operation when it is first seen to be complete. Under ``emit="final"``, an outcome that lies ahead
  of the watermark is *held*: the operation stays, and its timer moves to the time at which the outcome may leave.
* Control events may move a deadline or undo a held outcome. So if there are any, trying a row also returns when it is
  due.
* Kafka does not try an operation again when it times out. Here the logs decide the outcome.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_purgatory.core.arrays.held_bytes import held_bytes
from spark_purgatory.core.arrays.sorted_runs import EMPTY, Bools, Int64s
from spark_purgatory.core.arrays.times import MAX_TIME_US, MIN_TIME_US, US_PER_MS, clock_ms, saturating_add, tick_up_ms
from spark_purgatory.core.arrays.value_column import as_bools
from spark_purgatory.core.engine.deduplication import Deduplication
from spark_purgatory.core.engine.evidence import evidence_of
from spark_purgatory.core.engine.operation_table import OperationTable
from spark_purgatory.core.engine.outcomes import Outcomes, add_counts
from spark_purgatory.core.engine.resolver import Resolutions, Resolver
from spark_purgatory.core.engine.shard_events import ShardEvents
from spark_purgatory.core.events.control_log import pair_of
from spark_purgatory.core.events.event_log import EventSegment
from spark_purgatory.core.kafka.purgatory import WAITING, DelayedOperationPurgatory
from spark_purgatory.core.kafka.timing_wheel import SystemTimer
from spark_purgatory.core.spec.arrivals import EventArrivals, OperationArrivals
from spark_purgatory.core.spec.codes import EventRejection, Status
from spark_purgatory.core.spec.criteria import AT_DEADLINE, Criterion
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.errors import LimitError

COMPACT_SHARE = 4  # rows of some 80 bytes that have ended take at most a fifth of the rows' memory


class EventTimePurgatory:
    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.events = ShardEvents(spec)
        self.outcomes = Outcomes(spec)
        timer = SystemTimer(spec.tick_ms, start_ms=MIN_TIME_US // 1000)
        self.purgatory = DelayedOperationPurgatory(timer, purge_interval=0, compact_share=COMPACT_SHARE)
        self.rows = OperationTable(spec, self.purgatory.watchers)
        self.deduplication = Deduplication(spec, self.rows, self.purgatory)
        self.watermark_ms = 0  # rounded down to the tick; 0: no watermark yet, so nothing is late and nothing is due

    def step(
        self, operations: OperationArrivals | None, events: EventArrivals | None, watermark_ms: int
    ) -> list[pa.RecordBatch]:
        """Take arrivals, resolve what can be resolved at this watermark, and return rows of the outcome table.

        A watermark earlier than the last step's counts as that; 0: there is none yet. Raises LimitError if more than
        ``max_pending`` operations would wait. Nothing is lost, because the step does not count.
        """
        self.watermark_ms = max(self.watermark_ms, clock_ms(watermark_ms, self.spec.tick_ms))
        self._decide_ids()
        self._expire()
        self._forget_events()
        if events is not None and len(events):
            self._complete(self._count_events(events))
        if operations is not None and len(operations):
            self._admit(operations)
            self._expire()
        self._clean_up()
        self.outcomes.tally.conserve(self.pending)
        if self.spec.orphans == "all":
            self.outcomes.tally.conserve_events(len(self.events.orphans))
        return self.outcomes.take()

    # --- the stages, in order --------------------------------------------------------------------------

    def _decide_ids(self) -> None:
        if not len(self.deduplication.undecided):
            return
        extended = (lambda rows: self.resolver.resolve(rows).deadline_us) if self.events.controls.extends else None
        duplicates, accepted = self.deduplication.decide(self.watermark_us, extended)
        self.purgatory.force_complete(duplicates)
        if len(duplicates):
            payload, created_us = self.rows.payload.take(duplicates), self.rows.created_us[duplicates]
            self.outcomes.refuse_duplicates(payload, created_us, self.rows.late[duplicates])
        if len(accepted):
            self._move_timers(accepted, self.due_us(self.resolver.resolve(accepted)))

    def _forget_events(self) -> None:
        def earliest_us() -> int:
            return int(self.rows.from_us_of(self.purgatory.waiting()).min(initial=MAX_TIME_US))

        self.events.forget(self._floor_us, self._earliest_read, earliest_us)

    def _earliest_read(self, segment: EventSegment) -> Int64s:
        """Return the earliest time that a waiting row reads, for every group of the segment, (G,) int64."""
        earliest = np.full(len(segment.group_hash), MAX_TIME_US)
        group, entries = self.purgatory.watchers.find(segment.group_keys, segment.group_hash)
        rows = self.purgatory.watchers.rows_of(entries)
        reads = self.purgatory.state.values[rows] == WAITING
        np.minimum.at(earliest, group[reads], self.rows.from_us_of(rows[reads]))
        return earliest

    def _count_events(self, events: EventArrivals) -> EventArrivals:
        tally = self.outcomes.tally
        accepted = events.take(np.flatnonzero(events.rejection == 0))
        tally.events_received += len(events)
        if len(accepted) < len(events):
            tally.events_rejected += len(events) - len(accepted)
            add_counts(tally.event_rejections, events.rejection[events.rejection != 0])
        if accepted.no_addend is not None:
            tally.event_rejections[EventRejection.BAD_VALUE] += int(np.count_nonzero(accepted.no_addend))
        tally.events_late += int(np.count_nonzero(accepted.time_us <= self.watermark_us))
        if self.spec.orphans == "all" and len(accepted) < len(events):
            self.events.orphans.reject(events.take(np.flatnonzero(events.rejection)), self.watermark_us)
        return accepted

    def _complete(self, events: EventArrivals) -> None:
        if len(events):
            arrived = self.events.take(events, self.watermark_us)
            if self.pending:
                if self.spec.whole_operations and self.spec.identity_width == 1:
                    self.outcomes.tally.event_rejections[EventRejection.FOREIGN_KEY] += self._foreign_keys(events)
                self._check(arrived)
                if events.keys.null_count:
                    alone = events.take(np.flatnonzero(as_bools(events.keys.is_null())))
                    self._check(self._first_keys(alone))

    def _named_rows(self, events: EventArrivals) -> Int64s:
        assert events.operation_hash is not None, "bug: an event that names no operation"
        named = np.isin(self.rows.id_hash, events.operation_hash)
        return np.flatnonzero((self.purgatory.state.values == WAITING) & named)

    def _foreign_keys(self, events: EventArrivals) -> int:
        """Count the events that name a waiting operation and have a key that it does not have."""
        ids, keys = events.operation_ids, events.keys
        if ids is None:
            return 0
        events = events.take(np.flatnonzero(as_bools(ids.is_valid()) & as_bools(keys.is_valid())))
        rows = self._named_rows(events) if len(events) else EMPTY
        if not len(rows):
            return 0
        entries, owner = self.purgatory.watchers.entries_of(rows)
        known, ids = self.rows.ids.take(rows), events.operation_ids
        held = pair_of(known.take(pa.array(owner)), self.purgatory.watchers.keys.take(entries))
        waits = pc.is_in(pair_of(ids, None), value_set=pair_of(known, None))
        has_key = pc.is_in(pair_of(ids, events.keys), value_set=held)
        return int(np.count_nonzero(as_bools(waits) & ~as_bools(has_key)))

    def _first_keys(self, events: EventArrivals) -> EventSegment:
        """Return the first keys of waiting operations that events name by id, as arrivals, so that they are tried."""
        rows, watchers = self._named_rows(events), self.purgatory.watchers
        entries = watchers.first_entries(rows)
        keys, hashes = watchers.keys.take(entries), watchers.hashes.values[entries]
        return EventSegment.build(keys, hashes, np.zeros(len(rows), np.int64))

    def _admit(self, operations: OperationArrivals) -> None:
        self.outcomes.tally.received += len(operations)
        left, bad = operations, np.flatnonzero(operations.rejection)
        if len(bad):
            self.outcomes.reject(operations.take(bad))
            left = operations.take(np.flatnonzero(operations.rejection == 0))
        self.outcomes.tally.operations_late += int(np.count_nonzero(left.created_us <= self.watermark_us))
        while len(left):
            accepted, left = self._without_duplicates(left)
            if len(accepted):
                self._register(accepted)
        if self.pending > self.spec.max_pending:
            raise LimitError(
                f"max_pending_per_shard is {self.spec.max_pending:,}, but {self.pending:,} operations would wait in "
                "one shard. Nothing was lost: use more shards (spark-purgatory move), or raise the limit"
            )

    def _without_duplicates(self, operations: OperationArrivals) -> tuple[OperationArrivals, OperationArrivals]:
        """Return the operations that are not DUPLICATEs, and those to check again after an earlier row of their id."""
        duplicate, again = self.deduplication.find_duplicates(
            operations, self.watermark_us, self.events.controls.extends
        )
        if duplicate.any():
            rows = operations.take(np.flatnonzero(duplicate))
            late = rows.created_us <= self.watermark_us
            self.outcomes.refuse_duplicates(rows.payload, rows.created_us, late)
        return operations.take(np.flatnonzero(~duplicate & ~again)), operations.take(np.flatnonzero(again))

    def _register(self, operations: OperationArrivals) -> None:
        now_undecided, id_slot = self.deduplication.register(operations, self.watermark_us)
        self._move_timers(now_undecided, self.rows.created_us[now_undecided])
        late = operations.created_us <= self.watermark_us
        from_us = saturating_add(operations.created_us, -self.spec.lookback_us)
        promised_us = saturating_add(np.array([self.watermark_us]), 1 - self.spec.lookback_us)
        from_us = np.where(late, np.maximum(from_us, promised_us), from_us)  # The log has all events from then on
        rows = self.purgatory.next_row + np.arange(len(operations))
        self.rows.append(operations, from_us, late, id_slot)
        deadlines_ms = self.ticks_ms(rows, operations.deadline_us)
        keys, offsets = operations.keys, operations.offsets
        self.purgatory.try_complete_else_watch(self, keys, offsets, deadlines_ms, operations.key_hash)

    def _clean_up(self) -> None:
        self.deduplication.forget(self.watermark_us)
        if self.spec.orphans != "none":
            waiting, orphans = self.purgatory.state.values == WAITING, self.events.orphans
            for batch in orphans.release(self.resolver, waiting, self._floor_us):
                self.outcomes.add(batch)
            for ranges in (orphans.ended, orphans.past):
                ranges.forget(self.watermark_us)
            self.outcomes.tally.events_counted += orphans.take_counted()
        if self.purgatory.is_worth_compacting:
            waiting = self.purgatory.state.values == WAITING
            self.rows.keep(waiting, self.purgatory.watchers.entries_among(waiting))
            self.deduplication.renumber(self.purgatory.compact())

    def _expire(self) -> None:
        if self.watermark_ms > 0:
            self.purgatory.advance_clock(self, self.watermark_ms)

    def _check(self, arrived: EventSegment) -> None:
        if not self._only_deadlines:
            self.purgatory.check_and_complete(self, arrived.group_keys, arrived.group_hash)

    def _move_timers(self, rows: Int64s, due_us: Int64s) -> None:
        self.purgatory.rearm(rows, self.ticks_ms(rows, due_us))

    # --- what the purgatory calls ----------------------------------------------------------------------

    def try_complete(self, rows: Int64s, /) -> tuple[Bools, Int64s | None]:
        """Resolve waiting rows, (n,); flags those whose outcome leaves now, and returns when the others are due."""
        if self._only_deadlines:
            return np.zeros(len(rows), bool), None
        resolutions = self.resolver.resolve(rows)
        leaves, due_ms = resolutions.is_resolved, None
        final, has_controls = self.spec.final, bool(self.events.controls)
        if has_controls:
            self.deduplication.extend(rows, resolutions.deadline_us)
        if final or has_controls or self.spec.may_have(AT_DEADLINE):
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
        return tick_up_ms(due_us, self.spec.tick_ms)

    def _emit_resolved(self, resolutions: Resolutions, chosen: Bools) -> None:
        for status, rows in resolutions.by_status(chosen):
            self._emit(status, resolutions, rows)

    def _emit(self, status: Status, resolutions: Resolutions, chosen: Bools) -> None:
        if chosen.any():
            batch = self.resolver.outcomes_of(status, resolutions, chosen)
            if self.spec.evidence is not None:
                batch.evidence = evidence_of(self.resolver, status, resolutions, chosen)
            self.outcomes.add(batch)
            self.events.orphans.leave(self.resolver, resolutions, chosen, self.watermark_us)

    def due_us(self, resolutions: Resolutions) -> Int64s:
        """Return when outcomes may leave or rows expire, (n,): from the created time, until which an id may recur."""
        leaves_us = np.maximum(resolutions.resolved_us, resolutions.created_us)
        return np.where(resolutions.is_resolved, leaves_us, resolutions.deadline_us)

    @property
    def _only_deadlines(self) -> bool:
        criterion = self.spec.criterion
        return isinstance(criterion, Criterion) and criterion.code in AT_DEADLINE and not self.events.controls

    # --- what others read ------------------------------------------------------------------------------

    @property
    def resolver(self) -> Resolver:
        return Resolver(self.spec, self.rows, self.purgatory.watchers, self.events.log, self.events.controls)

    @property
    def pending(self) -> int:
        return self.purgatory.next_row - self.purgatory.ended

    @property
    def memory_bytes(self) -> int:
        """The bytes of its own arrays in memory; reading it takes some 1 ms for any size."""
        return held_bytes(self)

    @property
    def watermark_us(self) -> int:
        """The watermark in microseconds; MIN_TIME_US while there is none."""
        return min(self.watermark_ms * US_PER_MS, MAX_TIME_US) if self.watermark_ms > 0 else MIN_TIME_US

    @property
    def _floor_us(self) -> int:
        """The time up to which events count for no operation that comes on time."""
        return int(saturating_add(np.array([self.watermark_us]), -self.spec.lookback_us)[0])

    def oldest_us(self) -> int | None:
        return int(self.rows.created_us[self.purgatory.waiting()].min()) if self.pending else None

    def next_due_ms(self) -> int | None:
        """Return the watermark at which this shard must be called again; None if nothing waits."""
        due_ms = self.purgatory.timer.next_due_ms()
        unmatched_us = self.events.orphans.earliest_us()
        if unmatched_us is None:
            return due_ms
        orphan_us = saturating_add(np.array([unmatched_us]), self.spec.lookback_us)
        return min(MAX_TIME_US if due_ms is None else due_ms, int(tick_up_ms(orphan_us, self.spec.tick_ms)[0]))
