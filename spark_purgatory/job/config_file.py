"""Reads a job's YAML file, and finds all that is wrong with it, without Spark.

YAML -> ``--set`` -> ``${VARIABLE}`` -> the models of `spark_purgatory.job.job_config`, and checks of columns and
places. One `JobConfigError` lists all that the last three find. Values of options and of Spark settings may be secret
and appear in no message.

The columns of an input are known where its schema is in the file (files and Kafka), and where each expression of
``select`` is a column or ends in ``as name``. Spark checks the rest when the job starts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, combinations, product
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from rich.console import Console

from spark_purgatory.config import Completions, Operations
from spark_purgatory.config.declared import ColumnLike, Columns, Names, TimeOut, near, options_of
from spark_purgatory.config.options import TWICE
from spark_purgatory.config.places import ENCODED, Place
from spark_purgatory.config.units import is_duration, reads_like_a_duration
from spark_purgatory.core.spec.criteria import ByRow
from spark_purgatory.errors import ConfigError, without_login
from spark_purgatory.job.config_types import FREE_FORM, SECRET, Model, Problem
from spark_purgatory.job.job_config import (
    TOPIC_FIELDS,
    CriterionSection,
    InputSection,
    JobConfig,
    letters_checkpoint,
)
from spark_purgatory.job.source_config import KAFKA_COLUMNS, DeltaSource, KafkaSource
from spark_purgatory.schema import EVIDENCE_COLUMNS, ORPHAN_COLUMNS, OUTCOME_COLUMNS
from spark_purgatory.terminal import say, terminal

INPUTS = {"operations": Operations, "completions": Completions}
NO_TIMES = frozenset("string varchar char bigint long int integer smallint tinyint double float decimal".split())
# Types whose values have no unique text
NO_KEYS = frozenset("array double float geography geometry interval map real struct time variant void".split())
COLUMN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s:`]+))\s*:?\s*([A-Za-z_]+)?")
PLAIN = re.compile(r"\s*(?:[A-Za-z_]\w*\.)*(?:`([^`]+)`|([A-Za-z_]\w*))\s*$")
ALIAS = re.compile(r"\bas\s+(?:`([^`]+)`|([A-Za-z_]\w*))\s*$", re.IGNORECASE)


def file_problems(document: Mapping[str, Any]) -> Iterator[Problem]:
    """Find what is wrong with a file's columns and places, also next to fields that the models refuse."""
    rules, output = _section(document, "purgatory"), _section(document, "output")
    criterion = None
    with suppress(ValidationError):
        criterion = CriterionSection.model_validate(rules.get("criterion")).made()
    for name, declared in INPUTS.items():
        given = _section(document, name)
        with suppress(ValidationError):
            fields = {each: given[each] for each in InputSection.model_fields if each in given}
            shape = InputSection.model_validate(fields)
            yield from _column_problems(name, declared, given, shape, rules | {"criterion": criterion})
            if name == "operations":
                yield from _partition_problems(given, shape, rules, output)
    yield from _place_problems(document)


