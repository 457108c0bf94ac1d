"""Streams of rules by row and control events, as files hold them."""

from __future__ import annotations

from typing import Any

from spark_purgatory import Completions, Operations, Purgatory, criteria
from spark_purgatory.core.spec.engine_spec import Orphans

CLOSING_US = 10_000_000_000
CLOSING = {"id": "closing", "keys": ["closing"], "created": CLOSING_US, "deadline": CLOSING_US + 1, "rule": "any_key"}


def controlled(several: bool, scope: str | None, orphans: Orphans) -> Purgatory:
    """A purgatory that reads all there is."""
    return Purgatory(
        operations=Operations(
            id="id", keys="keys" if several else "key", created="created", deadline="deadline", watermark="0 seconds"
        ),
        completions=Completions(
            key="key",
            time="time",
            value="value",
            kind="kind",
            operation_id="operation_id",
            event_id="event_id",
            watermark="0 seconds",
        ),
        criterion=criteria.by_row(need="need", levels="levels"),
        emit="final",
        shards=3,
        scope=scope,
        orphans=orphans,
    )


def as_file_row(row: dict[str, Any], region: str) -> dict[str, Any]:
    """The row with the columns that the files have; a level that is one number is its need."""
    level = row.get("level")
    by_key = list(level.items()) if isinstance(level, dict) else None
    need = level if isinstance(level, float) else row.get("need")
    return {**row, "region": region, "levels": by_key, "need": need}
