"""Operations and events as short rows, and an engine that plays them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays.value_column import hash_keys
from spark_purgatory.core.spec.engine_spec import EngineSpec
from tests.support.engine_driver import Shards, microseconds

Row = dict[str, Any]


Batch = tuple[int, list[Row], str]
"""Watermark in ms, rows, what leaves (separated by commas)."""


def op(id: str | None = "o", keys: Sequence[str | None] | None = "a", **others: Any) -> Row:
    return {"id": id, "keys": None if keys is None else list(keys), "created": 10_000, "deadline": 20_000, **others}


def ev(key: str | None = "a", time: int | None = 15_000, **others: Any) -> Row:
    return {"key": key, "time": time, **others}


def written(outcome: Row) -> str:
    resolved_at = outcome["resolved_at"]
    return f"{outcome['id']} {outcome['status']} {'-' if resolved_at is None else microseconds(resolved_at)}"


def send(shards: Shards, batch: Batch) -> list[Row]:
    watermark_ms, rows, _ = batch
    sides = [[row for row in rows if ("id" in row) == is_operation] for is_operation in (True, False)]
    return shards.step(sides[0], sides[1], watermark_ms)


def play(spec: EngineSpec, *batches: Batch, several: bool = False) -> list[Row]:
    """Send micro-batches, restarting between them; an arrow shows the one in which something else leaves."""
    shards, outcomes = Shards(spec, several=several), list[Row]()
    for i, batch in enumerate(batches):
        left = send(shards, batch)
        got, expected = sorted(map(written, left)), sorted(filter(None, batch[2].split(", ")))
        if got != expected:
            shown = "\n".join(f"  {'->' if j == i else '  '} {each}" for j, each in enumerate(batches))
            raise AssertionError(f"\n{shown}\n  expected {expected}\n  got      {got}")
        outcomes += left
    return outcomes


def many_operations(first: int, end: int) -> pa.Table:
    """Operations ``first`` to ``end`` of key `hot`, as the exchange delivers them."""
    n = end - first
    ids = pa.array(np.arange(first, end)).cast(pa.string())
    hot = pa.array(["hot"])
    return pa.table(
        {
            "id": ids,
            "id_hash": hash_keys(pa.array(np.arange(first, end))),
            "keys": pa.repeat(hot[0], n),
            "key_hashes": np.repeat(hash_keys(hot), n),
            "created_us": np.full(n, 10_000),
            "deadline_us": np.full(n, 90_000) + np.arange(n) % 1000,
            "ahead": pa.array(np.zeros(n, bool)),
            "p0": ids,
            "p1": ids,
        }
    )


def told(words: str) -> list[Row]:
    """`complete:a:12 extend:b:13:0.005 cancel:a:14@o`: kind, key, ms, value, and the operation it names."""
    events = []
    for word in words.split():
        word, _, name = word.partition("@")
        kind, key, ms, *value = word.split(":")
        number = float(value[0]) if value else None
        events.append(ev(key, int(ms) * 1000, kind=kind, value=number, operation_id=name or None))
    return events
