"""Reads a job's YAML file.

YAML -> ``--set`` -> ``${VARIABLE}`` -> the models of `spark_purgatory.job.job_config` and the checks of
`spark_purgatory.job.check_columns`. One `JobConfigError` lists all that the last three find. Values of options and of
Spark settings may be secret and appear in no message.
"""

from __future__ import annotations

import difflib
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
from spark_purgatory.job import job_config, source_config
from spark_purgatory.job.check_columns import file_problems
from spark_purgatory.job.config_types import FREE_FORM, SECRET, Model, Problem
from spark_purgatory.job.job_config import JobConfig

MAX_VALUE_CHARS = 60  # A wrong value is quoted up to this length: enough to recognise it on one line of a terminal
# Parts of pydantic's place of an error that are not fields: the key of a mapping, the types of a union
BRANCHES = ("[key]", "bool", "literal['all']")
WORDS = {  # The allowed values, by pydantic's type of error; in braces the values of its context
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "only settings whose name starts with 'spark.' are allowed",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    "list_type": "must be a list",
    "missing": "is required",
    "dict_type": "must be names with a value each",
}
FORMATS = "'parquet', 'json', 'csv', 'delta' or 'kafka'"
FORMS = {  # The right form of a section that was given as a single value
    "trigger": "write processingTime: 10 seconds, or availableNow: true, below it",
    **dict.fromkeys(
        ("operations.source", "completions.source"), f"write format: and what it needs below it: {FORMATS}"
    ),
}
INT, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
MOST_DOTS = 50  # In a field's name of --set: each begins a section
MOST_VALUES = 10_000  # In one file, with what its aliases repeat
QUOTE_IT = "put a value that begins with *, & or ! in quotes"
MERGE = "tag:yaml.org,2002:merge"  # The tag of ``<<``
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
    is_hidden = isinstance(error["input"], (dict, list, BaseModel, NoneType)) or error["type"] == "missing"
    if is_hidden or set(SECRET) & set(map(str, error["loc"])):
        return ""
    text = repr(error["input"])
    return text if len(text) <= MAX_VALUE_CHARS else text[:MAX_VALUE_CHARS] + "..."


def _choices(given: object, expected: str) -> str:
    names = re.findall("'([^']+)'", expected)
    return f"must be {expected}{near(str(given), names)}"


def _problem(error: ErrorDetails) -> Problem:
    context = error.get("ctx", {})
    allowed = error["msg"].removeprefix("Value error, ")
    parts = [str(part) for part in error["loc"] if part not in BRANCHES]
    if parts[1:2] == ["source"]:
        del parts[2:3]  # operations.source.parquet.schema: a union's tag is no field
    field = ".".join(parts)
    match error["type"]:
        case kind if kind in WORDS:
            allowed = WORDS[kind].format(**context)
        case "model_type" | "model_attributes_type":
            models = vars(job_config) | vars(source_config)
            allowed = FORMS.get(field) or f"must have fields: {', '.join(models[context['class_name']].model_fields)}"
        case "literal_error":
            field = re.sub(r"(?<=criterion)\.rule$", "", field)
            allowed = _choices(error["input"], context["expected"])
        case "union_tag_invalid":
            allowed = _choices(context["tag"], context["expected_tags"])
            return Problem(f"{field}.format", repr(context["tag"]), allowed)
        case "union_tag_not_found":
            return Problem(f"{field}.format", "", f"is required: {FORMATS}")
    allowed = allowed.removeprefix(f"{field}: ").removeprefix(f"this={error['input']!r} ")
    return Problem(field, _given(error), allowed)


def _meant(given: dict[str, Any], model: type[Model], path: str, unknown: list[Problem]) -> dict[str, Any]:
    """Return a section's known fields, and misspelt ones under the name meant, so that pydantic checks the rest."""
    try:
        given = model.long_form(given)
    except ValueError:  # The model raises it again, with its field
        return given
    kinds = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    fields = {name: value for name, value in given.items() if name in kinds}
    for name in given:
        if name not in kinds:
            near = difflib.get_close_matches(str(name), kinds, n=1)
            meant = f", did you mean {near[0]!r}" if near else ""
            unknown.append(Problem(f"{path}{name}", "", f"unknown field{meant}; allowed: {', '.join(kinds)}"))
            fields.update({other: given[name] for other in near if other not in fields})
    for name, value in fields.items():
        for kind in get_args(kinds[name]) or (kinds[name],):
            if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, Model):
                tag = kind.model_fields.get("format")
                if tag is None or not tag.is_required() or value.get("format") in get_args(tag.annotation):
                    fields[name] = _meant(value, kind, f"{path}{name}.", unknown)
    return fields


