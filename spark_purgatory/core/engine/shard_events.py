"""All events of a shard: completions, control events, and events that no operation has counted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spark_purgatory.core.arrays.numbers import is_double
from spark_purgatory.core.arrays.sorted_runs import Int64s
from spark_purgatory.core.arrays.value_column import as_bools
from spark_purgatory.core.engine.orphans import OrphanEvents
from spark_purgatory.core.events.control_log import ControlLog, LogKey
from spark_purgatory.core.events.event_log import EventLog, EventSegment
from spark_purgatory.core.spec.arrivals import EventArrivals
from spark_purgatory.core.spec.codes import EventKind
from spark_purgatory.core.spec.criteria import LEVELLED, any_key
from spark_purgatory.core.spec.engine_spec import VALUE, EngineSpec
from spark_purgatory.errors import BugError


class ShardEvents:
    """Logs of events, kept as long as an operation that waits or comes on time may need them."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.log = EventLog()
        self.controls = ControlLog()
        self.orphans = OrphanEvents(spec)
        self.unvalued_until_us: int | None = None  # the latest completion that was kept without its value for outcomes

    def other_logs(self) -> dict[str, dict[LogKey, EventLog]]:
        """Return the logs besides that of completions, by owner."""
        logs = {"control": self.controls.logs, "unmatched": self.orphans.unmatched.logs}
        return logs | {"ended": self.orphans.ended.logs, "past": self.orphans.past.logs}

    def latest_unvalued_us(self) -> int | None:
        """Return the time of the latest completion whose value outcomes may need and do not have; None if none is."""
        evidence, columns = self.spec.evidence, self.spec.event_columns
        if evidence is not None and evidence.largest:
            return None
        if columns is not None and VALUE in columns.names:
            return self.unvalued_until_us
        return max((int(segment.time_us.max()) for segment in self.log.segments), default=None)

    def take(self, events: EventArrivals, watermark_us: int) -> EventSegment:
        """Keep the events of a batch, and return a segment with a group for each of their keys."""
        if events.value is not None and is_double(events.value) != (self.spec.scale is None):
            raise BugError(f"the query's number type is {self.spec.number}, but events have {events.value.dtype}")
        if events.kind is None and events.operation_ids is None:
            return self._take_completions(events, watermark_us)
        control = events.is_control()
        if not control.any():
            return self._take_completions(events, watermark_us)
        self._take_completions(events.take(np.flatnonzero(~control)), watermark_us)
        for key, segment in self.controls.append(events.take(np.flatnonzero(control))):
            self.orphans.add(key, segment, watermark_us)
        with_keys = events.take(np.flatnonzero(as_bools(events.keys.is_valid())))
        return EventSegment.build(with_keys.keys, with_keys.key_hash, with_keys.time_us)

    def _take_completions(self, events: EventArrivals, watermark_us: int) -> EventSegment:
        value = events.value if self.spec.criterion.reads_values else None
        event_ids = events.event_ids if self.spec.event_ids else None
        segment = EventSegment.build(
            keys=events.keys,
            hashes=events.key_hash,
            time_us=events.time_us,
            value=value,
            event_ids=event_ids,
            columns=events.columns,
        )
        self.log.append(segment)
        if event_ids is not None:
            self.log.merged()  # a redelivery must be in one segment with the first delivery
        self.orphans.add(LogKey(EventKind.COMPLETE, False), segment, watermark_us)
        return segment

    def forget(
        self, floor_us: int, needed_from: Callable[[EventSegment], Int64s], earliest_us: Callable[[], int]
    ) -> None:
        """Forget events up to the floor that no waiting operation needs; ``earliest_us`` is for those that name one."""
        levels = self.spec.may_have(LEVELLED)
        if self.spec.criterion == any_key():
            # A waiting operation has no event that counts or, under final, only events ahead of the watermark.
            self.log.forget(floor_us)
        else:
            self.log.forget(floor_us, needed_from, levels)
        if self.controls:
            self.controls.forget(floor_us, needed_from, earliest_us(), levels)
