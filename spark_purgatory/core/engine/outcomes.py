"""Outcomes, collected during a step as arrays and turned into Arrow batches at its end.

The columns are the payload's, then `OUTCOME_FIELDS`, `evidence_fields` and, with ORPHAN rows, `ORPHAN_FIELDS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_purgatory.core.arrays.sorted_runs import Bools, Int64s
from spark_purgatory.core.arrays.times import MIN_TIME_US, elapsed_ms
from spark_purgatory.core.spec.arrivals import OperationArrivals
from spark_purgatory.core.spec.codes import STATUSES, EventRejection, OperationRejection, Status
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.errors import BugError

OUTCOME_FIELDS = (
    pa.field("status", pa.string()),
    pa.field("resolved_at", pa.timestamp("us", "UTC")),
    pa.field("wait_ms", pa.int64()),
    pa.field("matched", pa.int64()),
    pa.field("missing_keys", pa.list_(pa.string())),
    pa.field("late", pa.bool_()),
    pa.field("reason", pa.string()),
)
EVENT_FIELDS = tuple(pa.field(f"event_{name}", pa.string()) for name in ("kind", "key", "operation_id"))  # of ORPHANs
ORPHAN_FIELDS = (pa.field("reason_code", pa.string()), *EVENT_FIELDS)
DUPLICATE_REASON, DUPLICATE_CODE = "the id was seen before and its deadline has not passed", "duplicate"
MOST_BYTES = 2**31 - 1  # of one value: Arrow's binary arrays count bytes in 32 bits


def evidence_fields(spec: EngineSpec) -> list[pa.Field]:
    if spec.evidence is None:
        return []
    event = spec.event_type()
    return [pa.field("event", event), *([pa.field("events", pa.list_(event))] if spec.evidence.lists_all else [])]


@dataclass(frozen=True)
class MissingKeys:
    """Unsatisfied keys of n operations, flat; null if the criterion has none."""

    keys: pa.Array  # (m,)
    counts: Int64s  # (n,)
    applies: Bools  # (n,)
    prefix: int = 0  # characters (or bytes) of the partition's value before the user's key

    @staticmethod
    def none(n: int) -> MissingKeys:
        return MissingKeys(pa.array([], pa.string()), np.zeros(n, np.int64), np.zeros(n, bool))

    def to_arrow(self) -> pa.ListArray:
        offsets = np.concatenate(([0], np.cumsum(self.counts))).astype(np.int32)
        mask = None if self.applies.all() else pa.array(~self.applies)
        keys = as_text(without_prefix(self.keys, self.prefix))
        return pa.ListArray.from_arrays(pa.array(offsets), keys, mask=mask)


def structs_of(
    keys: pa.Array, times_us: pa.Array, ids: pa.Array | None, columns: pa.StructArray | None, spec: EngineSpec
) -> pa.StructArray:
    assert spec.evidence is not None and spec.event_columns is not None, "bug: outcomes carry no events"
    kind, n = spec.event_type(), len(keys)
    own = [pa.nulls(n, field.type) for field in spec.event_columns] if columns is None else columns.flatten()
    named = [pa.nulls(n, pa.string()) if ids is None else as_text(ids)] if spec.event_ids else []
    values = int(spec.evidence.has_value)
    parts = [keys, times_us.cast(kind[1].type), *own[:values], *named, *own[values:]]
    return pa.StructArray.from_arrays(parts, fields=list(kind))


def without_prefix(keys: pa.Array, prefix: int) -> pa.Array:
    """Remove the partition's value, ``prefix`` characters (or bytes), from keys or ids."""
    if not prefix:
        return keys
    if not pa.types.is_binary(keys.type):
        return pc.utf8_slice_codeunits(keys, prefix)
    # Without an end, pyarrow 26 adds lengths that overflow, and raises for two values.
    return pc.binary_slice(keys, prefix, stop=MOST_BYTES)


def as_text(keys: pa.Array) -> pa.Array:
    """Return keys as strings. Bytes stay as they are even if they are not UTF-8, as in Spark's cast of binary."""
    if pa.types.is_binary(keys.type):
        return keys.view(pa.string())
    return keys if pa.types.is_string(keys.type) else keys.cast(pa.string())


@dataclass
class OutcomeBatch:
    status: Status
    resolved_us: Int64s
    matched: Int64s
    missing: MissingKeys
    late: Bools
    payload: pa.StructArray | None = None  # None for ORPHANs, which have no operation
    created_us: Int64s | None = None
    reasons: pa.Array | None = None
    codes: pa.Array | None = None
    dated: Bools | None = None  # False: resolved_at and wait_ms are null; None: all are dated
    event: pa.StructArray | None = None  # `EVENT_FIELDS` of ORPHANs
    evidence: dict[str, pa.Array] = field(default_factory=dict)  # columns of events by name; a missing one is null

    def __len__(self) -> int:
        return len(self.matched)

    def to_arrow(self, orphans: bool, evidence: Sequence[pa.Field] = ()) -> pa.RecordBatch:
        """Return the outcomes as rows, with `ORPHAN_FIELDS` or without; ``evidence`` has `evidence_fields`."""
        n, nothing = len(self), pa.nulls(len(self), pa.string())
        undated = None if self.dated is None else ~self.dated
        wait_ms = pa.nulls(n, pa.int64())
        if self.created_us is not None:
            wait_ms = pa.array(elapsed_ms(self.resolved_us, self.created_us), mask=undated)
        columns = [
            *([] if self.payload is None else self.payload.flatten()),
            pa.repeat(STATUSES[self.status], n),
            pa.array(self.resolved_us, mask=undated).cast(OUTCOME_FIELDS[1].type),
            wait_ms,
            pa.array(self.matched),
            self.missing.to_arrow(),
            pa.array(self.late),
            nothing if self.reasons is None else self.reasons,
        ]
        fields = [*([] if self.payload is None else self.payload.type), *OUTCOME_FIELDS, *evidence]
        columns += [self.evidence.get(each.name, pa.nulls(n, each.type)) for each in evidence]
        if orphans:
            columns.append(nothing if self.codes is None else self.codes)
            columns += [nothing] * len(EVENT_FIELDS) if self.event is None else self.event.flatten()
            fields += ORPHAN_FIELDS
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


