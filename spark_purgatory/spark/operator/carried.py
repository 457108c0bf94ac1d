"""Columns that the engine carries without reading them: the operations' own, and those of events in outcomes.

A Spark type is allowed if ``mapInArrow`` takes it in and gives it back unchanged.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from spark_purgatory.config import PurgatoryOptions
from spark_purgatory.config.declared import ColumnLike
from spark_purgatory.core.engine.outcomes import ORPHAN_FIELDS, OUTCOME_FIELDS
from spark_purgatory.core.spec.engine_spec import EVENT_KEY_AND_TIME, VALUE, Evidence
from spark_purgatory.core.state.payload import SPARK_TYPE, UTC, merged
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.nested import within

CASTS = {  # The remedy for a type that Spark does not hand over to Python
    T.YearMonthIntervalType: (
        "cast it to string, or send its months, extract(year from c) * 12 + extract(month from c), and convert them "
        "back with make_ym_interval(0, months)"
    ),
    T.CalendarIntervalType: "cast it to string",
    T.CharType: "cast it to string",
    T.VarcharType: "cast it to string",
}
NOTED_TYPES = (T.DayTimeIntervalType, getattr(T, "TimeType", T.DayTimeIntervalType))
"""Types that become one type in Arrow. Spark has TIME since 4.1."""
IN_UTC: Mapping[str, Any] = {"timezone": UTC} if "timezone" in signature(to_arrow_schema).parameters else {}
"""Before Spark 4.2, timestamps are always in UTC."""


def arrow_schema(schema: T.StructType) -> pa.Schema:
    """Return the Arrow schema of rows that go back to Spark."""
    return cast("pa.Schema", to_arrow_schema(schema, **IN_UTC))


def spark_types(fields: Sequence[pa.Field]) -> T.StructType:
    """Return the Spark columns of fields that `columns_of` has noted."""
    found = from_arrow_schema(pa.schema(fields), prefer_timestamp_ntz=True)
    return T.StructType([_typed(field, arrow) for field, arrow in zip(found.fields, fields, strict=True)])


def _typed(field: T.StructField, arrow: pa.Field) -> T.StructField:
    noted = (arrow.metadata or {}).get(SPARK_TYPE)
    return field if noted is None else T.StructField(field.name, T.DataType.fromDDL(noted.decode()), field.nullable)


def schema_text(schema: pa.Schema | None) -> str | None:
    return None if schema is None else schema.serialize().to_pybytes().hex()


def schema_of(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(text)))


def merged_texts(texts: Iterable[str | None]) -> list[pa.Field]:
    """Return columns that can hold the values of each of several schemas (`merged`)."""
    return merged([list(schema_of(text)) for text in dict.fromkeys(texts) if text is not None])


def columns_of(schema: T.StructType, case_sensitive: bool, side: str = "operations") -> pa.Schema:
    """Return an input's columns as they are sent and stored. Raises ConfigError for two columns of one name and for
    types that are not allowed.
    """
    _check(schema, "", case_sensitive, side)
    fields = zip(schema.fields, arrow_schema(with_nullable_voids(schema)), strict=True)
    return pa.schema([_noted(field, spark.dataType) for spark, field in fields])


def _check(kind: T.DataType, path: str, case_sensitive: bool, side: str) -> None:
    """Check a type and all types within it; ``path`` leads there and ends in a full stop."""
    if isinstance(kind, T.UserDefinedType):
        kind = kind.sqlType()
    column = f"{side}: column {path.removesuffix('.')!r} is {kind.simpleString()}"
    if isinstance(kind, T.StructType):
        counts = Counter(name if case_sensitive else name.lower() for name in kind.names)
        twice = [repr(path + name) for name in kind.names if counts[name if case_sensitive else name.lower()] > 1]
        if twice:
            raise ConfigError(f"{side} have columns of one name, {', '.join(twice)}: rename or drop all but one")
    for refused, remedy in CASTS.items():
        if isinstance(kind, refused):
            raise ConfigError(f"{column}, which Spark cannot pass to Python and back: {remedy}")
    if isinstance(kind, T.MapType) and isinstance(kind.keyType, T.NullType):
        raise ConfigError(f"{column}, whose keys have no type: cast it, for example to map<string,string>")
    for name, part in within(kind):
        # A struct may have fields x and X in any session, because fields are sent by position.
        _check(part, f"{path}{name}.", True, side)


def with_nullable_voids(kind: Any) -> Any:
    """Return a type in which void parts may be null, unlike the elements of Spark's ``array()``."""

    def part(of: T.DataType, nullable: bool) -> tuple[T.DataType, bool]:
        return with_nullable_voids(of), nullable or isinstance(of, T.NullType)

    if isinstance(kind, T.StructType):
        fields = kind.fields
        return T.StructType([T.StructField(f.name, *part(f.dataType, f.nullable), f.metadata) for f in fields])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(*part(kind.elementType, kind.containsNull))
    if isinstance(kind, T.MapType):
        return T.MapType(with_nullable_voids(kind.keyType), *part(kind.valueType, kind.valueContainsNull))
    return kind


