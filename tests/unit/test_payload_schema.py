"""Columns of the payload: one type under all settings of a session, matched by name, and texts of any bytes."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.spec.arrivals import read_operations
from spark_purgatory.core.state.engine_snapshot import restore, save
from spark_purgatory.core.state.payload import SPARK_TYPE, StoredPayload, check_layout, conform, matched, type_text
from tests.support.payload_states import delivered, spec_of

KOLKATA = pa.timestamp("us", "Asia/Kolkata")
ZONED = pa.timestamp("us", "UTC")
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)

SESSIONS_TYPE = pa.struct(
    [
        pa.field("at", KOLKATA, nullable=False),
        pa.field(
            "lines",
            pa.large_list(pa.field("element", pa.struct([("text", pa.large_string()), ("at", KOLKATA)]))),
        ),
        pa.field("map", pa.map_(pa.large_string(), pa.field("value", KOLKATA, nullable=False))),
        pa.field("empty", pa.struct([])),
        pa.field("voids", pa.list_(pa.field("element", pa.null()))),
        pa.field("bytes", pa.large_binary()),
    ]
)
LINE = pa.struct([("at", ZONED), ("text", pa.string())])
QUERYS_TYPE = pa.struct(
    [
        pa.field("voids", pa.list_(pa.field("element", pa.null()))),
        pa.field("MAP", pa.map_(pa.string(), ZONED)),
        pa.field("lines", pa.list_(pa.field("element", LINE, nullable=False))),
        pa.field("bytes", pa.binary()),
        pa.field("empty", pa.struct([])),
        pa.field("at", ZONED),
    ]
)
"""The same fields in another order, at two depths, one of them in capitals."""


def some_rows(count: int, seed: int = 1) -> list[dict[str, Any] | None]:
    rng = random.Random(seed)

    def line() -> dict[str, Any] | None:
        return {"text": rng.choice([None, "", "ä" * 3]), "at": rng.choice([None, NOON])}

    def row() -> dict[str, Any] | None:
        return {
            "at": NOON + timedelta(seconds=rng.randrange(1000)),
            "lines": rng.choice([None, [line() for _ in range(rng.randrange(4))]]),
            "map": rng.choice([None, [(str(i), NOON) for i in range(rng.randrange(3))]]),
            "empty": rng.choice([None, {}]),
            "voids": [None] * rng.randrange(3),
            "bytes": rng.choice([None, b"", b"\x00\xff"]),
        }

    return [row() if rng.random() > 0.2 else None for _ in range(count)]


def in_order(value: Any) -> Any:
    """A value in which the order and the case of a struct's fields do not show."""
    if isinstance(value, dict):
        return {name.lower(): in_order(value[name]) for name in sorted(value, key=str.lower)}
    return [in_order(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("start", "count"), [(0, 60), (3, 40), (8, 17), (59, 1), (5, 0)])
def test_a_column_conforms_to_another_type_of_the_same_values(start: int, count: int) -> None:
    column = pa.array(some_rows(60), SESSIONS_TYPE).slice(start, count)
    conformed = conform(column, QUERYS_TYPE)
    conformed.validate(full=True)
    assert conformed.type.equals(QUERYS_TYPE, check_metadata=True)
    assert in_order(conformed.to_pylist()) == in_order(column.to_pylist())
    assert conform(conformed, QUERYS_TYPE) is conformed


def test_types_are_told_in_sparks_words() -> None:
    told = type_text(pa.field("x", SESSIONS_TYPE))
    assert told == (
        "struct<at:timestamp,lines:array<struct<text:string,at:timestamp>>,map:map<string,timestamp>,"
        "empty:struct<>,voids:array<void>,bytes:binary>"
    )
    noted = pa.field("x", pa.time64("ns"), metadata={SPARK_TYPE: b"time(0)"})
    variant = pa.struct([("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={b"variant": b"true"})])
    assert [type_text(field) for field in (noted, pa.field("v", variant), pa.field("n", pa.timestamp("us")))] == [
        "time(0)",
        "variant",
        "timestamp_ntz",
    ]


@pytest.mark.parametrize(
    ("held", "wanted", "case_sensitive", "order", "gone"),
    [
        ("a b c", "a b c", False, [0, 1, 2], []),
        ("a b c", "c a b", False, [2, 0, 1], []),
        ("a b", "b c", False, [1, -1], [0]),
        ("Amount b", "b amount", False, [1, 0], []),
        ("Amount b", "b amount", True, [1, -1], [0]),
        ("a A", "A a", False, [1, 0], []),
        ("a A", "A a", True, [1, 0], []),
        ("a A", "a", False, [0], [1]),
        # Which of the two is meant, nobody can tell.
        ("a", "aA AA", False, [-1, -1], [0]),
        ("aA AA", "aa", False, [-1], [0, 1]),
        ("aa", "aA AA", False, [-1, -1], [0]),
    ],
)
def test_names_are_matched_exactly_and_then_but_for_their_case_where_no_other_can_be_meant(
    held: str, wanted: str, case_sensitive: bool, order: list[int], gone: list[int]
) -> None:
    assert matched(held.split(), wanted.split(), case_sensitive) == (order, gone)


AMOUNT = pa.field("amount", pa.decimal128(10, 2))


def held(*fields: pa.Field, rows: int = 2) -> list[pa.RecordBatch]:
    """A chunk of nulls as a checkpoint holds it: columns without names."""
    named = [field.with_name(f"p{i}").with_nullable(True) for i, field in enumerate(fields)]
    return [pa.RecordBatch.from_arrays([pa.nulls(rows, field.type) for field in fields], schema=pa.schema(named))]


def within(path: str, *fields: pa.Field) -> pa.Field:
    """A column ``c`` in which a struct of the fields lies at ``path``."""
    kind = pa.struct(fields)
    shapes = {
        "": kind,
        ".element": pa.list_(pa.field("element", kind)),
        ".key": pa.map_(kind, pa.string()),
        ".value": pa.map_(pa.string(), kind),
        ".s.element": pa.struct([("s", pa.list_(pa.field("element", kind)))]),
    }
    return pa.field("c", shapes[path])


def test_a_null_in_what_the_query_says_is_never_null_is_refused_by_name() -> None:
    never = AMOUNT.with_nullable(False)
    amounts = pa.StructArray.from_arrays(
        [pa.array([Decimal("1.25"), None], AMOUNT.type)], fields=[AMOUNT.with_name("p0")]
    )
    assert StoredPayload(amounts.slice(0, 1), ["amount"], pa.schema([never])).differences() == []
    [said] = StoredPayload(amounts, ["amount"], pa.schema([never])).differences()
    assert said.startswith("column 'amount' is null in operations of the checkpoint and never null in the query: coal")
    for path, value in ((".element", [{"n": None}]), (".value", [("k", {"n": None})]), ("", {"n": None})):
        # A wider type beside it: a column that changes is looked into as well.
        for wider in (pa.int32(), pa.int64()):
            then, now = (
                within(path, pa.field("n", kind, nullable)) for kind, nullable in ((pa.int32(), True), (wider, False))
            )
            held = pa.StructArray.from_arrays([pa.array([None, value], then.type)], fields=[then.with_name("p0")])
            assert StoredPayload(held.slice(0, 1), ["c"], pa.schema([now])).differences() == [], (
                "no null struct has fields"
            )
            [said] = StoredPayload(held, ["c"], pa.schema([now])).differences()
            assert f"'c{path}.n' is null in operations of the checkpoint" in said


TEXTS = pa.array([b"\xff\xfe", b"A", b"\x80"], pa.binary()).view(pa.string())
ENDS = pa.array([0, 1, 1, 3], pa.int32())


def nested() -> dict[str, pa.Array]:
    struct = pa.StructArray.from_arrays([TEXTS, TEXTS], ["a", "b"])
    keys = pa.array(["k", "l", "m"])
    return {
        "text": TEXTS,
        "list": pa.ListArray.from_arrays(ENDS, TEXTS),
        "struct": struct,
        "list of structs": pa.ListArray.from_arrays(ENDS, struct),
        "struct without nulls, in one that may be null": pa.StructArray.from_arrays(
            [
                pa.StructArray.from_arrays(
                    [TEXTS.take(pa.array([0, 1, None]))],
                    fields=[pa.field("b", pa.string(), False)],
                    mask=pa.array([False, False, True]),
                )
            ],
            ["a"],
        ),
        "map": pa.MapArray.from_arrays(ENDS, keys, TEXTS),
    }


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in nested() if "without" not in kind])
def test_an_operation_with_such_a_text_waits_and_gets_its_outcome(kind: str, final: bool) -> None:
    texts = nested()[kind]
    spec = spec_of(pa.schema([pa.field("payload", texts.type)]), final=final)
    table = delivered([{"id": name, "key": name, "payload": None} for name in "abc"], spec)
    table = table.set_column(table.schema.get_field_index("p0"), "p0", texts)
    engine = EventTimePurgatory(spec)
    assert engine.step(read_operations(table, spec), None, 0) == []
    [outcomes] = restore(spec, save(engine, 1), 1).step(None, None, 30)
    assert outcomes["status"].to_pylist() == ["EXPIRED"] * 3
    assert outcomes["p0"].equals(texts)


@pytest.mark.parametrize("kind", nested())
def test_such_texts_are_checked_as_bytes(kind: str) -> None:
    check_layout(pa.record_batch({"column": nested()[kind]}))
