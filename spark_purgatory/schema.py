"""Names that users meet: the outcome's columns, and the counters that every micro-batch reports."""

from __future__ import annotations

OUTCOME_COLUMNS = ("status", "resolved_at", "wait_ms", "matched", "missing_keys", "late", "reason")
"""Added to the operation's own columns, in this order."""

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
