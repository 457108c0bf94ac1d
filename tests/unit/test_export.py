"""Tables of an export that somebody edited, without Spark: what no engine holds is refused, and what was not edited is
not. That tables of random worlds have no fault is asserted in each move of `tests/law/test_moves.py`.

`python -m tests.unit.test_export` writes the golden export anew; do so only for a format that was not released.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from spark_purgatory.core.export.checked import TableRules, conserved, told
from spark_purgatory.core.export.taken_apart import events_tables, ids_table, operations_table
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.criteria import ByRow
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.blob import read_blob
from spark_purgatory.core.state.step_log import ShardState
from spark_purgatory.spark.move import survey
from tests.support.engine_driver import Shards
from tests.support.moves import moved, numbered

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "export_v1.jsonl"
MAX_US, MIN_US = 2**63 - 1, -(2**63)
CANARY = "canary"
Edit = Callable[[pa.Table], pa.Table]


def op(id: str, keys: str = "a", created: int = 10_000, deadline: int = 20_000, **others: Any) -> dict[str, Any]:
    return {"id": f"{CANARY}-{id}", "keys": list(keys), "created": created, "deadline": deadline, "row": None, **others}


def ev(key: str | None = "a", time: int = 15_000, **others: Any) -> dict[str, Any]:
    return {"key": key, "time": time, "value": 1.0, **others}


FINAL = EngineSpec(criteria.count(3), final=True, operation_ids=True, event_ids=True, orphans="all")
EARLY = EngineSpec(criteria.sum_at_least(9), operation_ids=True)
BY_ROW = EngineSpec(ByRow("rule", "need", "levels"), operation_ids=True)
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
    "early": (EARLY, True, [op("o1", "ab"), op("o2", "cd")], [ev(), ev("c"), ev("d", value=None), ev(None, **NAMED)]),
    "by row": (BY_ROW, True, RULED, [ev()]),
    "by row, units": (UNITS, True, RULED, [ev()]),
}


def exported(stream: str) -> tuple[TableRules, dict[str, pa.Table]]:
    """The rules of a stream's query, and the tables of what waits in it."""
    spec, several, operations, events = STREAMS[stream]
    shards = Shards(spec, 1, several)
    shards.step(operations, events, 0)
    shards.step([], [], 12)
    engine = shards.engine(0)
    kept = pa.concat_tables(events_tables(engine), promote_options="permissive")
    for name in ("operation_id", "key"):
        kept = kept.set_column(kept.column_names.index(name), name, kept[name].cast(pa.string()))
    tables = {"operations": operations_table(engine, ["id", "row"]), "events": kept, "ids": ids_table(engine)}
    rules = TableRules(shards.spec, one_key=not several, roles={"id": "id"})
    return rules, {name: numbered(table) for name, table in tables.items() if table is not None}


def put(column: str, value: Any, **where: Any) -> Edit:
    """An edit: the first row, or the first with these values, has another value in a column."""

    def edit(table: pa.Table) -> pa.Table:
        rows = table.to_pylist()
        row = next(row for row in rows if all(row[name] == wanted for name, wanted in where.items()))
        row[column] = value(row) if callable(value) else value
        return pa.Table.from_pylist(rows, schema=table.schema)

    return edit


def twice(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table, table])


def numbered_anew(table: pa.Table) -> pa.Table:
    """The rows twice, each with a number of its own."""
    return numbered(twice(table.drop_columns(["row"])))


def test_tables_that_nobody_edited_have_no_fault() -> None:
    for stream in STREAMS:
        rules, tables = exported(stream)
        for name, table in tables.items():
            assert not rules.faults(name, table), (stream, name)
            assert not rules.faults(name, table.slice(0, 0)), "no rows"
    assert {"log", "control", "unmatched", "ended", "past"} == set(
        exported("final")[1]["events"]["kept_as"].to_pylist()
    )


