"""The numbers of random worlds: values, levels, sums and counts of each type, with ties and neighbours."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, NamedTuple

STEP_US = 250_000  # a quarter of a second: exact in binary as a number of seconds


class Numbers(NamedTuple):
    """What is drawn of one type of number; each tuple has ties and neighbours."""

    values: tuple[Any, ...]
    levels: tuple[Any, ...]
    sums: tuple[Any, ...]
    counts: tuple[Any, ...]
    bad_counts: tuple[Any, ...]  # needs that no count or quorum has
    bad_sums: tuple[Any, ...]  # needs that no sum has
    second: Any  # one second, in this type
    unit_us: int  # extensions are multiples of it
    spoiled: tuple[Any, ...]  # values that no sum can take


def _decimals(words: str) -> tuple[Decimal | None, ...]:
    return tuple(None if word == "null" else Decimal(word) for word in words.split())


COUNTS = (1, 2, 2, 3, 4, 5)
BAD_COUNTS = (None, 0.0, -1.0, 0.5, 1.5, float("inf"), float("-inf"), float("nan"))
NUMBERS: dict[str, Numbers] = {
    "double": Numbers(
        values=(None, 0.0, 0.25, 0.5, 1.0, 2.0, 3.5),
        levels=(0.0, 0.5, 1.0, 2.0, 3.5),
        sums=(0, 0.5, 1.25, 2, 4),
        counts=COUNTS,
        bad_counts=BAD_COUNTS,
        bad_sums=(-0.5, float("nan"), float("inf"), 2.0**-44, 2.0**63),
        second=1.0,
        unit_us=STEP_US,
        spoiled=(-0.5, float("nan")),
    ),
    "tenths": Numbers(
        values=(None, -0.0, 0.1, 0.1, 0.2, 0.7, 1.1, 1e16, 5e-324, 1.7e308, float("inf")),
        levels=(0.0, -0.5, 0.1, 0.7, 1e16 + 2, 5e-324, 1.7e308),
        sums=(0.0, 0.3, 0.8, 0.9, 1.0, 1e16 + 2, 2.0**62),  # no other sums of doubles are asked of an engine
        counts=COUNTS,
        bad_counts=BAD_COUNTS,
        bad_sums=(-5e-324, 5e-324, float("-inf"), float("inf"), 1.7e308),
        second=1.0,
        unit_us=STEP_US,
        spoiled=(-0.5, -5e-324, float("-inf"), float("nan")),
    ),
    "bigint": Numbers(
        values=(None, 0, 1, 1, 2, 2**53 - 1, 2**53, 2**53 + 1, 2**62),
        levels=(0, 1, 2**53, 2**53 + 1, 2**62 + 1, 2**63 - 1),
        sums=(0, 2, 2**53 + 1, 2**53 + 2, 2**54 + 1, 2**62 + 1, 2**63 - 1),
        counts=COUNTS,
        bad_counts=(None, 0, -1, -(2**63)),
        bad_sums=(-1, -(2**63)),
        second=1,
        unit_us=1_000_000,
        spoiled=(-1, -(2**63)),
    ),
    "decimal": Numbers(
        values=_decimals("null 0.10 0.20 0.70 0.70 9007199254740992.92"),
        levels=_decimals("0.00 0.20 0.70 9007199254740992.92 9007199254740992.93"),
        sums=_decimals("0.00 0.80 0.90 1.00 1.50 9007199254740993.02 9007199254740993.63"),
        counts=tuple(Decimal(f"{count}.00") for count in COUNTS),
        bad_counts=_decimals("null 0.00 -1.00 0.50 1.50"),
        bad_sums=_decimals("-0.50 -0.01"),
        second=Decimal("1.00"),
        unit_us=STEP_US,
        spoiled=_decimals("-0.50 -0.01"),
    ),
}


def needs_of(rule: str, drawn: Numbers) -> tuple[Any, ...]:
    """Needs that fit a rule, or the one level for all keys; rules that read none have (None,)."""
    by_rule = {"quorum": drawn.counts, "count": drawn.counts, "sum_at_least": drawn.sums, "level": drawn.levels}
    return by_rule.get(rule, (None,))


TYPES = {"double": "double", "tenths": "double", "bigint": "bigint", "decimal": "decimal(18,2)"}
"""The engine's name of each type of a world's numbers."""
