"""Durations and sizes as people write them: "30 minutes", "1 hour 30 minutes", "128 MiB"."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

from spark_purgatory.errors import ConfigError

US_OF_UNIT = {
    **dict.fromkeys(("microsecond", "us"), 1),
    **dict.fromkeys(("millisecond", "ms"), 1_000),
    **dict.fromkeys(("second", "sec", "s"), 1_000_000),
    **dict.fromkeys(("minute", "min", "m"), 60_000_000),
    **dict.fromkeys(("hour", "h"), 3_600_000_000),
    **dict.fromkeys(("day", "d"), 86_400_000_000),
    "week": 604_800_000_000,
}
BYTES_OF_UNIT = {
    **dict.fromkeys(("b", "byte", "bytes"), 1),
    **{f"{p}b": 1000**i for i, p in enumerate("kmgt", 1)},
    **{f"{p}ib": 1024**i for i, p in enumerate("kmgt", 1)},
}
MAX_DURATION_US = 1000 * 366 * US_OF_UNIT["day"]  # a thousand years, far from the end of int64 microseconds
MOST_BYTES = 1 << 60  # 1 EiB: sums of several such sizes fit into int64

WITHOUT_LENGTH = ("month", "quarter", "year")
DURATIONS = (
    "A duration is one or more numbers, each with a unit: microseconds (us), milliseconds (ms), seconds (s), "
    'minutes (m), hours (h), days (d) or weeks; such as "30 minutes" or "1 hour 30 minutes"; in Python also a timedelta'
)
SIZES = 'A size is a number and one of B, KB, MB, GB, TB, KiB, MiB, GiB and TiB, such as "128 MiB", or an int of bytes'
NEGATIVE = "it is negative; a duration is 0 or longer"

_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*")

Duration = str | timedelta  # text such as "30 minutes", or a ``timedelta``
Size = str | int  # text such as "128 MiB", or an int of bytes


def parse_duration(value: object, field: str) -> int:
    wrong = not_a_duration(value)
    if wrong is not None:
        raise ConfigError(f"{field}={value!r} is not a duration: {wrong}")
    if isinstance(value, timedelta):
        us = value // timedelta(microseconds=1)
    else:
        us = round(sum(Decimal(n) * US_OF_UNIT[_unit(u)] for n, u in _PART.findall(str(value))))
    if us > MAX_DURATION_US:
        raise ConfigError(f"{field}={value!r} is longer than 1000 years, the longest duration allowed")
    return us


def us_per(unit: str) -> int:
    """Return the microseconds of a unit of time, such as "minutes" or "s"."""
    return US_OF_UNIT[_unit(unit)]


def is_duration(value: object) -> bool:
    return not_a_duration(value) is None


def not_a_duration(value: object) -> str | None:
    """Return why ``value`` is not a duration, and what is one; None if it is one."""
    if isinstance(value, timedelta):
        return NEGATIVE if value < timedelta(0) else None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"it has no unit. {DURATIONS}"
    if not isinstance(value, str):
        return f"it is neither text nor a timedelta. {DURATIONS}"
    rest = _PART.sub("", value).strip()
    units = [unit for _, unit in _PART.findall(value)]
    unknown = [unit for unit in units if _unit(unit) not in US_OF_UNIT]
    if re.match(r"\s*[-\u2212]\s*\d", value):
        return NEGATIVE
    if unknown and _unit(unknown[0]) in WITHOUT_LENGTH:
        wrong = f"{unknown[0]!r} has no fixed length; say it in days"
    elif unknown:
        wrong = f"{unknown[0]!r} is not a unit of time"
    elif rest and re.fullmatch(r"\d+(\.\d+)?", rest):
        wrong = f"{rest} has no unit"
    elif rest or not units:
        wrong = f"{rest!r} was not understood" if rest else "it is empty"
    else:
        return None
    return f"{wrong}. {DURATIONS}"


def reads_like_a_duration(text: str) -> bool:
    """Return True if ``text`` may be meant as a duration, because it begins with a number."""
    return re.match(r"\s*[-+\u2212]?\s*\.?\d", text) is not None


def _unit(word: str) -> str:
    word = word.lower()
    return word if word in US_OF_UNIT else word.removesuffix("s")


def parse_size(value: object, field: str) -> int:
    wrong = not_a_size(value)
    if wrong is not None:
        raise ConfigError(f"{field}={value!r} is not a size: {wrong}")
    return _bytes(value)


def not_a_size(value: object) -> str | None:
    """Return why ``value`` is not a size, and what is one; None if it is one."""
    match = _PART.fullmatch(value) if isinstance(value, str) else None
    is_known = match is not None and match[2].lower() in BYTES_OF_UNIT
    if not is_known and (isinstance(value, bool) or not isinstance(value, int)):
        return SIZES
    size = _bytes(value)
    if size > MOST_BYTES:
        return "it is more than 1 EiB, the largest size allowed"
    return None if size >= 1 else f"it is less than a byte. {SIZES}"


def _bytes(value: object) -> int:
    if isinstance(value, int):
        return value
    match = _PART.fullmatch(str(value))
    assert match is not None
    return round(Decimal(match[1]) * BYTES_OF_UNIT[match[2].lower()])
