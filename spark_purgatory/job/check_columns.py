"""What a job's file says of its columns, checked without Spark: their names, their types, and what a table can take.

The columns of an input are known where its schema is in the file (files and Kafka), and where each expression of
``select`` is a column or ends in ``as name``. Where they are not known, Spark checks them when the job starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec

from spark_purgatory.config import Completions, Operations, PurgatoryOptions
from spark_purgatory.config.declared import ColumnLike, Columns, Names, TimeOut, near, options_of
from spark_purgatory.config.units import is_duration
from spark_purgatory.core.spec.criteria import ByRow, Criterion
from spark_purgatory.job.config_file import JobConfigError, Problem
from spark_purgatory.job.job_config import InputSection, JobConfig
from spark_purgatory.job.source_config import KAFKA_COLUMNS, DeltaSource, KafkaSource
from spark_purgatory.schema import EVIDENCE_COLUMNS, ORPHAN_COLUMNS, OUTCOME_COLUMNS

TYPES = frozenset(
    "array bigint binary boolean byte char character date dec decimal double float geography geometry int integer "
    "interval long map numeric real short smallint string struct time timestamp timestamp_ltz timestamp_ntz tinyint "
    "varchar variant void".split()
)
"""The names with which a type begins in Spark's DDL."""
TIMES = frozenset({"date", "timestamp", "timestamp_ltz", "timestamp_ntz"})
"""Types of columns that hold a time."""
TEXTS = frozenset({"string", "varchar", "char", "character"})
NO_KEYS = frozenset("array double float geography geometry interval map real struct time variant void".split())
"""Types whose values have no text of their own."""
COLUMN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s:`]+))\s*:?\s*([A-Za-z_]+)?")
PLAIN = re.compile(r"\s*(?:[A-Za-z_]\w*\.)*(?:`([^`]+)`|([A-Za-z_]\w*))\s*$")
ALIAS = re.compile(r"\bas\s+(?:`([^`]+)`|([A-Za-z_]\w*))\s*$", re.IGNORECASE)
NEEDED_MODULES = {"prometheus_port": ("prometheus_client", "metrics"), "opentelemetry": ("opentelemetry", "otel")}
"""Fields of ``metrics``: the module that each needs, and the extra that brings it."""


def check_job(config: JobConfig, origin: str) -> None:
    """Raise JobConfigError with all that is wrong with a file's columns, and with what this machine lacks for it."""
    options = config.options()
    problems = [*_column_problems(config, options), *_table_problems(config, options)]
    for field, (module, extra) in NEEDED_MODULES.items():
        if getattr(config.metrics, field, None) and find_spec(module) is None:
            allowed = f"needs a package: pip install 'spark-purgatory[{extra}]'"
            problems.append(Problem(f"metrics.{field}", "", allowed))
    if problems:
        raise JobConfigError(origin, problems, config.lines)


def _table_problems(config: JobConfig, options: PurgatoryOptions) -> Iterator[Problem]:
    if config.output.topic is not None:
        return
    operations = options.operations
    column, exclude = operations.timeout_column, operations.names_of("exclude")
    if isinstance(column, str) and operations.timeout_unit is None and column.lower() not in map(str.lower, exclude):
        allowed = (
            "without a timeout_unit, a column of intervals, which a Delta table cannot take: for whole numbers add "
            f"timeout_unit, such as 'minutes'; for intervals add exclude: [{column}]"
        )
        yield Problem("operations.timeout", repr(column), allowed)
    known = selected(config.operations, source_columns(config.operations))
    if known:
        added = (*OUTCOME_COLUMNS, *EVIDENCE_COLUMNS, *ORPHAN_COLUMNS)
        there = [*(name for name in known if name not in exclude), *(options.prefix + name for name in added)]
        for column in config.output.made().names_of("partition_by"):
            if column.lower() not in map(str.lower, there):
                yield _no_column("output.partition_by", column, there)


def _no_column(field: str, column: str, there: list[str]) -> Problem:
    return Problem(field, repr(column), f"is no column{near(column, there) or '.'} There are {', '.join(there)}")


def source_columns(given: InputSection) -> dict[str, str]:
    """The columns of an input's source, and the first word of the type of each; none where the file has no schema."""
    source = given.source
    return {} if isinstance(source, DeltaSource) or source.schema_ddl is None else ddl_columns(source.schema_ddl)


def _time_problems(side: Operations | Completions, given: InputSection, columns: dict[str, str]) -> Iterator[Problem]:
    """Times that the schema says to be of another type; behind a ``select`` of its own, Spark knows the types."""
    kinds = columns if given.select == ["*"] else {}
    for field in ("created", "deadline") if isinstance(side, Operations) else ("time",):
        column = getattr(side, field)
        kind = kinds.get(str(column), "").lower()
        if kind in TYPES - TIMES:
            others = [f"{name}, " for name in columns if name != column]
            way = "to_timestamp" if kind in TEXTS else "timestamp_seconds"
            select = "".join([*others, f"{way}({column}) as {column}"])
            allowed = f"is {kind}, not timestamp: correct the schema, or make it one, as select: [{select}]"
            yield Problem(side.section + field, repr(column), allowed)


def _key_problems(
    side: Operations | Completions, given: InputSection, columns: dict[str, str], options: PurgatoryOptions
) -> Iterator[Problem]:
    """Keys and ids of types that have no text for each value; and a quorum of more keys than an operation can have."""
    kinds = {name: kind.lower() for name, kind in columns.items()} if given.select == ["*"] else {}
    fields = ("id", "keys") if isinstance(side, Operations) else ("key", "operation_id", "event_id")
    named = {field: getattr(side, field) for field in fields}
    named = {field: value if isinstance(value, (list, tuple)) else [value] for field, value in named.items()}
    for field, column in [(field, column) for field, columns in named.items() for column in columns]:
        kind = kinds.get(column)
        if kind in NO_KEYS and (field, kind) != ("keys", "array"):
            allowed = f"is {kind}, which cannot be a key: cast it to string, decimal or a whole number, in select"
            yield Problem(side.section + field, repr(column), allowed)
    criterion = options.criterion
    if isinstance(side, Operations) and isinstance(criterion, Criterion) and criterion.rule == "quorum":
        keys = named["keys"]
        is_known = len(keys) > 1 or kinds.get(str(keys[0])) in TYPES - {"array"}
        if is_known and criterion.need > len(keys):
            allowed = f"can never be met: an operation has {len(keys)} key{'s' * (len(keys) > 1)}, by operations.keys"
            yield Problem("purgatory.criterion", f"quorum({criterion.need})", allowed)


def _column_problems(config: JobConfig, options: PurgatoryOptions) -> Iterator[Problem]:
    for given, side in ((config.operations, options.operations), (config.completions, options.completions)):
        field_of_schema = f"{side.section}source.schema"
        columns = source_columns(given)
        for column, kind in columns.items():
            if kind.lower() not in TYPES:
                allowed = f"column {column!r} has no type that Spark knows{near(kind.lower(), TYPES) or '.'}"
                yield Problem(field_of_schema, repr(kind), allowed)
            if isinstance(given.source, KafkaSource) and column.lower() in KAFKA_COLUMNS:
                allowed = "is one of Kafka's own record columns: rename the field"
                yield Problem(field_of_schema, repr(column), allowed)
        known = selected(given, columns)
        for field, column in named(side, options) if known else ():
            if not {column, column.split(".")[0]} & {*known}:
                yield _no_column(field, column, known)
        yield from _time_problems(side, given, columns)
        yield from _key_problems(side, given, columns, options)


def named(side: Operations | Completions, options: PurgatoryOptions) -> Iterator[tuple[str, str]]:
    """The columns that an input must have: the field that names each, and its name."""
    declared: type = type(side)
    for name, option in options_of(declared).items():
        value, is_column = getattr(side, name), option.kind in (ColumnLike, Columns, Names, TimeOut)
        if is_column and name != "removed_columns" and not is_duration(value):
            for each in (value,) if isinstance(value, str) else value or ():
                yield side.section + name, each
    if isinstance(side, Operations) and isinstance(options.criterion, ByRow):
        for name, column in vars(options.criterion).items():
            if isinstance(column, str):
                yield f"purgatory.criterion.by_row.{name}", column
    if isinstance(options.scope, str):
        yield "purgatory.scope", options.scope


def selected(given: InputSection, columns: dict[str, str]) -> list[str]:
    """Names of an input's columns after ``select``; none where they cannot be told."""
    names: list[str] = []
    for expression in given.select:
        if expression.strip() == "*":
            if not columns:
                return []
            names += columns
            continue
        found = ALIAS.search(expression) or PLAIN.match(expression)
        if found is None:
            return []
        names.append(found[1] or found[2])
    return names


def ddl_columns(ddl: str) -> dict[str, str]:
    """The columns of a schema in Spark's DDL, and the first word of the type of each."""
    found = filter(None, map(COLUMN.match, _parts(ddl)))
    return {(column[1] or column[2]).replace("``", "`"): column[3] or "" for column in found}


def _parts(ddl: str) -> Iterator[str]:
    depth, begin, quote = 0, 0, ""
    for i, character in enumerate(ddl):
        if quote:
            quote = "" if character == quote else quote
        elif character in "`'\"":
            quote = character
        elif character in "<(":
            depth += 1
        elif character in ">)":
            depth -= 1
        elif character == "," and depth == 0:
            yield ddl[begin:i]
            begin = i + 1
    if ddl[begin:].strip():
        yield ddl[begin:]