def _section(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    given = document.get(name)
    return given if isinstance(given, dict) else {}


def _texts(value: object) -> list[str]:
    several = value if isinstance(value, list) else [value]
    return [each for each in several if isinstance(each, str) and each]


def _partition_problems(
    given: dict[str, Any], shape: InputSection, rules: dict[str, Any], output: dict[str, Any]
) -> Iterator[Problem]:
    if known := selected(shape):
        exclude, prefix = _texts(given.get("exclude")), "".join(_texts(rules.get("prefix")))
        added = (*OUTCOME_COLUMNS, *EVIDENCE_COLUMNS, *ORPHAN_COLUMNS)
        columns = [*(name for name in known if name not in exclude), *(prefix + name for name in added)]
        for column in _texts(output.get("partition_by")):
            if column.lower() not in map(str.lower, columns):
                yield _no_column("output.partition_by", column, columns)


def _no_column(field: str, column: str, columns: list[str]) -> Problem:
    return Problem(field, repr(column), f"is not a column{near(column, columns) or '.'} There are {', '.join(columns)}")


def source_columns(given: InputSection) -> dict[str, str]:
    """Return the columns of an input's source, with the first word of each type; none where the file has no schema."""
    source = given.source
    return {} if isinstance(source, DeltaSource) or source.schema_ddl is None else ddl_columns(source.schema_ddl)


def _type_problems(name: str, given: dict[str, Any], kinds: Mapping[str, str]) -> Iterator[Problem]:
    for field in ("created", "deadline", "time"):
        for column in _texts(given.get(field)):
            if (kind := kinds.get(column, "")) in NO_TIMES:
                others = [f"{other}, " for other in kinds if other != column]
                way = "to_timestamp" if kind in ("string", "varchar", "char") else "timestamp_seconds"
                select = "".join([*others, f"{way}({column}) as {column}"])
                allowed = f"is {kind}, not timestamp: correct the schema, or write {name}.select: [{select}]"
                yield Problem(f"{name}.{field}", repr(column), allowed)
    for field in ("id", "keys", "key", "operation_id", "event_id"):
        for column in _texts(given.get(field)):
            kind = kinds.get(column, "")
            if kind in NO_KEYS and (field, kind) != ("keys", "array"):
                allowed = f"is {kind}, which cannot be a key: cast it to string, decimal or bigint in {name}.select"
                yield Problem(f"{name}.{field}", repr(column), allowed)


def _column_problems(
    name: str, declared: type, given: dict[str, Any], shape: InputSection, rules: dict[str, Any]
) -> Iterator[Problem]:
    for column in source_columns(shape) if isinstance(shape.source, KafkaSource) else ():
        if column.lower() in KAFKA_COLUMNS:
            allowed = "is one of Kafka's own record columns: rename the field"
            yield Problem(f"{name}.source.schema", repr(column), allowed)
    known = selected(shape)
    for field, column in _named(name, declared, given, rules) if known else ():
        if not {column, column.split(".")[0]} & {*known}:
            yield _no_column(field, column, known)
    if shape.select == ["*"]:  # Behind a ``select`` of its own, Spark knows the types.
        yield from _type_problems(name, given, source_columns(shape))


def _named(name: str, declared: type, given: dict[str, Any], rules: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for option_name, option in options_of(declared).items():
        if option.kind in (ColumnLike, Columns, Names, TimeOut) and option_name != "removed_columns":
            for column in _texts(given.get(option_name)):
                if option.kind != TimeOut or not (is_duration(column) or reads_like_a_duration(column)):
                    yield f"{name}.{option_name}", column
    if name == "operations" and isinstance(rules["criterion"], ByRow):
        for part, column in vars(rules["criterion"]).items():
            if isinstance(column, str):
                yield f"purgatory.criterion.by_row.{part}", column
    for column in _texts(rules.get("scope")):
        yield "purgatory.scope", column


def _place_problems(document: Mapping[str, Any]) -> Iterator[Problem]:
    output, letters, checkpoint = _section(document, "output"), document.get("dead_letters"), document.get("checkpoint")
    if isinstance(checkpoint, str) and (found := ENCODED.findall(checkpoint)):
        allowed = (
            f"has {', '.join(map(repr, dict.fromkeys(found)))}, and Spark finds no state at such a path: the job could "
            "not compare its state before it starts, nor add up its operations at its end. Name a path without"
        )
        yield Problem("checkpoint", "", allowed)
    default = letters_checkpoint(checkpoint) if isinstance(checkpoint, str) else None
    parts = {f"{name}.source": _section(_section(document, name), "source") for name in INPUTS}
    read = {f"{part}.{kind}": given.get(kind) for part, given in parts.items() for kind in ("path", "table")}
    written = {"checkpoint": checkpoint, "output.path": output.get("path"), "output.table": output.get("table")}
    if isinstance(letters, dict):
        written |= {f"dead_letters.{kind}": letters.get(kind) for kind in ("path", "table")}
        written["dead_letters.checkpoint"] = letters.get("checkpoint") or default
    pairs = chain(combinations(written.items(), 2), product(read.items(), written.items()))
    for (one, first), (other, second) in pairs:
        if isinstance(first, str) and isinstance(second, str) and _is_same(one, first, other, second):
            yield Problem("", "", f"{one} {first!r} and {other} {second!r} are one place: each needs its own")


def _is_same(one: str, first: str, other: str, second: str) -> bool:
    """Return True if two fields name one folder or one table."""
    if one.endswith(".table") and other.endswith(".table"):
        return first.replace("`", "").lower() == second.replace("`", "").lower()
    return not (one + other).count(".table") and Place.local(first).same_as(Place.local(second))


def selected(given: InputSection) -> list[str]:
    """Names of an input's columns after ``select``; none where the file does not show them."""
    names: list[str] = []
    for expression in given.select:
        found = ALIAS.search(expression) or PLAIN.match(expression)
        named = source_columns(given) if expression.strip() == "*" else [found[1] or found[2]] if found else []
        if not named:
            return []
        names += named
    return names


def ddl_columns(ddl: str) -> dict[str, str]:
    """The columns of a schema in Spark's DDL, and the first word of the type of each."""
    found = filter(None, map(COLUMN.match, _parts(ddl)))
    return {(column[1] or column[2]).replace("``", "`"): (column[3] or "").lower() for column in found}


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


# Parts of pydantic's place of an error that are not fields: the key of a mapping, the types of a union
BRANCHES = ("[key]", "bool", "literal['all']")
SOURCE = "must have a format, 'parquet', 'json', 'csv', 'delta' or 'kafka', and the fields that it needs"
INT, TIMESTAMP = "tag:yaml.org,2002:int", "tag:yaml.org,2002:timestamp"
QUOTE_IT = "put a value that begins with *, & or ! in quotes"
FREE_NAME = re.compile(rf"((?:[^.]+\.)*?(?:{'|'.join(FREE_FORM)}))\.(.+)")  # A name with dots in a free mapping
_NAMED = re.compile(r".*(?:alias|anchor|tag|tag handle) ['\"].*")  # Quotes what begins with * & or !, as passwords may
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class JobConfigError(ConfigError):
    def __init__(self, origin: str, problems: Iterable[Problem], lines: Mapping[str, int] | None = None) -> None:
        self.origin = origin
        self.problems = tuple(problems)
        listed = "\n".join(f"  {_line_of(problem, lines or {})}{problem}" for problem in self.problems)
        super().__init__(f"{origin} has {len(self.problems)} problem{'s' * (len(self.problems) > 1)}:\n{listed}")


def _line_of(problem: Problem, lines: Mapping[str, int]) -> str:
    field = problem.field or problem.allowed.split(" ", 1)[0].rstrip(":,")
    while field and field not in lines:
        field = field.rpartition(".")[0]
    return f"line {lines[field]}: " if lines.get(field) else ""


def wrong(field: str, given: str, allowed: str, origin: str = "the job file") -> JobConfigError:
    return JobConfigError(origin, [Problem(field, given, allowed)])


def _given(error: ErrorDetails) -> str:
    """Return the value in the file, or nothing if it is absent, large or may be a secret."""
    is_hidden = isinstance(error["input"], (dict, list, BaseModel, NoneType)) or set(SECRET) & {*map(str, error["loc"])}
    return "" if is_hidden else repr(error["input"])


def _models(kind: Any) -> Iterator[type[Model]]:
    if isinstance(kind, type) and issubclass(kind, Model):
        yield kind
    for part in get_args(kind):
        yield from _models(part)


def _fields(place: tuple[int | str, ...]) -> list[str]:
    """Return the fields of the section at pydantic's place of an error, which also names a source's format."""
    models: list[type[Model]] = [JobConfig]
    for part in place:
        if len(models) == 1:
            kinds = {field.alias or name: field.annotation for name, field in models[0].model_fields.items()}
            models = [*_models(kinds.get(str(part)))]
        else:
            models = [model for model in models if part in get_args(model.model_fields["format"].annotation)]
    return [field.alias or name for model in models for name, field in model.model_fields.items()]


def _problem(error: ErrorDetails) -> Problem:
    context, allowed = error.get("ctx", {}), error["msg"]
    parts = [str(part) for part in error["loc"] if part not in BRANCHES]
    if parts[1:2] == ["source"]:
        del parts[2:3]  # operations.source.parquet.schema: a union's tag is no field
    field = ".".join(parts)
    match error["type"]:
        case "value_error":
            allowed = allowed.removeprefix("Value error, ").removeprefix(f"{field}: ")
            return Problem(field, _given(error), allowed.removeprefix(f"this={error['input']!r} "))
        case "extra_forbidden":
            names = _fields(error["loc"][:-1])
            allowed = f"unknown field{near(parts[-1], names) or '.'} Allowed: {', '.join(names)}"
        case "model_type":
            allowed = f"must have fields: {', '.join(_fields(error['loc']))}"
        case "model_attributes_type" | "union_tag_not_found":
            allowed = SOURCE
        case "literal_error" | "union_tag_invalid":
            names = re.findall("'([^']+)'", context.get("expected") or context["expected_tags"])
            allowed += near(str(context.get("tag", error["input"])), names)
    return Problem(field, "", allowed)


def _problems(errors: Iterable[ErrorDetails]) -> list[Problem]:
    """Return one problem for each field: one sentence has all that the types of a union allow."""
    found: dict[str, Problem] = {}
    for problem in map(_problem, errors):
        other = found.get(problem.field)
        allowed = problem.allowed if other is None else f"{other.allowed}; {problem.allowed}"
        found[problem.field] = Problem(problem.field, problem.given, allowed)
    return list(found.values())


class _Loader(yaml.SafeLoader):
    """YAML in which no name may be given twice, 010 is ten, and 1:30 and 2026-01-31 are text."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [rule for rule in rules if rule[0] not in (INT, TIMESTAMP)]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for name, _ in node.value:
            if not isinstance(name, yaml.ScalarNode):
                problem = "the name of a field must be text: put a value that begins with {{ in quotes"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=name.start_mark)
            if name.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{name.value!r} is given twice", problem_mark=name.start_mark)
            seen.add(name.value)
        return node


_Loader.add_implicit_resolver(INT, re.compile("[-+]?[0-9]+$"), list("-+0123456789"))
_Loader.add_constructor(INT, lambda _, node: int(node.value))


def _lines(node: yaml.Node | None, section: str = "") -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        for name, inner in node.value:
            yield f"{section}{name.value}", name.start_mark.line + 1
            yield from _lines(inner, f"{section}{name.value}.")


def _unshared(value: Any) -> Any:
    """A deep copy without shared mappings or lists, so that a YAML alias can be changed in one place only."""
    if isinstance(value, dict):
        return {name: _unshared(inner) for name, inner in value.items()}
    return [_unshared(inner) for inner in value] if isinstance(value, list) else value


def _parse(text: str, origin: str) -> tuple[Any, dict[str, int]]:
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        lines = dict(_lines(node))
        return None if node is None else _unshared(loader.construct_document(node)), lines
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"
        fault = _NAMED.sub(QUOTE_IT, getattr(error, "problem", None) or str(error).splitlines()[0])
        raise wrong(where, "", f"not YAML: {fault}", origin) from None
    except (ValueError, LookupError, AttributeError, RecursionError):
        raise wrong("the file", "", "a value cannot be read: put it in quotes, if it is a text", origin) from None


def _override(document: dict[str, Any], assignment: str, number: int) -> None:
    """Apply one ``--set operations.timeout=5 minutes``, the ``number``-th, the value read as YAML."""
    field, equals, value = assignment.partition("=")
    origin = f"--set {field}"
    if not equals or not all(field.split(".")):
        raise wrong("", "", f"write it as field.name=value; number {number} is not", "--set")
    free = FREE_NAME.fullmatch(field)
    *parents, last = [*free[1].split("."), free[2]] if free else field.split(".")
    place = document
    for name in parents:
        inner = place.setdefault(name, {})
        if not isinstance(inner, dict):
            raise wrong(name, "", "holds a value, not fields", origin)
        place = inner
    place[last], _ = _parse(value, origin)


def _expand(value: Any, field: str, problems: list[Problem]) -> Any:
    if isinstance(value, dict):
        return {key: _expand(inner, f"{field}.{key}" if field else str(key), problems) for key, inner in value.items()}
    if isinstance(value, list):
        return [_expand(inner, f"{field}.{index}", problems) for index, inner in enumerate(value)]
    if not isinstance(value, str):
        return value
    missing = [name for name in VARIABLE.findall(value) if name not in os.environ]
    problems += [Problem(field, f"${{{name}}}", "set this environment variable") for name in missing]
    return value if missing else VARIABLE.sub(lambda match: os.environ[match[1]], value)


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> JobConfig:
    """Read a job file, apply ``--set`` assignments, validate; `JobConfigError` names everything wrong."""
    origin = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise wrong("the file", "", f"cannot be read: {error}", origin) from error
    document, lines = _parse(text, origin)
    if not isinstance(document, dict):
        raise wrong("the file", "", "must hold fields; begin with: spark-purgatory example > job.yaml", origin)
    for number, assignment in enumerate(overrides, 1):
        _override(document, assignment, number)
        changed = assignment.partition("=")[0]
        lines = {field: line for field, line in lines.items() if not f"{field}.".startswith(f"{changed}.")}
        lines[changed] = 0  # It has no line in the file
    problems: list[Problem] = []
    document = _expand(document, "", problems)
    config, found = None, list[Problem]()
    try:
        config = JobConfig.model_validate(document)
    except ValidationError as error:
        found = _problems(error.errors())
    for problem in [*found, *file_problems(document)]:
        if not problem.field or problem.field not in {each.field for each in problems}:
            problems.append(problem)
    if problems or config is None:
        raise JobConfigError(origin, problems, lines)
    return config


# --- ``spark-purgatory check``: the whole file as it would run --------------------------------------------------------


def check_file(job_file: Path, changes: Sequence[str], console: Console) -> int:
    """Print the file with changes, variables and defaults; return the exit code: 0, or 2 if the file is wrong."""
    try:
        config = load_config(job_file, changes)
    except ConfigError as error:
        say(terminal(stderr=True), str(error), style="red")
        return 2
    whole = config.model_dump(mode="json", by_alias=True, exclude_none=True, warnings=False)
    if config.output.topic:
        whole["output"] = {name: whole["output"][name] for name in TOPIC_FIELDS}
    console.out(yaml.safe_dump(shown(whole), sort_keys=False, allow_unicode=True, width=1000).rstrip(), highlight=False)
    if config.options().may_count_twice:
        say(console, TWICE)
    say(console, f"{job_file} is right. Types, expressions and places are checked when the job starts.")
    return 0


def shown(value: Any, name: str = "") -> Any:
    """Return a part of the file without secrets and empty sections."""
    if isinstance(value, dict):
        parts = {each: shown(inner, name if name in FREE_FORM else each) for each, inner in value.items()}
        return {each: inner for each, inner in parts.items() if inner not in ({}, [])}
    if isinstance(value, list):
        return [shown(each, name) for each in value]
    if name in SECRET:
        return "***"
    return without_login(value) if isinstance(value, str) else value
