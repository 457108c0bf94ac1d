"""Names that users meet: the outcome's columns, and the counters that every micro-batch reports."""

from __future__ import annotations

OUTCOME_COLUMNS = ("status", "resolved_at", "wait_ms", "matched", "missing_keys", "late", "reason")
"""Added to the operation's own columns, in this order."""

ORPHAN_COLUMNS = ("reason_code", "event_kind", "event_key", "event_operation_id")
"""Added behind these where ORPHAN rows are asked for."""
REJECTIONS = (
    "null_id",
    "no_keys",
    "null_key",
    "null_created",
    "null_deadline",
    "deadline_before_created",
    "created_ahead",
    "unknown_rule",
    "no_need",
    "deadline_overflows",
    "created_at_no_time",
)
"""Why operations are REJECTED, as counters name it."""
EVENT_REJECTIONS = (
    "null_key",
    "null_time",
    "bad_value",
    "time_ahead",
    "unknown_kind",
    "at_no_time",
    "bad_extension",
    "operation_alone",
)
"""Why events are rejected, as counters name it."""
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