OPERATIONS: list[tuple[str, Edit, str, str]] = [
    ("final", twice, "row", "have the number of another row: write each row once"),
    ("final", put("row", None), "row", "have null"),
    ("early", numbered_anew, "id", "would be DUPLICATEs of operations that wait"),
    ("final", put("id", None), "id", "have null"),
    ("final", put("id", "another"), "id", "have another value than the operation's own column 'id'"),
    ("final", put("operation", None), "operation", "have null"),
    ("final", put("keys", None), "keys", "have no watch key"),
    ("early", put("keys", []), "keys", "have no watch key"),
    ("early", put("keys", ["a", None]), "keys", "have a key that is null"),
    ("early", put("keys", ["a", "b", "a"]), "keys", "have a key twice"),
    ("final", put("keys", ["a", "b"]), "keys", "have several watch keys in a query of one"),
    ("final", put("created_us", None), "created_us", "have null"),
    ("final", put("created_us", MIN_US, undecided=False), "created_us", "have the first or last microsecond"),
    ("final", put("deadline_us", None), "deadline_us", "have null"),
    ("early", put("deadline_us", 9_999), "deadline_us", "have a deadline before created_us"),
    ("early", put("from_us", 9_999), "from_us", "have a time before created_us less the lookback"),
    ("early", put("late", None), "late", "have null"),
    ("early", put("undecided", None), "undecided", "have null"),
    ("early", put("undecided", True), "undecided", "have true, which needs emit='final'"),
    ("early", put("id_until_us", None), "id_until_us", "have null and are decided"),
    ("early", put("id_until_us", 19_999), "id_until_us", "have a time before deadline_us"),
    ("final", put("id_until_us", 99_999, undecided=True), "id_until_us", "have a time and are undecided"),
    ("by row", put("rule", "some_keys"), "rule", "have none of any_key, all_keys"),
    ("by row", put("rule", None), "rule", "have none of any_key, all_keys"),
    ("by row", put("need", 1.5, rule="count"), "need", "have no whole number from 1"),
    ("by row", put("need", None, rule="count"), "need", "have no whole number from 1"),
    ("by row", put("sum_need", f"{CANARY}", rule="sum_at_least"), "sum_need", "have no number"),
    ("by row", put("sum_need", "-1", rule="sum_at_least"), "sum_need", "have no number from 0"),
    ("by row, units", put("sum_need", "0.125", rule="sum_at_least"), "sum_need", "have no number"),
    ("by row, units", put("sum_need", "1" + 36 * "0", rule="sum_at_least"), "sum_need", "have no number"),
    ("by row, units", put("sum_need", None, rule="sum_at_least"), "sum_need", "have no number from 0"),
    ("by row", put("level_needs", ["1", "2"], rule="level"), "level_needs", "have another length than keys"),
    ("by row", put("level_needs", None, rule="level"), "level_needs", "have another length than keys"),
    ("by row", put("level_needs", [None], rule="level"), "level_needs", "have no number for a key"),
    ("by row", put("level_needs", [" 1"], rule="any_key"), "level_needs", "have no number"),
]
EVENTS: list[tuple[str, Edit, str, str]] = [
    ("final", twice, "row", "have the number of another row"),
    ("final", put("kept_as", "held"), "kept_as", "have none of log, control, unmatched, ended, past"),
    ("final", put("kept_as", None), "kept_as", "have none of log, control, unmatched, ended, past"),
    ("final", put("kept_as", "control", kept_as="log"), "kept_as", "have 'control' for a plain completion"),
    ("early", put("kept_as", "ended", kept_as="log"), "kept_as", "have what the query does not keep"),
    ("final", put("kind", "finish"), "kind", "have none of complete, fail, cancel, force, extend"),
    ("final", put("kind", None), "kind", "have none of complete, fail, cancel, force, extend"),
    ("final", put("kind", "fail", kept_as="log"), "kind", "have a kind that is not kept so"),
    ("final", put("kind", "fail", kept_as="past"), "kind", "have a kind that is not kept so"),
    ("final", put("is_named", None), "is_named", "have null"),
    ("final", put("is_named", True, kept_as="log"), "is_named", "have true where events name no operation"),
    ("final", put("operation_id", None, is_named=True), "operation_id", "have another one than is_named says"),
    ("final", put("operation_id", "x", is_named=False), "operation_id", "have another one than is_named says"),
    ("final", put("key", None, kept_as="log"), "key", "have null"),
    ("final", put("time_us", None, kept_as="log"), "time_us", "have null"),
    ("final", put("time_us", MAX_US, kept_as="log"), "time_us", "have the first or last microsecond"),
    ("final", put("number", None, kind="extend", kept_as="control"), "number", "have null"),
    ("final", put("number", -1, kind="extend", kept_as="control"), "number", "have a negative one"),
    ("final", put("number", None, kept_as="unmatched"), "number", "have null"),
    ("final", put("number", 32, kept_as="unmatched"), "number", "have one that is no sum of marks"),
    ("final", put("number", None, kept_as="ended"), "number", "have null"),
    ("final", put("number", lambda row: row["time_us"] - 1, kept_as="past"), "number", "have an end before time_us"),
    ("early", put("value", -0.5, kept_as="log"), "value", "have a negative one"),
    ("early", put("value", float("nan"), kept_as="log"), "value", "have NaN, where an export has null"),
    ("by row", put("value", float("nan"), kept_as="log"), "value", "have NaN, where an export has null"),
]
IDS: list[tuple[str, Edit, str, str]] = [
    ("final", twice, "row", "have the number of another row"),
    ("final", put("id", None), "id", "have null"),
    ("final", put("until_us", None), "until_us", "have null"),
]


