"""The base of the models of the job's file, and the types of their fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from spark_purgatory.config.declared import JOIN_THEM
from spark_purgatory.config.units import parse_duration, parse_size
from spark_purgatory.errors import without_login

FREE_FORM = ("options", "spark")  # Mappings whose keys hold dots and whose values may be secret
SECRET = (*FREE_FORM, "registry", "url")  # Fields whose values no error and no repr shows
VERB = re.compile(r"(is|are|has|holds|can|cannot|must|needs|without)\b")  # A sentence goes on with it, without a colon


def _as_text(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else value


def _read_by(parse: Callable[[object, str], object]) -> BeforeValidator:
    def check(value: object) -> object:
        parse(value, "this")
        return value

    return BeforeValidator(check)


def _but(kinds: type | tuple[type, ...], allowed: str) -> BeforeValidator:
    def check(value: object) -> object:
        if isinstance(value, kinds):
            raise ValueError(allowed)
        return value

    return BeforeValidator(check)


@dataclass(frozen=True)
class Problem:
    """A fault of a file: the field, its value ("" where it must not be shown), and the allowed values."""

    field: str
    given: str
    allowed: str

    def __str__(self) -> str:
        about = ": ".join(filter(None, (self.field, self.given)))
        return f"{about}{' ' if VERB.match(self.allowed) else ': ' if about else ''}{self.allowed}"


Text = Annotated[str, Field(min_length=1)]
Scalar = Annotated[str, BeforeValidator(_as_text, json_schema_input_type=str | int | float | bool)]
_AS_LIST = BeforeValidator(lambda value: [value] if isinstance(value, str) else value, Text | list[Text])
Texts = Annotated[list[Text], _AS_LIST]
Duration = Annotated[str, _read_by(parse_duration)]
OneColumn = Annotated[Text, _but(list, f"must be one column: {JOIN_THEM}, in their select")]
TimeOutText = Annotated[Text, _but((int, float), 'a number alone has no unit: write "30 minutes", or name a column')]
Size = Annotated[str | int, _read_by(parse_size)]
Whole = Annotated[int, _but(bool, "must be a whole number")]  # YAML's yes is no 1
Number = Annotated[int | float | str, _but((bool, dict, list), "must be a number")]
Setting = Annotated[str, Field(pattern=r"^spark\.")]


class Model(BaseModel):
    """Frozen, no unknown fields, and no option's value in a repr."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True)
    one_of: ClassVar[tuple[str, ...]] = ()  # Exactly one of these fields must be given

    def made(self) -> Any:
        """Return the library's own object of the section. Raises ConfigError or ValueError for what cannot work."""

    @model_validator(mode="after")
    def _can_be_made(self) -> Self:
        given = [name for name in self.one_of if getattr(self, name) is not None]
        if self.one_of and len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(self.one_of)}; got {' and '.join(given) or 'none'}")
        self.made()
        return self

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            shown = dict.fromkeys(value, "***") if name in FREE_FORM else "***" if name == "url" else value
            yield name, without_login(shown) if isinstance(shown, str) else shown
