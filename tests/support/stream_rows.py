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


def operations_with(**changes: Any) -> Operations:
    """Operations whose columns have the names of their arguments."""
    end = {} if "timeout" in changes else {"deadline": "deadline"}
    names = {"id": "id", "keys": "key", "created": "created", "watermark": "0 seconds"}
    return Operations(**{**names, **end, **changes})


def completions_with(**changes: Any) -> Completions:
    """Completions whose columns have the names of their arguments."""
    return Completions(**{"key": "key", "time": "time", "watermark": "0 seconds", **changes})


def purgatory(**changes: Any) -> Purgatory:
    made = Purgatory(
        operations=operations_with(),
        completions=completions_with(value="value"),
        criterion=criteria.any_key(),
        shards=3,
    )
    return replace(made, **changes)