@pytest.mark.parametrize(
    ("name", "stream", "edit", "column", "what"),
    [
        *(("operations", *case) for case in OPERATIONS),
        *(("events", *case) for case in EVENTS),
        *(("ids", *case) for case in IDS),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_an_edit_that_no_engine_holds_is_told_with_its_column(
    name: str, stream: str, edit: Edit, column: str, what: str
) -> None:
    rules, tables = exported(stream)
    edited = edit(tables[name])
    faults = rules.faults(name, edited)
    alike = [fault for fault in faults if fault.column == column and fault.what.startswith(what.partition(":")[0])]
    fault = min(alike, key=lambda fault: len(fault.what))
    assert fault.rows == (len(tables[name]) if len(edited) > len(tables[name]) else 1)
    text = next(text for text in told(name, faults) if f"{column!r}: {fault.rows} rows {what}" in text)
    assert text.startswith(f"table {name!r}, column {column!r}: {fault.rows} rows have") or "DUPLICATE" in text
    assert CANARY not in "".join(told(name, faults)), "an error names no value of a row"


@pytest.mark.parametrize(
    ("rows", "removed", "said"),
    [
        (10, 0, None),
        (6, 4, None),
        (20, 0, "10 rows are more than the 10 that were exported: keep only those"),
        (20, 10, "10 rows are more than the 10"),
        (
            6,
            0,
            r"4 rows of the 10 that were exported are missing, and 0 were said to be removed: .*\{'operations': 4\}",
        ),
        (6, 5, "4 rows of the 10 that were exported are missing, and 5 were said to be removed"),
        (10, 1, "0 rows of the 10 that were exported are missing, and 1 were said to be removed"),
    ],
)
def test_rows_are_conserved_but_for_those_that_were_said_to_be_removed(
    rows: int, removed: int, said: str | None
) -> None:
    texts = told("operations", conserved("operations", rows, 10, removed))
    if said is None:
        assert not texts
    else:
        [text] = texts
        assert re.search(said, text), text


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("controlled", [False, True])
def test_an_id_that_only_the_seen_ids_have_travels_with_its_operation(several: bool, controlled: bool) -> None:
    spec = EngineSpec(criteria.count(2), control_events=controlled)
    shards = Shards(spec, 2, several)
    shards.step([op("o1")], [], 0)
    after = moved(shards, spec, 3)
    [outcome] = after.step([op("o1", created=15_000, deadline=30_000)], [], 5)
    assert outcome["status"] == "DUPLICATE"


def golden_lines() -> list[str]:
    """The recipe: the tables of two queries that have every column, a row of a table on each line."""
    lines = []
    for stream in ("final", "by row, units"):
        for name, table in exported(stream)[1].items():
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
    told_of = [survey.ShardFacts(**each) for blob in blobs for each in survey._facts(None, ShardState(blob))]
    assert survey.Survey(cast("Any", None), told_of).watermark_ms == 9


def test_tables_are_written_as_the_golden_export_has_them() -> None:
    assert golden_lines() == GOLDEN.read_text(encoding="utf-8").splitlines()


def test_a_state_names_its_logs() -> None:
    spec, several, operations, events = STREAMS["final"]
    shards = Shards(spec, 1, several)
    shards.step(operations, events, 0)
    shards.step([], [], 12)
    logs = read_blob(shards.blobs[0] or b"", 1)[0]["logs"]
    named = {(log["owner"], log["kind"], log["is_named"]) for log in logs}
    assert named >= {("control", "fail", True), ("unmatched", "extend", False), ("ended", "complete", True)}
    assert all(log.keys() == {"owner", "kind", "is_named", "segments", "kept"} for log in logs)


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(golden_lines()) + "\n", encoding="utf-8")
