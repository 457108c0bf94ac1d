"""The tables of an export, without Spark. Random worlds are exported and imported by `tests/law/test_moves.py`.

`python -m tests.unit.test_export` writes the golden export anew; do so only for a format that was not released.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.codes import EventKind
from spark_purgatory.core.spec.criteria import ByRow
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.blob import read_blob
from spark_purgatory.core.state.engine_snapshot import restore, save
from spark_purgatory.core.state.export import events_tables, ids_table, most_of_any_shard, operations_table
from spark_purgatory.core.state.step_log import ShardState
from spark_purgatory.spark.move import tables
from tests.support.engine_driver import Shards

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "export_v1.jsonl"
CANARY = "canary"


def op(id: str, keys: str = "a", created: int = 10_000, deadline: int = 20_000, **others: Any) -> dict[str, Any]:
    return {"id": f"{CANARY}-{id}", "keys": list(keys), "created": created, "deadline": deadline, "row": None, **others}


def ev(key: str | None = "a", time: int = 15_000, **others: Any) -> dict[str, Any]:
    return {"key": key, "time": time, "value": 1.0, **others}


FINAL = EngineSpec(criteria.count(3), final=True, operation_ids=True, event_ids=True, orphans="all")
EARLY = EngineSpec(criteria.sum_at_least(9), operation_ids=True)
UNITS = EngineSpec(ByRow("rule", "need", "levels"), operation_ids=True, number="decimal(18,2)")
RULED = [
    op("count", rule="count", need=3),
    op("sum", "b", rule="sum_at_least", need=5),
    op("level", "c", rule="level", need=7),
    op("any", "d", rule="any_key", need=None),
]
NAMED = {"kind": "fail", "operation_id": f"{CANARY}-x"}
STREAMS: dict[str, tuple[EngineSpec, bool, list[Any], list[Any]]] = {
    "final": (
        FINAL,
        False,
        [op("o1"), op("o2", "b"), op("o2", "b", 13_000, 30_000), op("o3", "c", deadline=50_000)],
        [ev(), ev(time=16_000, kind="extend"), ev("z"), ev("b", **NAMED), ev("c", 11_000, kind="force")],
    ),
    "by row, units": (UNITS, True, RULED, [ev()]),
}


def exported(stream: str) -> dict[str, pa.Table]:
    """The tables of what waits in a stream's query."""
    spec, several, operations, events = STREAMS[stream]
    shards = Shards(spec, 1, several)
    shards.step(operations, events, 0)
    shards.step([], [], 12)
    engine = shards.engine(0)
    kept = pa.concat_tables(events_tables(engine), promote_options="permissive")
    for name in ("operation_id", "key"):
        kept = kept.set_column(kept.column_names.index(name), name, kept[name].cast(pa.string()))
    tables = {"operations": operations_table(engine, ["id", "row"]), "events": kept, "ids": ids_table(engine)}
    return {name: table for name, table in tables.items() if table is not None}


def golden_lines() -> list[str]:
    """The recipe: the tables of two queries that have every column, a row of a table on each line."""
    lines = []
    for stream in ("final", "by row, units"):
        for name, table in exported(stream).items():
            types = {field.name: str(field.type) for field in table.schema}
            lines.append(json.dumps({"query": stream, "table": name, "types": types}))
            lines += [json.dumps(row, default=str) for row in table.to_pylist()]
    return lines


def test_the_watermark_of_a_checkpoint_is_that_of_the_shard_that_was_called_last() -> None:
    blobs = []
    for watermark_ms in (3, 9, 5):
        shards = Shards(EARLY)
        shards.step([op("o")], [], watermark_ms)
        blobs += shards.blobs
    told_of = [tables.ShardFacts(**each) for blob in blobs for each in tables._facts(None, ShardState(blob))]
    assert tables.Survey(cast("Any", None), told_of).watermark_ms == 9


def test_tables_are_written_as_the_golden_export_has_them() -> None:
    assert golden_lines() == GOLDEN.read_text(encoding="utf-8").splitlines()


def test_events_that_are_equal_stay_as_many_as_the_shard_with_the_most_has() -> None:
    """Shards of a query with several keys hold the same events."""
    kept = most_of_any_shard(pa.table({"key": [*"aabab"], "time_us": [1, 1, 1, 1, 1]}), np.array([0, 0, 0, 1, 1]))
    assert sorted(kept["key"].to_pylist()) == ["a", "a", "b"]


def test_a_state_names_its_logs() -> None:
    spec, several, operations, events = STREAMS["final"]
    shards = Shards(spec, 1, several)
    shards.step(operations, events, 0)
    shards.step([], [], 12)
    logs = read_blob(shards.blobs[0] or b"")[0]["logs"]
    named = {(log["owner"], log["kind"], log["is_named"]) for log in logs}
    assert named >= {("control", "fail", True), ("unmatched", "extend", False), ("ended", "complete", True)}
    assert all(log.keys() == {"owner", "kind", "is_named", "kept"} for log in logs)
    engine = shards.engine(0)
    engine.events.controls.logs_of(EventKind.FAIL)[0].kept = 7
    [log] = restore(shards.spec, save(engine, 1), 1).events.controls.logs_of(EventKind.FAIL)
    assert log.kept == 7, "by which the next pass over its events is due"


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(golden_lines()) + "\n", encoding="utf-8")
