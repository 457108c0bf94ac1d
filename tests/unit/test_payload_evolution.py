"""A checkpoint under a query with other columns: what becomes of what waits, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.engine_snapshot import differences, restore, save
from spark_purgatory.core.state.payload import StoredPayload, merged, widens
from spark_purgatory.errors import StateMismatchError
from tests.conformance.kafka_purgatory import validate
from tests.support.payload_states import expired, saved, spec_of

STRING, LONG = pa.string(), pa.int64()
KEYED = [("id", STRING), ("key", STRING)]
PLAYED = (("id", "id"), ("keys", "key"))


def spec(*columns: Any, **others: Any) -> EngineSpec:
    """A spec of operations with an id, a key and these columns."""
    return spec_of(pa.schema([*KEYED, *columns]), *PLAYED, **others)


def rows(**values: list[Any]) -> list[dict[str, Any]]:
    """Operations with these values, a list for each column."""
    count = len(next(iter(values.values())))
    return [
        {"id": f"o{i}", "key": f"k{i}", **{name: column[i] for name, column in values.items()}} for i in range(count)
    ]


def after(then: EngineSpec, now: EngineSpec, given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What waits under the one spec, as it comes out under the other; written, read and written again on the way."""
    engine = restore(now, saved(then, given), 1)
    validate(engine.purgatory)
    blob = save(engine, 1)
    assert save(restore(now, blob, 1), 1) == blob
    return [{k: v for k, v in row.items() if k not in ("id", "key")} for row in expired(restore(now, blob, 1))]


LAST = {pa.int8(): 2**7 - 1, pa.int16(): 2**15 - 1, pa.int32(): 2**31 - 1, pa.int64(): 2**63 - 1}


def rows_of(values: list[Any]) -> list[dict[str, Any]]:
    return [{"x": value} for value in values]