def _noted(field: pa.Field, kind: T.DataType) -> pa.Field:
    """Return the field at every depth without Spark's comments, but with a note of a type that Arrow lacks."""
    if isinstance(kind, T.UserDefinedType):
        kind = kind.sqlType()
    note = {SPARK_TYPE: kind.simpleString().encode()} if isinstance(kind, NOTED_TYPES) else None
    within = field.type
    if isinstance(kind, T.StructType):
        parts = zip(kind.fields, within, strict=True)
        within = pa.struct([_noted(part, spark.dataType) for spark, part in parts])
    elif isinstance(kind, T.ArrayType):
        within = pa.list_(_noted(within.value_field, kind.elementType))
    elif isinstance(kind, T.MapType):
        within = pa.map_(_noted(within.key_field, kind.keyType), _noted(within.item_field, kind.valueType))
    return pa.field(field.name, within, field.nullable, note)


OUTCOME = from_arrow_schema(pa.schema(OUTCOME_FIELDS))
EVENT_ID = "event_id"  # The field of an event in an outcome, if the query has ids


def carried_columns(options: PurgatoryOptions, names: Sequence[str]) -> dict[str, ColumnLike]:
    """Return the columns that are sent of each event, by their names in the outcome: the value first, then the others.

    ``names`` are the events' columns. Any other name is a path into a struct, and the column gets the field's name.
    """
    if not options.evidence_columns:
        return {}
    config = options.completions
    carried: dict[str, ColumnLike] = {} if config.value is None else {VALUE: config.value}
    fixed = {field.name for field in EVENT_KEY_AND_TIME} | set(carried)
    fixed |= set() if config.event_id is None else {EVENT_ID}
    for given in config.names_of("columns"):
        # The field that a path ends in: "city" of "place.city", "a.b" of "place.`a.b`".
        quoted = re.search(r"\.`((?:[^`]|``)+)`$", given)
        last = quoted[1].replace("``", "`") if quoted else given.rpartition(".")[2]
        name = given if given in names else last
        if name.lower() in fixed | {each.lower() for each in carried}:
            raise ConfigError(
                f"completions.columns={given!r} would give the events of an outcome two fields {name!r}: rename the "
                "column before resolve()"
            )
        carried[name] = given
    return carried


def carried_by(
    options: PurgatoryOptions,
    operations: T.StructType,
    type_of_event: Callable[[ColumnLike, str], T.DataType] | None,
    event_names: Sequence[str],
    case_sensitive: bool,
) -> tuple[pa.Schema, pa.Schema | None, T.StructType]:
    """Return the columns kept of operations and of events (None: outcomes carry no events), and those of outcomes.

    Raises ConfigError if one is not allowed, or is there twice.
    """
    of_operations = columns_of(operations, case_sensitive)
    of_events, added = None, list(OUTCOME.fields)
    if options.evidence_columns and type_of_event is not None:
        kinds = [
            T.StructField(name, type_of_event(column, f"completions.{'value' if name == VALUE else 'columns'}"))
            for name, column in carried_columns(options, event_names).items()
        ]
        of_events = columns_of(T.StructType(kinds), case_sensitive, "completions.columns")
        added += _event_fields(options, kinds)
    fields = operations.fields
    if options.orphans != "none":
        added += from_arrow_schema(pa.schema(ORPHAN_FIELDS)).fields
        fields = [T.StructField(field.name, field.dataType, True, field.metadata) for field in fields]
    taken = {name.lower() for name in operations.names}
    if clash := [name for field in added if (name := options.prefix + field.name).lower() in taken]:
        raise ConfigError(
            f"operations already have a column {', '.join(clash)}, which the outcome adds: "
            "set prefix=, for example 'outcome_'"
        )
    renamed = [T.StructField(options.prefix + field.name, field.dataType) for field in added]
    return of_operations, of_events, with_nullable_voids(T.StructType([*fields, *renamed]))


def _event_fields(options: PurgatoryOptions, carried: list[T.StructField]) -> list[T.StructField]:
    values = int(options.completions.value is not None)
    named = [] if options.completions.event_id is None else [T.StructField(EVENT_ID, T.StringType())]
    first = from_arrow_schema(pa.schema(EVENT_KEY_AND_TIME)).fields
    event = T.StructType([*first, *carried[:values], *named, *carried[values:]])
    kinds: dict[str, T.DataType] = {"event": event, "events": T.ArrayType(event)}
    return [T.StructField(name, kinds[name]) for name in options.evidence_columns]


def evidence_of(options: PurgatoryOptions) -> Evidence | None:
    if not options.evidence_columns:
        return None
    has_value, lists_all = options.completions.value is not None, options.evidence == "all"
    return Evidence(has_value, lists_all, options.max_evidence)
