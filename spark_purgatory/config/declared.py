"""Declarations of options: frozen dataclasses with annotations.

The type of an option decides how its value is checked, what the job's YAML file takes, and how docs/configuration.md
describes it. The docstring of the class that users call has its meaning. Values stay as they were given, and methods
compute from them (`Options.us_of`, `bytes_of`, `names_of`), so ``dataclasses.replace`` works as expected.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
import textwrap
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field, dataclass, fields
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, NamedTuple, ParamSpec, Protocol, Self, TypeVar, get_args, get_origin

from spark_purgatory.config.units import Duration, Size, parse_duration, parse_size
from spark_purgatory.core.spec.codes import RULES
from spark_purgatory.errors import ConfigError, without_login

P = ParamSpec("P")
R = TypeVar("R")


class ColumnExpression(Protocol):
    """A ``pyspark.sql.Column`` of classic Spark or Spark Connect; pyspark is not imported here."""

    def alias(self, *alias: str, **kwargs: Any) -> Any:
        """Return the column under another name."""

    def cast(self, dataType: Any) -> Any:
        """Return the column as another type."""


ColumnLike = str | ColumnExpression  # a column's name, or a ``pyspark.sql.Column``
Columns = ColumnLike | Sequence[ColumnLike]
Names = str | Sequence[str]
TimeOut = ColumnLike | Duration  # a duration for all rows, or a column with each row's

ONE_LINE = 70  # characters of an object that is shown on one line
MOST_COUNT = (1 << 31) - 1  # the largest whole number of an option: Arrow and the JVM count elements with 32 bits
JOIN_THEM = "to use several, join them into one in both inputs, such as concat(shop, '/', number)"


def is_column(value: object) -> bool:
    """Return True if a value can name a column: a non-empty string, or a Column."""
    return (isinstance(value, str) and bool(value)) or (hasattr(value, "alias") and hasattr(value, "cast"))


def require_column(value: object, field: str) -> None:
    if not is_column(value):
        several = f": {JOIN_THEM}" if isinstance(value, (list, tuple)) else ""
        raise ConfigError(f"{field}={value!r} must be a column's name or a Column{several}")


def checked_names(given: object, field: str) -> tuple[str, ...]:
    """Return names of columns as a tuple; None is no name. Raises ConfigError unless each is a text, given once."""
    if given is None:
        return ()
    names = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise ConfigError(f"{field}={given!r} must be names of columns, each once")
    return names


def _require_columns(value: object, field: str) -> None:
    if not isinstance(value, (list, tuple)):
        require_column(value, field)
        return
    if not value:
        raise ConfigError(f"{field} is an empty list: name at least one column")
    for i, column in enumerate(value):
        require_column(column, f"{field}[{i}]")


def _require(allowed: str, fits: Callable[[Any], bool]) -> Callable[[Any, str], None]:
    def check(value: Any, field: str) -> None:
        if not fits(value):
            raise ConfigError(f"{field}={value!r} must be {allowed}")

    return check


# The check of each type of option. The class that has an option checks other types.
CHECKS: dict[Any, Callable[[Any, str], object]] = {
    ColumnLike: require_column,
    Columns: _require_columns,
    Names: checked_names,
    Duration: parse_duration,
    Size: parse_size,
    int: _require(
        f"an int between 1 and {MOST_COUNT:,}", lambda value: type(value) is int and 1 <= value <= MOST_COUNT
    ),
    str: _require("a string", lambda value: isinstance(value, str)),
    bool: _require("True or False", lambda value: isinstance(value, bool)),
}


class Declared(NamedTuple):
    kind: Any  # the type without ``None``
    is_optional: bool  # it may be ``None``
    default: Any  # ``dataclasses.MISSING`` if it must be given


@functools.cache
def options_of(declared: type[Any]) -> dict[str, Declared]:
    """Return the options of a class by name, without those that a file cannot give."""
    hints, found = typing.get_type_hints(declared), {}
    for field in fields(declared):
        if field.init and field.name not in declared.python_only:
            kind = hints[field.name]
            members = get_args(kind) if get_origin(kind) in (typing.Union, UnionType) else (kind,)
            given = functools.reduce(operator.or_, (member for member in members if member is not NoneType))
            found[field.name] = Declared(given, NoneType in members, field.default)
    return found


def choices_of(kind: Any) -> tuple[Any, ...]:
    """Return the values of a type like ``Literal["early", "final"]``; else nothing."""
    return get_args(kind) if get_origin(kind) is Literal else ()


def near(name: str, names: Iterable[str]) -> str:
    """Return ``, did you mean 'timeout'?``, or nothing if no name is near."""
    lower = {each.lower(): each for each in names}
    found = difflib.get_close_matches(name.lower(), lower, n=1)
    return f", did you mean {lower[found[0]]!r}?" if found else ""


def not_a_column(field: str, name: str, names: Sequence[str]) -> ConfigError:
    """Return the error of an option that names a column which its input lacks."""
    meant = near(name, names)
    known = f"{meant} There are" if meant else ": there are"
    is_rule = field == "criterion.rule" and name in RULES
    way = f'; for one rule in all rows add a column, withColumn("rule", F.lit("{name}")), and name that'
    return ConfigError(f"{field}={name!r} is not a column{known} {', '.join(names)}{way if is_rule else ''}")


def _refuse_unknown(owner: str, given: Iterable[str], names: Sequence[str]) -> None:
    for name in given:
        if name not in names:
            raise ConfigError(f"{owner} has no {name}={near(name, names) or '.'} It has {', '.join(names)}")


def refuses_wrong_calls(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function whose error for a misspelt or positional argument shows the right call."""
    parameters = {name: one for name, one in inspect.signature(function).parameters.items() if name != "self"}
    by_name = [name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY]
    by_place = [name for name in parameters if name not in by_name]
    is_method = "self" in inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*given: P.args, **named: P.kwargs) -> R:
        _refuse_unknown(f"{function.__name__}()", named, list(parameters))
        if (beyond := len(given) - is_method - len(by_place)) > 0:
            must = [name for name in by_name if parameters[name].default is inspect.Parameter.empty]
            right = ", ".join([*by_place, *(f"{name}=..." for name in must or by_name[:beyond])])
            raise ConfigError(f"{function.__name__}() takes {', '.join(by_name)} by name: {function.__name__}({right})")
        return function(*given, **named)

    return call


