"""The seven criteria, as data.

All are monotone: a criterion that is met over the events up to t is met for every later t. The smallest such t is the
time at which it is met, and nothing has to be evaluated twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from spark_purgatory.core.spec.codes import RULES, Rule
from spark_purgatory.errors import ConfigError

# What a rule needs. `evaluation` evaluates it.
KEYED = (Rule.ANY_KEY, Rule.ALL_KEYS, Rule.QUORUM, Rule.LEVEL, Rule.UNTIL_DEADLINE)
"""It is satisfied key by key: its operations have missing keys."""
VALUED = (Rule.SUM_AT_LEAST, Rule.LEVEL)  # it reads the events' values
COUNTED = (Rule.QUORUM, Rule.COUNT)  # it needs a whole number from 1, of keys or of events
ADDING = (Rule.SUM_AT_LEAST,)  # it adds values, none of them negative; the smallest of redeliveries at one time counts
LEVELLED = (Rule.LEVEL,)  # each key has a level to reach, also by events from before the operation
AT_DEADLINE = (Rule.UNTIL_DEADLINE,)  # the deadline decides: until then more events may count
NUMBERED = tuple(rule.name.lower() for rule in Rule if rule in (*COUNTED, *VALUED))  # rules that need a number
SMALLEST_SUM, LARGEST_SUM = 2.0**-43, 2.0**62  # within these, sums of doubles are exact in every digit (`numbers`)


@dataclass(frozen=True)
class Criterion:
    """The rule by which an operation completes, one of `RULES`, and the number it needs (1 if it needs none)."""

    rule: str
    need: float | Decimal = 1

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ConfigError(f"criterion rule {self.rule!r} is unknown: use one of {', '.join(RULES)}")
        if not _is_finite(self.need):
            wrong = f"criterion {self.rule} needs a finite number, got {self.need!r}"
            raise ConfigError(f"{wrong}: give one, or name a column of numbers with criteria.by_row")
        if self.need < 0 and self.code != Rule.LEVEL:
            raise ConfigError(f"criterion {self.rule} needs a number of at least 0, got {self.need!r}")
        if isinstance(self.need, float):
            self.check_double()
        if self.code in COUNTED and (self.need < 1 or self.need != int(self.need)):
            raise ConfigError(f"criterion {self.rule} needs a whole number of at least 1, got {self.need!r}")

    def __repr__(self) -> str:
        need = repr(self.need) if self.code in (*COUNTED, *VALUED) else ""
        return f"criteria.{self.rule}({need})"

    @property
    def code(self) -> Rule:
        """The rule as a code."""
        return Rule[self.rule.upper()]

    def check_double(self) -> None:
        """Raise ConfigError where sums of doubles are not exact up to the need."""
        if self.code == Rule.SUM_AT_LEAST and self.need and not SMALLEST_SUM <= self.need <= LARGEST_SUM:
            raise ConfigError(
                f"criterion sum_at_least needs 0 or a number between {SMALLEST_SUM} and {LARGEST_SUM}, "
                f"got {self.need!r}: sums of doubles are exact within these bounds; if values are decimal or bigint, "
                "give an int or a Decimal"
            )

    @property
    def reads_values(self) -> bool:
        """True if events must bring a value."""
        return self.code in VALUED


def _is_finite(need: object) -> bool:
    if isinstance(need, bool) or not isinstance(need, (int, float, Decimal)):
        return False
    try:
        return math.isfinite(float(need))
    except (OverflowError, ValueError):
        return False


@dataclass(frozen=True)
class ByRow:
    """Names of the columns with each operation's own rule, need and levels (made by `by_row`)."""

    rule: str
    need: str | None = None
    levels: str | None = None

    def __post_init__(self) -> None:
        for field, value in vars(self).items():
            if not (isinstance(value, str) and value) and not (value is None and field != "rule"):
                raise ConfigError(
                    f"criteria.by_row {field}={value!r} must be a column's name: add a column to the operations and "
                    "name it"
                )

    def __repr__(self) -> str:
        given = (f"{name}={value!r}" for name, value in vars(self).items() if value is not None)
        return f"criteria.by_row({', '.join(given)})"

    reads_values: ClassVar[bool] = True  # some of its rules read a value


def by_row(rule: str = "rule", need: str | None = None, levels: str | None = None) -> ByRow:
    """Read each operation's own criterion from columns.

    Args:
        rule: The column of the rule's name: any_key, all_keys, quorum, count, sum_at_least, level or until_deadline.
        need: The column of its number. It may be left out if no row needs one.
        levels: A column of maps from key to the level that a ``level`` operation needs there; by default every key
            needs ``need``.

    An operation is REJECTED if its rule is unknown, or its number is missing or not allowed by the rule.

    Example:
        >>> criterion = by_row(rule="rule", need="acks")
    """
    return ByRow(rule, need, levels)


def any_key() -> Criterion:
    """Complete at the first event on any of the operation's keys.

    Example:
        >>> any_key()
        criteria.any_key()
    """
    return Criterion("any_key")


def all_keys() -> Criterion:
    """Complete when every one of the operation's keys has had an event.

    Example:
        >>> all_keys().rule
        'all_keys'
    """
    return Criterion("all_keys")


def quorum(n: int) -> Criterion:
    """Complete when ``n`` distinct keys have had an event (Kafka: members of a DelayedJoin).

    Args:
        n: Number of keys, at least 1. An operation whose array of keys has fewer waits until its deadline and is
            EXPIRED. If keys are a list of columns, a larger number than that of the columns is refused.

    Example:
        >>> quorum(2).need
        2
    """
    return Criterion("quorum", n)


def count(n: int) -> Criterion:
    """Complete at the ``n``-th event on the operation's keys, whichever they are.

    Args:
        n: Number of events, at least 1.

    Example:
        >>> count(3).need
        3
    """
    return Criterion("count", n)


def sum_at_least(x: float | Decimal) -> Criterion:
    """Complete when the values of the events add up to ``x`` (Kafka: minimum bytes of a DelayedFetch).

    Sums are exact, so neither order nor batching changes them: ten events of 0.1 reach 1.0.

    Args:
        x: The sum, compared in the values' own type. If values are decimal or bigint, an int or a ``Decimal`` is taken
            as it is, and a float as the decimal that it is written as: 0.8 is exactly eight tenths.

    Raises:
        ConfigError: ``x`` is negative, not a number, or too large or small for exact sums of doubles.

    Example:
        >>> sum_at_least(Decimal("0.80")).rule
        'sum_at_least'
    """
    return Criterion("sum_at_least", x)


def level(need: float | Decimal) -> Criterion:
    """Complete when every key's running maximum of values has reached ``need`` (Kafka: DelayedProduce's high
    watermark).

    Args:
        need: The level, compared like the sum of `sum_at_least`. The maximum is over all events on the key, also those
            from before the operation was created.

    Example:
        >>> level(100).need
        100
    """
    return Criterion("level", need)


def until_deadline() -> Criterion:
    """Complete at the deadline if an event came on any of the operation's keys by then; expire there if none came.

    It fits what is decided when the time is over: the winning bid of an auction, the readings of an interval. With
    ``Purgatory(evidence_order="value")`` the outcome carries the event with the largest value.

    Example:
        >>> until_deadline()
        criteria.until_deadline()
    """
    return Criterion("until_deadline")
