"""What rules, kinds of events, statuses and rejections are called, and the code of each in arrays and in the state.

Codes are stored in checkpoints: add at the end, never renumber.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from functools import reduce
from typing import Self

import numpy as np

from spark_purgatory.core.arrays.sorted_runs import Bools, Int64s


class Rule(IntEnum):
    """When an operation is complete."""

    ANY_KEY = 0
    ALL_KEYS = 1
    QUORUM = 2
    COUNT = 3
    SUM_AT_LEAST = 4
    LEVEL = 5
    UNTIL_DEADLINE = 6


class EventKind(IntEnum):
    """What an event does to the operations on its key."""

    COMPLETE = 0
    FAIL = 1
    CANCEL = 2
    FORCE = 3
    EXTEND = 4


class Status(IntEnum):
    """How an operation ended; ORPHAN is an event that counted for none."""

    COMPLETED = 0
    EXPIRED = 1
    FAILED = 2
    CANCELLED = 3
    DUPLICATE = 4
    REJECTED = 5
    ORPHAN = 6


RULES = tuple(rule.name.lower() for rule in Rule)
"""Names of the rules, by code."""
KINDS = tuple(kind.name.lower() for kind in EventKind)
"""Names of the kinds of events, by code."""
STATUSES = tuple(status.name for status in Status)
"""Names of the statuses, by code."""


class Rejection(IntEnum):
    """Why a row is rejected: a code, and its reason as a text."""

    reason: str
    """Empty where nothing is wrong."""

    def __new__(cls, code: int, reason: str) -> Self:
        """A code with its text."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.reason = reason
        return member


class OperationRejection(Rejection):
    """Why an operation is REJECTED; `reason` is the text of its outcome. Where several hold, the last set stands."""

    NONE = 0, ""
    NULL_ID = 1, "the id is null"
    NO_KEYS = 2, "the operation has no watch keys"
    NULL_KEY = 3, "a watch key is null"
    NULL_CREATED = 4, "the created time is null"
    NULL_DEADLINE = 5, "the deadline or time-out is null"
    DEADLINE_BEFORE_CREATED = 6, "the deadline is before the created time"
    CREATED_AHEAD = 7, "the created time is too far ahead of processing time (max_future)"
    UNKNOWN_RULE = 8, f"the rule is none of {', '.join(RULES)}"
    NO_NEED = (
        9,
        "the criterion's number is missing or out of range (quorum, count: a whole number from 1; sum_at_least: 0 or "
        "more)",
    )
    DEADLINE_OVERFLOWS = (
        10,
        "the deadline is past the end of time: created + time-out does not fit in 64 bits of microseconds",
    )
    CREATED_AT_NO_TIME = (
        11,
        "the created time is the first or last microsecond that a timestamp can hold, which stand for no time",
    )


class EventRejection(Rejection):
    """Why an event is rejected and counted."""

    NONE = 0, ""
    NULL_KEY = 1, "the key is null"
    NULL_TIME = 2, "the time is null"
    BAD_VALUE = 3, "the value is not a number, or negative, where values add up"
    """With ``by_row`` it is counted, and the event is not rejected: rules that add nothing up may count it."""
    TIME_AHEAD = 4, "the time is too far ahead of processing time (max_future)"
    UNKNOWN_KIND = 5, f"the kind is none of {', '.join(KINDS)}"
    AT_NO_TIME = (6, "the time is the first or last microsecond that a timestamp can hold, which stand for no time")
    BAD_EXTENSION = 7, "the seconds of the extend are null, negative, infinite or not a number"
    OPERATION_ALONE = (
        8,
        "the key is null: an event with only an operation_id needs `scope`, or operations with several keys",
    )
    FOREIGN_KEY = 9, "its operation_id names a pending operation that does not have this key"
    """Counted alone: the event is not rejected, for another operation of the id may come."""


class EventMark(IntFlag):
    """What is known of an event that no operation has counted so far; the state stores the sum of an event's marks."""

    LATE = 1
    """It arrived behind the watermark."""
    ENDED = 2
    """An operation that would have counted it had ended."""
    NOT_TAKEN = 4
    """An operation was pending at its time and did not count it."""
    NO_ADDEND = 8
    """It has a value that no sum can take."""
    PAST = 16
    """It came after the deadline of an operation, by no more than this had waited."""


def among(rules: Int64s, which: tuple[Rule, ...]) -> Bools:
    """Which of the codes are of one of the rules, (n,) bool."""
    return reduce(np.logical_or, (rules == rule for rule in which))
