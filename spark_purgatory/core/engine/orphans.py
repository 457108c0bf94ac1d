"""Control events that match no pending operation: kept until none can match any more, then ORPHAN rows.

A control event *matches* an operation that counts its time and was pending at that time. An operation that leaves marks
the events that it matched. Once no operation that comes on time can count the event (the watermark has passed its time
and the lookback), the operations that still wait are compared with it. An event that is left is an orphan.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_purgatory.core.arrays.sorted_runs import Bools, Int64s
from spark_purgatory.core.arrays.times import MAX_TIME_US
from spark_purgatory.core.arrays.value_column import as_bools
from spark_purgatory.core.engine.outcomes import MissingKeys, OutcomeBatch
from spark_purgatory.core.engine.resolver import Resolutions, Resolver
from spark_purgatory.core.events.control_log import ControlLog, Targets, split_pair
from spark_purgatory.core.events.event_log import EventLog, EventSegment
from spark_purgatory.core.spec.codes import KINDS, EventKind, Status
from spark_purgatory.core.spec.engine_spec import EngineSpec


class OrphanEvents:
    """Control events that matched no operation so far."""

    def __init__(self) -> None:
        self.unmatched = ControlLog()

    def earliest_us(self) -> int | None:
        """The time of the first of them, None without any."""
        segments = [segment for log in self.unmatched.logs.values() for segment in log.segments]
        return min((int(segment.time_us.min()) for segment in segments), default=None)

    def leave(self, resolver: Resolver, resolutions: Resolutions, chosen: Bools, until_us: int = MAX_TIME_US) -> None:
        """Operations leave, (n,) bool of those resolved: the events up to ``until_us`` that they match are no
        orphans.
        """
        if self.unmatched:
            rows = resolutions.rows[chosen]
            entries, owner = resolver.watchers.entries_of(rows)
            end_us = np.minimum(np.minimum(resolutions.resolved_us, resolutions.deadline_us)[chosen], until_us)
            self._mark(resolver.targets(rows, entries, owner), resolver.rows.from_us[rows], end_us)

    def release(self, resolver: Resolver, waiting: Bools, floor_us: int) -> list[OutcomeBatch]:
        """The orphans up to ``floor_us``; ``waiting``, (rows,) bool, may match some of the events left."""
        earliest_us = self.earliest_us()
        if earliest_us is None or earliest_us > floor_us:
            return []
        rows = np.flatnonzero(waiting & self._may_match(resolver, floor_us))
        if len(rows):
            # Later events may still change: an earlier completion may come, or an earlier row of the id.
            self.leave(resolver, resolver.resolve(rows), np.ones(len(rows), bool), floor_us)
        found = []
        for name, log in self.unmatched.logs.items():
            for segment in log.merged():
                over = segment.time_us <= floor_us
                if over.any():
                    found.append(_rows_of(name, segment.where(over), resolver.spec))
                    log.segments = [left for left in [segment.where(~over)] if len(left)]
        self.unmatched.drop_empty()
        return found

    def _may_match(self, resolver: Resolver, floor_us: int) -> Bools:
        """Rows that have the key or the id of an event up to the floor, (rows,) bool."""
        may_match = np.zeros(resolver.watchers.rows, bool)
        for name, log in self.unmatched.logs.items():
            for segment in log.segments:
                due = segment.where(segment.time_us <= floor_us)
                if not name.startswith("named."):
                    _, entries = resolver.watchers.find(due.group_keys, due.group_hash)
                    may_match[resolver.watchers.rows_of(entries)] = True
                elif len(due) and resolver.rows.ids.chunks:
                    ids = pa.array([split_pair(pair)[0] for pair in due.group_keys.to_pylist()], pa.binary())
                    ids = ids.cast(resolver.rows.ids.chunks[0].type)
                    named = [as_bools(pc.is_in(chunk, value_set=ids)) for chunk in resolver.rows.ids.chunks]
                    may_match |= np.concatenate(named)
        return may_match

    def _mark(self, targets: Targets, from_us: Int64s, end_us: Int64s) -> None:
        """Remove the events that match operations pending between two times, (n,) each."""
        for kind in (EventKind.FAIL, EventKind.CANCEL, EventKind.FORCE, EventKind.EXTEND):
            changes: dict[int, Int64s] = {}
            for span in self.unmatched.spans(kind, targets, from_us[targets.owner], end_us[targets.owner]):
                change = changes.setdefault(id(span.segment), np.zeros(len(span.segment) + 1, np.int64))
                np.add.at(change, span.low, 1)
                np.add.at(change, span.high, -1)
            for log in self.unmatched.logs_of(kind):
                _drop(log, changes)
        self.unmatched.drop_empty()


def _drop(log: EventLog, changes: dict[int, Int64s]) -> None:
    kept = [s.where(np.cumsum(changes[id(s)])[:-1] == 0) if id(s) in changes else s for s in log.segments]
    log.segments = [segment for segment in kept if len(segment)]


def _rows_of(name: str, segment: EventSegment, spec: EngineSpec) -> OutcomeBatch:
    """ORPHAN rows: the operation's columns null, the event in the reason."""
    kind, n = name.removeprefix("named."), len(segment)
    assert kind in KINDS, f"bug: a log called {name}"
    texts = []
    for key in segment.group_keys.to_pylist():
        operation_id, at_key = split_pair(key) if kind != name else (None, key)
        # Keys and ids begin with the value of their partition.
        named = "" if operation_id is None else f" for operation {_text(operation_id[spec.id_prefix :])}"
        texts.append(f"{kind} on key {_text(at_key[spec.key_prefix :])}{named} found no operation pending")
    group = np.repeat(np.arange(len(texts)), np.diff(segment.start))
    return OutcomeBatch(
        payload=None,
        status=Status.ORPHAN,
        created_us=None,
        resolved_us=segment.time_us,
        matched=np.zeros(n, np.int64),
        missing=MissingKeys.none(n, pa.string()),
        late=np.zeros(n, bool),
        reasons=pa.array(texts, pa.string()).take(pa.array(group)),
    )


def _text(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
