"""The events in outcomes: the columns that are sent for them, and the types of ``event`` and ``events``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from spark_purgatory.config import PurgatoryOptions
from spark_purgatory.config.declared import ColumnLike
from spark_purgatory.core.spec.engine_spec import EVENT_KEY_AND_TIME, VALUE, Evidence
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.operator.payload import columns_of

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


def carried_schema(
    options: PurgatoryOptions,
    names: Sequence[str],
    type_of: Callable[[ColumnLike, str], T.DataType] | None,
    case_sensitive: bool,
) -> tuple[T.StructType | None, pa.Schema | None]:
    """Return the types of `carried_columns`, in Spark and as they are stored; None if outcomes carry no events."""
    if not options.evidence_columns or type_of is None:
        return None, None
    named = carried_columns(options, names)
    arguments = {name: "completions.value" if name == VALUE else "completions.columns" for name in named}
    kinds = [T.StructField(name, type_of(column, arguments[name])) for name, column in named.items()]
    schema = T.StructType(kinds)
    return schema, columns_of(schema, case_sensitive, "completions.columns")


def event_fields(options: PurgatoryOptions, carried: T.StructType) -> list[T.StructField]:
    """Return the outcome's columns that carry events."""
    values = int(options.completions.value is not None)
    named = [] if options.completions.event_id is None else [T.StructField(EVENT_ID, T.StringType())]
    first = from_arrow_schema(pa.schema(EVENT_KEY_AND_TIME)).fields
    event = T.StructType([*first, *carried.fields[:values], *named, *carried.fields[values:]])
    kinds: dict[str, T.DataType] = {"event": event, "events": T.ArrayType(event)}
    return [T.StructField(name, kinds[name]) for name in options.evidence_columns]


def evidence_of(options: PurgatoryOptions) -> Evidence | None:
    """Return how an engine's outcomes carry events; None if they do not."""
    if not options.evidence_columns:
        return None
    has_value, lists_all = options.completions.value is not None, options.evidence == "all"
    return Evidence(has_value, lists_all, options.max_evidence, options.evidence_order == "value")
