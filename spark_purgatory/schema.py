"""Names of the outcome's columns, and of the counters that every micro-batch reports."""

from __future__ import annotations

from collections.abc import Mapping

from spark_purgatory.core.engine.outcomes import ORPHAN_FIELDS, OUTCOME_FIELDS
from spark_purgatory.core.spec.codes import STATUSES, EventRejection, OperationRejection, Status

OUTCOME_COLUMNS = tuple(field.name for field in OUTCOME_FIELDS)
"""Columns after the operation's own, in this order."""
EVIDENCE_COLUMNS = ("event", "events")
"""Columns after these if outcomes carry events: the deciding event, and all that counted."""
ORPHAN_COLUMNS = tuple(field.name for field in ORPHAN_FIELDS)
"""Columns after these with ORPHAN rows."""
REJECTIONS = tuple(each.name.lower() for each in OperationRejection if each)
"""Reasons of REJECTED operations in the names of counters."""
EVENT_REJECTIONS = tuple(each.name.lower() for each in EventRejection if each)
"""Reasons of rejected events in the names of counters.

Two also count events that are not rejected: ``foreign_key`` always, and ``bad_value`` with ``by_row``.
"""
DECIDED = tuple(name.lower() for name in STATUSES[: Status.ORPHAN])
"""Statuses of operations in the names of counters."""
COUNTERS = (
    "received",
    *DECIDED,
    "events_received",
    "events_rejected",
    "events_late",
    "operations_late",
    "pending_change",
    "state_bytes_written",
)
"""Counts of a micro-batch in the query's ``observedMetrics``; 0 if it called no shard.

The first seven count operations, received and decided. ``pending_change`` is received - decided, below 0 if more were
decided than came. ``state_bytes_written`` are the bytes of the shards that the micro-batch called, and so wrote again.
`spark_purgatory.gauges` has the number of all waiting operations, and their bytes.
"""
REJECTION_COUNTERS = (
    *(f"rejected_{reason}" for reason in REJECTIONS),
    *(f"events_rejected_{reason}" for reason in EVENT_REJECTIONS),
)
"""Counts of ``rejected`` and ``events_rejected`` by reason. In ``observedMetrics`` those above 0 are one map,
``rejections``, because each column there costs every micro-batch a millisecond.
"""


def rejected_text(rejected: int, received: int, rejections: Mapping[str, int]) -> str:
    """Say how many events were rejected and why; ``rejections`` has the names of `REJECTION_COUNTERS`."""
    # An event of a foreign key is counted, and nothing rejects it.
    reasons = {each.reason: rejections.get(f"events_rejected_{each.name.lower()}", 0) for each in EventRejection}
    del reasons[EventRejection.FOREIGN_KEY.reason]
    why = [f"{reason}: {n:,}" for reason, n in sorted(reasons.items(), key=lambda each: -each[1]) if n]
    return f"{rejected:,} of {received:,} events were rejected and complete nothing ({'; '.join(why)})"