@dataclass
class Tally:
    """Counts since the shard's first step, of rows received and of each outcome, and the inputs' newest times."""

    received: int = 0
    operations_late: int = 0  # not REJECTED ones, created at or before the watermark at which they arrived
    by_status: list[int] = field(default_factory=lambda: [0] * len(STATUSES))
    events_received: int = 0
    events_rejected: int = 0
    events_late: int = 0
    events_counted: int = 0  # events that counted for an operation, if all others become ORPHAN rows
    rejections: list[int] = field(default_factory=lambda: [0] * len(OperationRejection))
    event_rejections: list[int] = field(default_factory=lambda: [0] * len(EventRejection))
    newest_operation_us: int = MIN_TIME_US  # the latest created time of any operation that is not too far ahead
    newest_event_us: int = MIN_TIME_US  # and of any event; MIN_TIME_US before the first

    def __post_init__(self) -> None:
        """Add counts of reasons that were added after the state was written."""
        self.rejections = self.rejections + [0] * (len(OperationRejection) - len(self.rejections))
        self.event_rejections = self.event_rejections + [0] * (len(EventRejection) - len(self.event_rejections))

    def decided(self) -> int:
        return sum(self.by_status[: Status.ORPHAN])

    @property
    def pending(self) -> int:
        return self.received - self.decided()

    def see(self, operations_us: int, events_us: int) -> None:
        self.newest_operation_us = max(self.newest_operation_us, operations_us)
        self.newest_event_us = max(self.newest_event_us, events_us)

    def conserve(self, pending: int) -> None:
        """Raise BugError unless every operation received has its outcome or is pending."""
        if pending != self.pending:
            raise BugError(
                f"operations do not add up: {self.received} received, {self.decided()} decided, {pending} pending"
            )

    def conserve_events(self, kept: int) -> None:
        """Raise BugError unless every event received counted, became an ORPHAN row or is kept."""
        orphans = self.by_status[Status.ORPHAN]
        if self.events_received != self.events_counted + orphans + kept:
            raise BugError(
                f"events do not add up: {self.events_received} received, {self.events_counted} counted, "
                f"{orphans} orphans, {kept} kept"
            )


def add_counts(counts: list[int], codes: Int64s) -> None:
    counts[:] = (np.array(counts) + np.bincount(codes, minlength=len(counts))).tolist()


class Outcomes:
    def __init__(self, spec: EngineSpec) -> None:
        self.batches: list[OutcomeBatch] = []
        self._orphans, self._evidence = spec.orphans != "none", evidence_fields(spec)
        self.tally = Tally()

    def add(self, batch: OutcomeBatch) -> None:
        self.tally.by_status[batch.status] += len(batch)
        self.batches.append(batch)

    def reject(self, operations: OperationArrivals) -> None:
        """Reject operations that cannot wait. They are not late and have no time of resolution."""
        add_counts(self.tally.rejections, operations.rejection)
        reasons, codes = (
            pa.array(texts).take(pa.array(operations.rejection))
            for texts in zip(*((each.reason, each.name.lower()) for each in OperationRejection), strict=True)
        )
        created_us, undated = operations.created_us, np.zeros(len(operations), bool)
        columns = {"payload": operations.payload, "reasons": reasons, "codes": codes, "dated": undated}
        self.add(unwatched(Status.REJECTED, created_us, created_us=created_us, **columns))

    def refuse_duplicates(self, payload: pa.StructArray, created_us: Int64s, late: Bools) -> None:
        """Make operations DUPLICATEs, resolved at their created time."""
        reasons, codes = (pa.repeat(text, len(created_us)) for text in (DUPLICATE_REASON, DUPLICATE_CODE))
        columns = {"payload": payload, "created_us": created_us, "reasons": reasons, "codes": codes}
        self.add(unwatched(Status.DUPLICATE, created_us, late, **columns))

    def take(self) -> list[pa.RecordBatch]:
        batches, self.batches = self.batches, []
        return [batch.to_arrow(self._orphans, self._evidence) for batch in batches if len(batch)]


def unwatched(status: Status, resolved_us: Int64s, late: Bools | None = None, **columns: Any) -> OutcomeBatch:
    """Return outcomes of operations that no event could complete, or ORPHANs, with more columns of `OutcomeBatch`."""
    n = len(resolved_us)
    late = np.zeros(n, bool) if late is None else late
    return OutcomeBatch(status, resolved_us, np.zeros(n, np.int64), MissingKeys.none(n), late, **columns)
