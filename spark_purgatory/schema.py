"""Names that users meet: the outcome's columns, and the counters that every micro-batch reports."""

from __future__ import annotations

from spark_purgatory.core.engine.outcomes import ORPHAN_FIELDS, OUTCOME_FIELDS
from spark_purgatory.core.spec.codes import EventRejection, OperationRejection

OUTCOME_COLUMNS = tuple(field.name for field in OUTCOME_FIELDS)
"""Added to the operation's own columns, in this order."""

EVIDENCE_COLUMNS = ("event", "events")
"""Added behind these where outcomes carry events: the deciding one, and all that counted."""

ORPHAN_COLUMNS = tuple(field.name for field in ORPHAN_FIELDS)
"""Added behind these where ORPHAN rows are asked for."""
REJECTIONS = tuple(each.name.lower() for each in OperationRejection if each)
"""Why operations are REJECTED, as counters name it."""
EVENT_REJECTIONS = tuple(each.name.lower() for each in EventRejection if each)
"""Why events are rejected, as counters name it.

Two are also counted of events that are not rejected: ``foreign_key`` always, and ``bad_value`` with ``by_row``.
"""
COUNTERS = (
    "received",
    "completed",
    "expired",
    "failed",
    "cancelled",
    "duplicate",
    "rejected",
    "events_received",
    "events_rejected",
    "events_late",
    "operations_late",
    "pending_change",
    "state_bytes_written",
)
"""What a micro-batch added, in the query's ``observedMetrics``: 0 where it touched no shard.

The first seven count operations, received and decided. ``pending_change`` is received - decided: below 0 where more
were decided than came. ``state_bytes_written``: bytes of the shards that the micro-batch touched, and so wrote anew.
`spark_purgatory.gauges` gives how many operations wait in all, and in how many bytes.
"""
REJECTION_COUNTERS = (
    *(f"rejected_{reason}" for reason in REJECTIONS),
    *(f"events_rejected_{reason}" for reason in EVENT_REJECTIONS),
)
"""``rejected`` and ``events_rejected`` by reason. In ``observedMetrics`` they are one map, ``rejections``, of those
above 0: each column there costs every micro-batch a millisecond, and these are seldom anything else than 0.
"""