class Shown(str):
    """A text that a shell shows as it is, with its lines and without quotes."""

    def __repr__(self) -> str:
        return str(self)


class _Signature:
    """The fields of a class of options, for ``help()`` and editors, because its ``__new__`` takes anything."""

    def __get__(self, made: object, declared: type[Any]) -> inspect.Signature:
        _, *given = inspect.signature(declared.__init__).parameters.values()
        return inspect.Signature([each.replace(annotation=Shown(each.annotation)) for each in given])


@dataclass(frozen=True, kw_only=True, repr=False)
class Options:
    __signature__ = _Signature()
    section: ClassVar[str] = ""  # the prefix of an option's name in errors: ``operations.``
    python_only: ClassVar[tuple[str, ...]] = ()  # options that a job's file does not have

    def __new__(cls, *given: object, **named: object) -> Self:
        """Refuse names that the class does not have."""
        names = [field.name for field in fields(cls) if field.init]
        if given:
            raise ConfigError(f"{cls.__name__} takes its options by name: {', '.join(names)}")
        _refuse_unknown(cls.__name__, named, names)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        declared: type = type(self)
        for name, option in options_of(declared).items():
            value, field = getattr(self, name), self.section + name
            choices = choices_of(option.kind)
            if value is None and option.is_optional:
                continue
            if choices and not any(type(value) is type(choice) and value == choice for choice in choices):
                raise ConfigError(f"{field}={value!r} must be {' or '.join(map(repr, choices))}")
            if option.kind in CHECKS:
                CHECKS[option.kind](value, field)

    def _is_default(self, option: Field[Any]) -> bool:
        value, default = getattr(self, option.name), option.default  # a Column has no truth
        return value is default or (type(value) is type(default) and value == default)

    def __repr__(self) -> str:
        given = [each.name for each in fields(self) if each.init and not self._is_default(each)]
        parts = [without_login(f"{name}={getattr(self, name)!r}") for name in given]
        name, line = type(self).__name__, ", ".join(parts)
        if len(line) < ONE_LINE and "\n" not in line:
            return f"{name}({line})"
        lines = textwrap.indent("".join(part + ",\n" for part in parts), "    ")
        return f"{name}(\n{lines})"

    def us_of(self, name: str) -> int:
        return parse_duration(getattr(self, name), self.section + name)

    def ms_of(self, name: str) -> int:
        """Return a duration in milliseconds, rounded down."""
        return self.us_of(name) // 1000

    def bytes_of(self, name: str) -> int:
        return parse_size(getattr(self, name), self.section + name)

    def in_numbers(self) -> str:
        """Return sizes in bytes and durations in milliseconds, for a log line."""
        declared: type = type(self)
        texts = {Size: lambda name: f"{self.bytes_of(name):,} bytes", Duration: lambda name: f"{self.ms_of(name):,} ms"}
        kinds = {name: option.kind for name, option in options_of(declared).items() if option.kind in texts}
        return ", ".join(f"{name} {texts[kind](name)}" for name, kind in kinds.items())

    def names_of(self, name: str) -> tuple[str, ...]:
        return checked_names(getattr(self, name), self.section + name)
