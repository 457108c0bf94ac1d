"""The readers of an export that somebody edited: its tables and its manifest.

Spark has checked the types of columns by then. So what is not a table of these types is skipped, as if it was refused.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pyarrow as pa

from spark_purgatory.core.arrays.times import END_OF_TIME_MS
from spark_purgatory.core.export.checked import TableRules, told
from spark_purgatory.core.export.put_together import Dealt, put_together
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.criteria import ByRow
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.engine_snapshot import save
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.move.tables import manifest_in
from tests.fuzz.fuzzer import Reader
from tests.support import moves
from tests.support.engine_driver import Shards

WATERMARK_MS = 12


def _operation(number: int, keys: str, **others: Any) -> dict[str, Any]:
    times = {"created": 10_000, "deadline": 20_000 + 7_000 * number}
    return {"id": f"o{number}", "keys": list(keys), **times, "row": None, **others}


def _event(key: str, **others: Any) -> dict[str, Any]:
    return {"key": key, "time": 15_000, "value": 1.0, **others}


FINAL = EngineSpec(criteria.count(3), final=True, operation_ids=True, event_ids=True, orphans="all")
BY_ROW = EngineSpec(ByRow("rule", "need", "levels"), operation_ids=True)
NAMED = {"kind": "fail", "operation_id": "x"}
STREAMS: dict[str, tuple[Shards, list[Any], list[Any]]] = {
    "final": (
        Shards(FINAL),
        [_operation(1, "a"), _operation(2, "b"), _operation(2, "b", created=13_000), _operation(5, "c")],
        [_event("a"), _event("a", kind="extend"), _event("z"), _event("b", **NAMED), _event("c", kind="force")],
    ),
    "by row": (
        Shards(BY_ROW, several=True),
        [
            _operation(1, "ab", rule="count", need=3),
            _operation(2, "b", rule="sum_at_least", need=5),
            _operation(3, "cd", rule="level", need=7),
        ],
        [_event("a"), _event("c"), _event("d", value=None), _event("b", **NAMED)],
    ),
}


@cache
def _exported(stream: str) -> tuple[Shards, dict[str, pa.Table]]:
    """A stream's shard, and the tables of what waits in it."""
    shards, operations, events = STREAMS[stream]
    shards.step(operations, events, 0)
    shards.step([], [], WATERMARK_MS)
    engine = shards.engine(0)
    kept = pa.concat_tables(moves.events_tables(engine), promote_options="permissive")
    waits = moves.operations_table(engine, ["id", "row"])
    assert waits is not None
    tables = {"operations": waits, "events": kept, "ids": moves.ids_table(engine)}
    return shards, {name: moves.numbered(moves._texts(table)) for name, table in tables.items()}


def _edited(data: bytes) -> tuple[Shards, dict[str, pa.Table]]:
    """The tables of a stream with edits: table, row and column by number, and the value that is put there."""
    stream, edits = json.loads(data)
    shards, exported = _exported(sorted(STREAMS)[stream % len(STREAMS)])
    rows = {name: table.to_pylist() for name, table in exported.items()}
    for table, row, column, value in edits:
        name = sorted(rows)[table % len(rows)]
        names = exported[name].column_names
        rows[name][row % len(rows[name])][names[column % len(names)]] = value
    return shards, {name: pa.Table.from_pylist(rows[name], schema=table.schema) for name, table in exported.items()}


def _read_tables(data: bytes) -> None:
    """Edited tables either have a fault that is named, or lead to an engine that decides everything."""
    try:
        shards, tables = _edited(data)
    except (ArithmeticError, ValueError, LookupError, TypeError, RecursionError, pa.ArrowException) as error:
        raise ConfigError("no tables of these types") from error
    rules = TableRules(shards.spec, one_key=not shards.several, roles={"id": "id"})
    if faults := [text for name, table in tables.items() for text in told(name, rules.faults(name, table))]:
        raise ConfigError("; ".join(faults))
    rows = {name: table.drop_columns(["row"]) for name, table in tables.items()}
    dealt = Dealt(
        moves._operations(rows["operations"], shards) if len(rows["operations"]) else None,
        moves._events(rows["events"], shards) if len(rows["events"]) else None,
        moves._ids(rows["ids"], shards),
    )
    engine = put_together(shards.spec, dealt, WATERMARK_MS)
    engine.outcomes.tally.conserve(engine.pending)
    save(engine, 1)
    for watermark_ms in (WATERMARK_MS + 5, END_OF_TIME_MS):
        engine.step(None, None, watermark_ms)
    assert not engine.pending


def _seeds() -> list[bytes]:
    """For each stream and table edits that put into every column what a row has there."""
    found = []
    for stream, name in enumerate(sorted(STREAMS)):
        exported = _exported(name)[1]
        for number, table in enumerate(exported[each] for each in sorted(exported)):
            for row, held in enumerate(table.to_pylist()[:3]):
                found.append([stream, [[number, row, column, value] for column, value in enumerate(held.values())]])
    return [json.dumps(each).encode() for each in found]


def _manifest() -> bytes:
    counts = {"operations": 3, "events": 5, "ids": 1}
    manifest = {"query_id": "q", "batch_id": 7, "watermark_ms": 5, "shards": 2, "host": "h", "history": {}}
    return json.dumps({**manifest, "queries": [], "rows": counts}).encode()


def export_readers() -> list[Reader]:
    """Those of the tables and of the manifest."""
    return [
        Reader("tables of an export", _read_tables, _seeds()),
        Reader(
            "manifest of an export",
            lambda data: manifest_in(data.decode("utf-8", "replace"), "table 'counts'"),
            [_manifest()],
        ),
    ]