def _problems(errors: Iterable[ErrorDetails]) -> list[Problem]:
    """Return one problem for each field: one sentence has all that the types of a union allow."""
    found: dict[tuple[str, str], Problem] = {}
    for problem in map(_problem, errors):
        place = problem.field, problem.given
        other = found.get(place)
        if other is not None and other.allowed != problem.allowed:
            problem = Problem(*place, f"{other.allowed}; {problem.allowed}")
        found[place] = problem
    return list(found.values())


class _UniqueKeys(yaml.SafeLoader):
    """YAML whose errors have a line, a name given twice too. Numbers are YAML 1.2's: 010 is ten, and 1:30 is text."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [rule for rule in rules if rule[0] not in (INT, FLOAT)]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    lines: dict[str, int]

    def get_single_node(self) -> yaml.Node | None:
        """Return the file's node. Repeats by aliases are counted before they are made: they may multiply."""
        node = super().get_single_node()
        if _size(node, {}) > MOST_VALUES:
            raise yaml.YAMLError(f"its aliases repeat more than {MOST_VALUES:,} values")
        self.lines = dict(_lines(node, ""))
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Check the names of a mapping, then add the names from ``<<``, which may be repeated here."""
        self._check_names(node)
        super().flatten_mapping(node)

    def _check_names(self, node: yaml.MappingNode) -> None:
        if vars(node).get("is_checked"):
            return  # It is flattened since: names from << may be in it twice
        seen: set[object] = set()
        for name_node, _ in node.value:
            if not isinstance(name_node, yaml.ScalarNode):
                problem = "the name of a field must be text: put a value that begins with {{ in quotes"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=name_node.start_mark)
            name = "<<" if name_node.tag == MERGE else self.construct_object(name_node)
            if name in seen:
                raise yaml.MarkedYAMLError(problem=f"{name!r} is given twice", problem_mark=name_node.start_mark)
            seen.add(name)
        vars(node)["is_checked"] = True

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return a node's value; for 2024-02-30 and the like PyYAML raises Python's errors, which have no line."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:
            problem = "this is not a date, number or truth value, though it looks like one: put it in quotes"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from error


_UniqueKeys.add_implicit_resolver(INT, re.compile(r"([-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$"), list("-+0123456789"))
_UniqueKeys.add_implicit_resolver(
    FLOAT,
    re.compile(r"([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"),
    list("-+.0123456789"),
)
_UniqueKeys.add_constructor(INT, lambda _, node: int(node.value, {"0o": 8, "0x": 16}.get(node.value[:2], 10)))


def _inner(node: yaml.Node | None) -> list[tuple[str, yaml.Node, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        return [(str(name.value), name, inner) for name, inner in node.value]
    return [(str(i), inner, inner) for i, inner in enumerate(node.value)] if isinstance(node, yaml.SequenceNode) else []


def _size(node: yaml.Node | None, known: dict[int, int]) -> int:
    if id(node) not in known:
        known[id(node)] = 0  # For a value that contains itself
        known[id(node)] = 1 + sum(_size(inner, known) for _, _, inner in _inner(node))
    return known[id(node)]


def _lines(node: yaml.Node | None, field: str) -> Iterator[tuple[str, int]]:
    for name, at, inner in _inner(node):
        place = f"{field}.{name}" if field else name
        yield place, at.start_mark.line + 1
        yield from _lines(inner, place)


def _unshared(value: Any) -> Any:
    """A deep copy without shared mappings or lists, so that a YAML alias can be changed in one place only."""
    if isinstance(value, dict):
        return {name: _unshared(inner) for name, inner in value.items()}
    return [_unshared(inner) for inner in value] if isinstance(value, list) else value


def _parse(text: str, origin: str) -> tuple[Any, dict[str, int]]:
    try:
        loader = _UniqueKeys(text)
        return _unshared(loader.get_single_data()), loader.lines
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"
        said = _NAMED.sub(QUOTE_IT, getattr(error, "problem", None) or str(error).splitlines()[0])
        raise wrong(where, "", f"not YAML: {said}", origin) from None
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
    meant = _meant(_expand(document, "", problems), JobConfig, "", problems)
    config, found = None, list[Problem]()
    try:
        config = JobConfig.model_validate(meant)
    except ValidationError as error:
        found = _problems(error.errors())
    for problem in [*found, *file_problems(meant)]:
        if not problem.field or problem.field not in {each.field for each in problems}:
            problems.append(problem)
    if problems or config is None:
        raise JobConfigError(origin, problems, lines)
    return config
