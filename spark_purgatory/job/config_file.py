"""Reads a job's YAML file.

YAML -> ``--set`` -> ``${VARIABLE}`` -> the models of `spark_purgatory.job.job_config` and the checks of
`spark_purgatory.job.check_columns`. One `JobConfigError` lists all that the last three find. Values of options and of
Spark settings may be secret and appear in no message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from spark_purgatory.config.declared import near
from spark_purgatory.errors import ConfigError
from spark_purgatory.job.check_columns import file_problems
from spark_purgatory.job.config_types import FREE_FORM, SECRET, Model, Problem
from spark_purgatory.job.job_config import JobConfig

# Parts of pydantic's place of an error that are not fields: the key of a mapping, the types of a union
BRANCHES = ("[key]", "bool", "literal['all']")
SOURCE = "must have a format, 'parquet', 'json', 'csv', 'delta' or 'kafka', and the fields that it needs"
INT, TIMESTAMP = "tag:yaml.org,2002:int", "tag:yaml.org,2002:timestamp"
MOST_DOTS = 50  # In a field's name of --set: each begins a section
QUOTE_IT = "put a value that begins with *, & or ! in quotes"
FREE_NAME = re.compile(rf"((?:[^.]+\.)*?(?:{'|'.join(FREE_FORM)}))\.(.+)")  # A name with dots in a free mapping
_NAMED = re.compile(r".*(?:alias|anchor|tag|tag handle) ['\"].*")  # Quotes what begins with * & or !, as passwords may
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class JobConfigError(ConfigError):
    """All faults of a job's file."""

    def __init__(self, origin: str, problems: Iterable[Problem], lines: Mapping[str, int] | None = None) -> None:
        self.origin = origin
        self.problems = tuple(problems)
        told = "\n".join(f"  {_line_of(problem, lines or {})}{problem}" for problem in self.problems)
        super().__init__(f"{origin} has {len(self.problems)} problem{'s' * (len(self.problems) > 1)}:\n{told}")


def _line_of(problem: Problem, lines: Mapping[str, int]) -> str:
    field = problem.field or problem.allowed.split(" ", 1)[0].rstrip(":,")
    while field and field not in lines:
        field = field.rpartition(".")[0]
    return f"line {lines[field]}: " if lines.get(field) else ""


def wrong(field: str, given: str, allowed: str, origin: str = "the job file") -> JobConfigError:
    """The error of a single problem."""
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
        said = _NAMED.sub(QUOTE_IT, getattr(error, "problem", None) or str(error).splitlines()[0])
        raise wrong(where, "", f"not YAML: {said}", origin) from None
    except (ValueError, LookupError, AttributeError):
        raise wrong("the file", "", "a number or truth value cannot be read: put it in quotes", origin) from None
    except RecursionError:
        raise wrong("the file", "", "a value contains itself, or is nested too deeply", origin) from None


def _override(document: dict[str, Any], assignment: str, number: int) -> None:
    """Apply one ``--set operations.timeout=5 minutes``, the ``number``-th, the value read as YAML."""
    field, equals, value = assignment.partition("=")
    origin = f"--set {field}"
    if not equals or not all(field.split(".")) or field.count(".") > MOST_DOTS:
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
