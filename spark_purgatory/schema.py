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
    "pending",
    "state_bytes",
)
"""Reported with every group call: the first ten as what the call added, the last two as they stand after it."""
