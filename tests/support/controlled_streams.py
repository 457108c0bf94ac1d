"""Streams of rules by row and control events, as files hold them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import sleep
from typing import Any

from pyspark.sql import SparkSession

from spark_purgatory import Completions, Operations, Purgatory, criteria
from spark_purgatory.core.spec.engine_spec import Orphans
from tests.support.streams import Landing

CLOSING_US = 10_000_000_000
CLOSING = {"id": "closing", "keys": ["closing"], "created": CLOSING_US, "deadline": CLOSING_US + 1, "rule": "any_key"}


def controlled(several: bool, scope: str | None, orphans: Orphans) -> Purgatory:
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


IDLE_AFTER = timedelta(minutes=1)
IDLE = Purgatory(
    operations=Operations(
        id="id", keys="key", created="created", deadline="deadline", idle_after=IDLE_AFTER, watermark="0 seconds"
    ),
    completions=Completions(key="key", time="time", idle_after=IDLE_AFTER, watermark="0 seconds"),
    criterion=criteria.any_key(),
    shards=2,
)
SILENCE_SECONDS = 2


def let_a_silence_pass(spark: SparkSession, folder: Path) -> None:
    """Two runs of availableNow, the second with nothing to read: time has gone on in both, to a minute ago."""
    began = datetime.now(UTC) - IDLE_AFTER
    deadlines = {f"o{second}": began + timedelta(seconds=second) for second in range(-5, 300)}
    landing, created = Landing(folder), began - timedelta(minutes=1)
    operations = [
        {"id": name, "keys": [name], "created": created, "deadline": deadline, "row": name}
        for name, deadline in deadlines.items()
    ]
    landing.add(operations, [{"key": "other", "time": created}])
    expired: set[str] = set()
    for run in range(2):
        starts = datetime.now(UTC)
        rows = landing.run(spark, IDLE)
        ends = datetime.now(UTC)
        before, expired = expired, {row["id"] for row in rows}
        assert len(rows) == len(expired) and {row["status"] for row in rows} == {"EXPIRED"}
        assert expired >= {name for name, deadline in deadlines.items() if deadline <= starts - IDLE_AFTER}, run
        assert expired <= {name for name, deadline in deadlines.items() if deadline <= ends - IDLE_AFTER}, run
        sleep(SILENCE_SECONDS)
    assert expired > before, "the second run had nothing to read, and time went on"