NUMBERS = [*LAST, pa.float32(), pa.float64(), pa.decimal128(3, 0), pa.decimal128(10, 0), pa.decimal128(20, 0)]
NUMBERS += [pa.decimal128(38, 38), pa.decimal128(12, 2), pa.decimal128(22, 2)]
OTHERS = [
    STRING,
    pa.binary(),
    pa.bool_(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    pa.duration("us"),
]


def test_nothing_else_is_wider() -> None:
    """Of all pairs of these types, by a reference of its own: what the largest and smallest values fit into."""
    digits = {pa.int8(): 10, pa.int16(): 10, pa.int32(): 10, pa.int64(): 20}
    found = {(then, now) for then in NUMBERS + OTHERS for now in NUMBERS + OTHERS if widens(then, now)}
    expected = {(then, now) for at, then in enumerate(LAST) for now in list(LAST)[at + 1 :]}
    expected |= {(then, pa.float64()) for then in [*list(LAST)[:3], pa.float32()]}
    decimals = [kind for kind in NUMBERS if pa.types.is_decimal(kind)]
    expected |= {(n, d) for n in LAST for d in decimals if d.precision - d.scale >= digits[n]}
    expected |= {
        (a, b)
        for a in decimals
        for b in decimals
        if a != b and b.scale >= a.scale and b.precision - b.scale >= a.precision - a.scale
    }
    assert found == expected
    for then, now in [(a, b) for a in NUMBERS + OTHERS for b in NUMBERS + OTHERS if a != b and (a, b) not in found]:
        held = pa.StructArray.from_arrays([pa.nulls(1, then)], names=["p0"])
        payload = StoredPayload(held, ["x"], pa.schema([("x", now)]))
        [said] = payload.differences()
        assert said.startswith("column 'x' is ") and "which does not hold every value of it: cast it to" in said


CITIES = rows(city=["a", None, "c"], n=[1, 2, 3])
CITY, TOWN, N = ("city", STRING), ("town", STRING), ("n", LONG)


def test_a_new_column_that_is_never_null_is_refused_with_the_remedy() -> None:
    never = pa.field("flag", pa.bool_(), nullable=False)
    said = r"column 'flag' is not in the checkpoint and never .* when\(lit\(True\), value\) in .* fill it after resolve"
    with pytest.raises(StateMismatchError, match=said):
        restore(spec(CITY, N, never), saved(spec(CITY, N), CITIES), 1)
    assert restore(spec(CITY, N, never), saved(spec(CITY, N), []), 1).pending == 0, (
        "where nothing waits nothing is null"
    )


RENAMED = (
    r"'city' is in the checkpoint .* 'town' of the same type .*select it as 'city' .*"
    r"Operations\(removed_columns=\['city'\]"
)


@pytest.mark.parametrize("kind", [STRING, pa.large_string()])
def test_a_column_less_and_one_more_of_its_type_may_be_a_rename_and_are_refused(kind: pa.DataType) -> None:
    now = spec(("town", kind), N)
    with pytest.raises(StateMismatchError, match=RENAMED):
        restore(now, saved(spec(CITY, N), CITIES), 1)
    for dropped in ("city", "CITY"):
        given_up = replace(now, removed_columns=(dropped,))
        assert after(spec(CITY, N), given_up, CITIES) == [{"town": None, "n": r["n"]} for r in CITIES]
    with pytest.raises(StateMismatchError, match=RENAMED):
        restore(replace(now, removed_columns=("CITY",), case_sensitive=True), saved(spec(CITY, N), CITIES), 1)


def test_a_field_that_may_be_renamed_is_given_up_by_its_path() -> None:
    then, now = (spec(("x", pa.list_(pa.struct([(name, STRING), N])))) for name in ("city", "town"))
    given = rows(x=[[{"city": "a", "n": 1}], None])
    with pytest.raises(StateMismatchError, match=r"removed_columns=\['x.element.city'\]"):
        restore(now, saved(then, given), 1)
    come_out = after(then, replace(now, removed_columns=("x.element.city",)), given)
    assert come_out == rows_of([[{"town": None, "n": 1}], None])


def test_every_difference_is_listed_with_its_way_out() -> None:
    then = spec(CITY, N, ("d", pa.float64()), ("s", pa.struct([CITY])))
    now = spec(
        TOWN, ("n", pa.int32()), ("d", LONG), ("s", pa.struct([TOWN])), pa.field("flag", pa.bool_(), nullable=False),
        final=True, lookback_us=7, criterion=criteria.any_key(),
    )  # fmt: skip
    given = rows(city=["a"], n=[1], d=[0.5], s=[{"city": "b"}])
    found = differences(now, saved(then, given), 4)
    assert [text.split(" is ")[0].split(":")[0] for text in found] == [
        "shards",
        "criterion",
        "criterion (need)",
        "emit",
        "lookback",
        "column 'n'",
        "column 'd'",
        "column 's.city'",
        "column 'city'",
        "column 'flag'",
    ]
    assert all(
        any(
            way in text
            for way in ("set shards=1", "set it back to", "cast it to", "removed_columns=[", "which may be null")
        )
        for text in found
    )
    with pytest.raises(StateMismatchError) as raised:
        restore(now, saved(then, given), 1)
    assert str(raised.value) == "; ".join([*found[1:], "or start over: a new checkpoint and a new table"])


def keyed(kind: pa.DataType, name: str = "number", **others: Any) -> EngineSpec:
    """Operations whose id is a column of another type than string: the engine keeps its text beside it."""
    text = "bigint" if pa.types.is_integer(kind) else f"decimal(38,{kind.scale})"
    columns = pa.schema([("id", STRING), ("key", STRING), (name, kind)])
    sources = (("operations.id", (name,)), ("operations.keys", ("key",)))
    given = {"sources": sources, "texts": (("operations.id", text), ("operations.keys", "string")), **others}
    return spec_of(columns, ("keys", "key"), **given)


def test_a_column_that_operations_names_cannot_be_dropped_or_be_another() -> None:
    blob = saved(keyed(pa.int32()), rows(number=[1, 2]))
    said = "operations.id: the checkpoint takes it from column 'number', the query from "
    other = differences(replace(keyed(pa.int32(), "other"), removed_columns=("number",)), blob, 1)
    assert other[0] == f"{said}column 'other': set it back"
    assert other[1].startswith("column 'other' is operations.id and is not in the checkpoint: take operations.id from")
    by_expression = keyed(pa.int32(), "other", sources=(("operations.keys", ("key",)),), removed_columns=("number",))
    assert differences(by_expression, blob, 1) == [f"{said}an expression or a column of another type: set it back"]
    same_by_expression = keyed(pa.int32(), sources=())
    assert differences(same_by_expression, blob, 1) == []
    assert differences(keyed(pa.int32(), "NUMBER"), blob, 1) == []
    assert len(differences(keyed(pa.int32(), "NUMBER", case_sensitive=True), blob, 1)) == 3
    nothing_waits = saved(keyed(pa.int32()), [])
    assert differences(keyed(pa.int32(), "other"), nothing_waits, 1) == []
    [text] = differences(keyed(pa.decimal128(10, 2)), nothing_waits, 1)
    assert text.startswith("operations.id: the checkpoint keeps it as the text of bigint"), "ids are kept longer"


LEAVES: list[tuple[pa.DataType, Callable[[random.Random], Any]]] = [
    (pa.int8(), lambda rng: rng.randrange(-128, 128)),
    (pa.int16(), lambda rng: rng.randrange(-(2**15), 2**15)),
    (pa.int32(), lambda rng: rng.randrange(-(2**31), 2**31)),
    (LONG, lambda rng: rng.randrange(-(2**63), 2**63)),
    (pa.float32(), lambda rng: rng.randrange(-1000, 1000) / 8),
    (pa.decimal128(9, 2), lambda rng: Decimal(rng.randrange(-(10**9) + 1, 10**9)) / 100),
    (pa.date32(), lambda rng: date.fromordinal(rng.randrange(1, 3_652_059))),
    (STRING, lambda rng: rng.choice(["", "ä", "abc"])),
    (pa.bool_(), lambda rng: rng.random() < 0.5),
]
WIDE: dict[pa.DataType, list[tuple[pa.DataType, Callable[[Any], Any]]]] = {
    pa.int8(): [(pa.int16(), int), (LONG, int), (pa.float64(), float), (pa.decimal128(12, 1), Decimal)],
    pa.int16(): [(pa.int32(), int), (LONG, int), (pa.decimal128(10, 0), Decimal)],
    pa.int32(): [(LONG, int), (pa.float64(), float)],
    LONG: [(pa.decimal128(20, 0), Decimal)],
    pa.float32(): [(pa.float64(), float)],
    pa.decimal128(9, 2): [(pa.decimal128(12, 4), Decimal)],
}
Evolve = Callable[[Any], Any]


def a_type(rng: random.Random, depth: int) -> tuple[pa.DataType, Callable[[], Any]]:
    """A random type, and a source of its values."""
    shape = rng.choice(["leaf"] * 4 + ["struct", "list", "map"]) if depth else "leaf"
    if shape == "leaf":
        kind, value = rng.choice(LEAVES)
        make: Callable[[], Any] = lambda: value(rng)  # noqa: E731
    elif shape == "struct":
        parts = {f"f{i}": a_type(rng, depth - 1) for i in range(rng.randrange(1, 4))}
        kind = pa.struct([(name, part) for name, (part, _) in parts.items()])
        make = lambda: {name: value() for name, (_, value) in parts.items()}  # noqa: E731
    elif shape == "list":
        inner, inner_value = a_type(rng, depth - 1)
        kind = pa.list_(inner)
        make = lambda: [inner_value() for _ in range(rng.randrange(3))]  # noqa: E731
    else:
        inner, inner_value = a_type(rng, depth - 1)
        kind = pa.map_(STRING, inner)
        make = lambda: [(str(i), inner_value()) for i in range(rng.randrange(3))]  # noqa: E731
    return kind, lambda: None if rng.random() < 0.2 else make()


def nullable(evolve: Evolve) -> Evolve:
    return lambda value: None if value is None else evolve(value)


def wider(rng: random.Random, kind: pa.DataType) -> tuple[pa.DataType, Evolve]:
    """A type that the type may become, and what becomes of a value."""
    if pa.types.is_struct(kind):
        fields, evolve_fields = grown(rng, list(kind))
        return pa.struct(fields), nullable(evolve_fields)
    if pa.types.is_map(kind):
        inner, evolve = wider(rng, kind.item_type)
        return pa.map_(STRING, inner), nullable(lambda value: [(k, evolve(v)) for k, v in value])
    if pa.types.is_list(kind):
        inner, evolve = wider(rng, kind.value_type)
        return pa.list_(inner), nullable(lambda value: [evolve(each) for each in value])
    if kind in WIDE and rng.random() < 0.5:
        other, cast = rng.choice(WIDE[kind])
        return other, nullable(cast)
    return kind, lambda value: value


def grown(rng: random.Random, fields: list[pa.Field]) -> tuple[list[pa.Field], Evolve]:
    """Fields that these may become: wider, in another order, and some added or some dropped."""
    pairs = [(field, wider(rng, field.type)) for field in fields]
    if rng.random() < 0.5:
        pairs = [pair for pair in pairs if rng.random() < 0.7]
        added = []
    else:
        added = [pa.field(f"g{rng.randrange(10**9)}", a_type(rng, 1)[0]) for _ in range(rng.randrange(3))]
    kept = {field.name: evolve for field, (_, evolve) in pairs}
    after_all = [pa.field(field.name, kind) for field, (kind, _) in pairs] + added
    rng.shuffle(after_all)

    def evolve_fields(row: dict[str, Any]) -> dict[str, Any]:
        return {each.name: kept[each.name](row[each.name]) if each.name in kept else None for each in after_all}

    return after_all, evolve_fields


@pytest.mark.parametrize("seed", range(150))
def test_random_columns_evolve_twice_as_a_reference_says(seed: int) -> None:
    rng = random.Random(seed)
    parts = {f"c{i}": a_type(rng, 2) for i in range(rng.randrange(1, 5))}
    first = [pa.field(name, kind) for name, (kind, _) in parts.items()]
    given = [{"id": f"o{i}", "key": "k", **{name: value() for name, (_, value) in parts.items()}} for i in range(12)]
    second, to_second = grown(rng, first)
    third, to_third = grown(rng, second)
    specs = [spec(*fields) for fields in (first, second, third)]
    blob = saved(specs[0], given)
    through = blob
    for each in specs[1:]:
        through = save(restore(each, through, 1), 1)
        assert save(restore(each, through, 1), 1) == through
    expected = [{"id": row["id"], "key": "k", **to_third(to_second(row))} for row in given]
    expected.sort(key=lambda row: row["id"])
    assert expired(restore(specs[2], through, 1)) == expected, f"seed {seed}"
    payload = restore(specs[1], blob, 1).rows.payload.take()
    assert payload.type.field("p0").type == STRING
    payload.validate(full=True)


def test_columns_of_several_shards_are_merged_into_the_widest() -> None:
    """Whatever the order in which the shards come, as far as types are concerned."""
    for seed in range(100):
        rng = random.Random(seed)
        first = [pa.field(f"c{i}", a_type(rng, 2)[0]) for i in range(3)]
        second = [pa.field(each.name, wider(random.Random(seed), each.type)[0]) for each in first]
        one, other = merged([first, second]), merged([second, first])
        for whole_of in (one, other):
            assert merged([whole_of, first]) == merged([whole_of, second]) == whole_of
            held = pa.StructArray.from_arrays([pa.nulls(1, each.type) for each in first], names=list("abc"))
            payload = StoredPayload(held, [each.name for each in first], pa.schema(whole_of))
            assert payload.differences() == [], f"seed {seed}"
    with_nulls, without = pa.field("n", pa.int32()), pa.field("n", LONG, nullable=False)
    for fields in ([with_nulls, without], [without, with_nulls]):
        [column] = merged([[pa.field("x", pa.struct([each]))] for each in fields])
        assert column.type == pa.struct([("n", LONG)]), "where it is null in one shard, it may be null"
    with pytest.raises(StateMismatchError, match=r"'x.n' is string in some shards and int in others. It was dropped"):
        merged([[pa.field("x", pa.struct([("n", kind)]))] for kind in (STRING, pa.int32())])
