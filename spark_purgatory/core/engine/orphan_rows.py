"""ORPHAN rows: null in the operation's columns, with the event in the reason.

The texts of a completion on key a and of a cancel that names operation o::

    cancel on key a for operation o found no operation pending          orphans="control"
    complete on key a counted for no operation: late                    orphans="all", and the other `REASONS`
    complete on key null counted for no operation: rejected, the key is null
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_purgatory.core.arrays.times import MIN_TIME_US
from spark_purgatory.core.engine.outcomes import EVENT_FIELDS, OutcomeBatch, structs_of, unwatched, without_prefix
from spark_purgatory.core.events.control_log import LogKey, split_pairs
from spark_purgatory.core.events.event_log import EventSegment
from spark_purgatory.core.spec.arrivals import EventArrivals
from spark_purgatory.core.spec.codes import KINDS, EventMark, EventRejection, Status
from spark_purgatory.core.spec.engine_spec import EngineSpec

REASONS = (  # Reasons why an event counted for no operation. The first mark that an event has gives its reason
    (EventMark.LATE, "late"),
    (EventMark.ENDED, "already ended"),
    (EventMark.NOT_TAKEN, "not taken"),
    (EventMark.PAST, "past deadline"),
)
NO_OPERATION = "no such operation"  # the reason of an event without these marks
NOT_PENDING = "not_pending"  # the code of every reason if events have no marks


def rows_of(key: LogKey, segment: EventSegment, spec: EngineSpec) -> OutcomeBatch:
    """Return the rows of the events of one log."""
    ids, keys = split_pairs(segment.group_keys) if key.is_named else (None, segment.group_keys)
    of_event = pa.array(segment.group)
    # Keys and ids are written once for each key.
    of_key = _event(pa.repeat(KINDS[key.kind], len(keys)), keys, ids, spec)
    event, texts = of_key.take(of_event), _texts(of_key).take(of_event)
    carried = _carried(event, pa.array(segment.time_us), segment, spec)
    if spec.orphans != "all":
        reasons = pc.binary_join_element_wise(texts, "found no operation pending", " ")
        return unwatched(
            Status.ORPHAN, segment.time_us, reasons=reasons, codes=pa.repeat(NOT_PENDING, len(event)), **carried
        )
    assert segment.value is not None, "bug: an event without marks"
    marks = segment.value
    why = np.select([marks & mark > 0 for mark, _ in REASONS], list(range(len(REASONS))), len(REASONS))
    reasons = pa.array([*(reason for _, reason in REASONS), NO_OPERATION])
    codes = pc.replace_substring(reasons, " ", "_").take(pa.array(why))
    reasons = _with_reason(texts, reasons.take(pa.array(why)))
    late = (marks & EventMark.LATE) > 0
    return unwatched(Status.ORPHAN, segment.time_us, late, reasons=reasons, codes=codes, **carried)


def rows_of_rejected(events: EventArrivals, watermark_us: int, spec: EngineSpec) -> OutcomeBatch:
    """Return the rows of rejected events."""
    codes = np.zeros(len(events), np.int64) if events.kind is None else events.kind
    kinds = pa.array([*KINDS, None]).take(pa.array(np.where(codes < 0, len(KINDS), codes)))
    event, faults = _event(kinds, events.keys, events.operation_ids, spec), pa.array(events.rejection)
    reasons = pa.array([f"rejected, {rejection.reason}" for rejection in EventRejection]).take(faults)
    names = pa.array([rejection.name.lower() for rejection in EventRejection]).take(faults)
    dated = events.time_us != MIN_TIME_US
    late = (events.time_us <= watermark_us) & dated
    carried = _carried(event, pa.array(events.time_us, mask=~dated), events, spec)
    reasons = _with_reason(_texts(event), reasons)
    return unwatched(Status.ORPHAN, events.time_us, late, reasons=reasons, codes=names, dated=dated, **carried)


def _carried(
    event: pa.StructArray, times_us: pa.Array, events: EventSegment | EventArrivals, spec: EngineSpec
) -> dict[str, Any]:
    """Return the columns that ORPHANs have of their events; ``event`` has `EVENT_FIELDS`."""
    if spec.evidence is None:
        return {"event": event}
    structs = structs_of(event.field("event_key"), times_us, events.event_ids, events.columns, spec)
    return {"event": event, "evidence": {"event": structs}}


def _with_reason(texts: pa.Array, reasons: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(texts, reasons, " counted for no operation: ")


def _event(kinds: pa.Array, keys: pa.Array, ids: pa.Array | None, spec: EngineSpec) -> pa.StructArray:
    """Return kind, key and operation of events, (n,), without the partition's value before keys and ids."""
    named = pa.nulls(len(keys), pa.string()) if ids is None else shown(ids, spec.id_prefix)
    return pa.StructArray.from_arrays([kinds, shown(keys, spec.key_prefix), named], fields=list(EVENT_FIELDS))


def _texts(event: pa.StructArray) -> pa.Array:
    """Return texts of the kind, key and operation of events, (n,); a null key is written as null."""
    kinds, keys, ids = event.flatten()
    texts = pc.binary_join_element_wise(kinds.fill_null("event"), keys.fill_null("null"), " on key ")
    return pc.coalesce(pc.binary_join_element_wise(texts, ids, " for operation "), texts)


def shown(values: pa.Array, prefix: int) -> pa.Array:
    """Return keys or ids as users know them, without the value of their partition."""
    values = without_prefix(values, prefix)
    if pa.types.is_string(values.type):
        return values
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode("utf-8", "backslashreplace") for value in values.to_pylist()]
        return pa.array(texts, pa.string())
