"""The time ranges of operations that ended before their deadline: events in them came too late.

The range of an operation on one of its keys is ``from_us <= time <= deadline``. It is kept in an `EventLog` with its
start as time and its end as value. A time is in a range if the largest end of the ranges that start at or before it is
not before it. For example, the ranges of a key::

    start               10   12   40
    largest end so far  30   30   50     30 is in a range (10 to 30), 31 to 39 are in none, 45 is in one

Once the watermark reaches the end of a range, an event in it is late, and the range is not needed any more.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from spark_purgatory.core.arrays.sorted_runs import EMPTY, Bools, Int64s
from spark_purgatory.core.arrays.times import MIN_TIME_US
from spark_purgatory.core.arrays.value_column import ValueColumn
from spark_purgatory.core.events.control_log import LogKey, Targets, pair_of
from spark_purgatory.core.events.event_log import FORGET_FLOOR, EventLog, EventSegment
from spark_purgatory.core.spec.codes import EventKind

PLAIN, NAMED = LogKey(EventKind.COMPLETE, False), LogKey(EventKind.COMPLETE, True)


class EndedRanges:
    """Ranges by key and, if events may name an operation, by operation and key."""

    def __init__(self) -> None:
        self.logs: dict[LogKey, EventLog] = {}

    def add(self, targets: Targets, from_us: Int64s, until_us: Int64s, watermark_us: int) -> None:
        """Add the ranges of watch entries whose operations end, (m,), unless the watermark has passed them."""
        ahead = np.flatnonzero((until_us > watermark_us) & (until_us >= from_us))
        if not len(ahead):
            return
        keys = targets.keys.take(targets.entries[ahead])
        times = from_us[ahead], until_us[ahead]
        self._append(PLAIN, EventSegment.build(keys, targets.hashes[ahead], *times))
        if targets.ids is not None:
            owner = targets.owner[ahead]
            ids = targets.ids.take(owner)
            self._append(NAMED, EventSegment.build(pair_of(ids, keys), targets.id_hash[owner], *times))
            if targets.whole:
                self._append(NAMED, EventSegment.build(pair_of(ids, None), targets.id_hash[owner], *times))

    def _append(self, key: LogKey, segment: EventSegment) -> None:
        self.logs.setdefault(key, EventLog()).append(segment)

    def contain(self, segment: EventSegment, is_named: bool) -> Bools:
        """Flag the events in a range, (E,) bool; the keys of ``is_named`` events are those of `pair_of`."""
        inside = np.zeros(len(segment), bool)
        log = self.logs.get(NAMED if is_named else PLAIN)
        if log is not None:
            always = np.full(len(segment), MIN_TIME_US)
            keys = ValueColumn([segment.group_keys])
            for span in log.spans(keys, segment.group, segment.hashes, always, segment.time_us):
                largest_end_us = span.segment.running_max[span.high - 1]
                inside[span.owner[largest_end_us >= segment.time_us[span.owner]]] = True
        return inside

    def forget(self, watermark_us: int) -> None:
        """Forget ranges that the watermark has passed and unite those of a key, if a fifth are passed or the number of
        ranges has doubled since.
        """
        for log in self.logs.values():
            passed = sum(int(np.count_nonzero(_ends(segment) <= watermark_us)) for segment in log.segments)
            left = len(log) - passed
            if passed > left // 4 + FORGET_FLOOR or left > 2 * log.kept + FORGET_FLOOR:
                [segment] = log.merged()
                few = united(segment.where(_ends(segment) > watermark_us))
                log.segments, log.kept = [few] if len(few) else [], len(few)
        self.logs = {key: log for key, log in self.logs.items() if len(log)}


def united(ranges: EventSegment) -> EventSegment:
    """Unite the ranges of a key that overlap, so that a hot key has few of them."""
    largest_end_us = ranges.running_max
    begins = np.ones(len(ranges), bool)
    begins[1:] = ranges.time_us[1:] > largest_end_us[:-1]
    begins[ranges.start[:-1]] = True
    last = np.append(np.flatnonzero(begins)[1:], len(ranges)) - 1 if len(ranges) else EMPTY
    return replace(ranges.where(begins), value=largest_end_us[last])


def _ends(ranges: EventSegment) -> Int64s:
    assert ranges.value is not None, "bug: a range without an end"
    return ranges.value
