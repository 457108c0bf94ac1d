"""Operations, events and a purgatory for tests on streams."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from spark_purgatory import Completions, Operations, Purgatory, criteria

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def operation(name: str, created: float = 0, deadline: float = 30, **more: Any) -> dict[str, Any]:
    return {"id": name, "keys": [name], "created": at(created), "deadline": at(deadline), "row": name, **more}


def event(key: str, time: float, value: float = 1.0) -> dict[str, Any]:
    return {"key": key, "time": at(time), "value": value}


def purgatory(**changes: Any) -> Purgatory:
    made = Purgatory(
        operations=Operations(id="id", keys="key", created="created", deadline="deadline", watermark="0 seconds"),
        completions=Completions(key="key", time="time", value="value", watermark="0 seconds"),
        criterion=criteria.any_key(),
        shards=3,
    )
    return replace(made, **changes)
