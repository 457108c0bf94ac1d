"""Names and codes of rules, kinds of events, statuses and rejections.

Checkpoints store the codes: add at the end, never renumber.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from functools import reduce
from typing import Self

import numpy as np

from spark_purgatory.core.arrays.sorted_runs import Bools, Int64s


class Rule(IntEnum):
    """The rule by which an operation completes."""

    ANY_KEY = 0
    ALL_KEYS = 1
    QUORUM = 2
    COUNT = 3
    SUM_AT_LEAST = 4
    LEVEL = 5
    UNTIL_DEADLINE = 6


class EventKind(IntEnum):
    COMPLETE = 0
    FAIL = 1
    CANCEL = 2
    FORCE = 3
    EXTEND = 4


class Status(IntEnum):
    """The end of an operation; ORPHAN is an event that counted for none."""

    COMPLETED = 0
    EXPIRED = 1
    FAILED = 2
    CANCELLED = 3
    DUPLICATE = 4
    REJECTED = 5
    ORPHAN = 6


RULES = tuple(rule.name.lower() for rule in Rule)  # Names by code
KINDS = tuple(kind.name.lower() for kind in EventKind)
STATUSES = tuple(status.name for status in Status)


class Rejection(IntEnum):
    """A reason to reject a row: its code and its text."""

    reason: str  # empty if nothing is wrong

    def __new__(cls, code: int, reason: str) -> Self:
        member = int.__new__(cls, code)
        member._value_, member.reason = code, reason
        return member


class OperationRejection(Rejection):
    """The reason why an operation is REJECTED, with the text of its outcome. The one that is set last stands."""

    NONE = 0, ""
    NULL_ID = 1, "the id is null"
    NO_KEYS = 2, "the operation has no watch keys"
    NULL_KEY = 3, "a watch key is null"
    NULL_CREATED = 4, "the created time is null"
    NULL_DEADLINE = 5, "the deadline or timeout is null"
    DEADLINE_BEFORE_CREATED = 6, "the deadline is before the created time"
    CREATED_AHEAD = 7, "the created time is too far ahead of processing time (max_future)"
    UNKNOWN_RULE = 8, f"the rule is not one of {', '.join(RULES)}"
    NO_NEED = (
        9,
        "the criterion's number is missing or out of range (quorum, count: a whole number from 1; sum_at_least: 0 or "
        "more)",
    )
    DEADLINE_OVERFLOWS = (10, "the deadline is too large: created + timeout does not fit into 64 bits of microseconds")
    CREATED_AT_NO_TIME = (
        11,
        "the created time is the first or last microsecond that a timestamp can hold, which stand for no time",
    )


class EventRejection(Rejection):
    NONE = 0, ""
    NULL_KEY = 1, "the key is null"
    NULL_TIME = 2, "the time is null"
    # With by_row the event is only counted: an operation under another rule may take it.
    BAD_VALUE = 3, "the value is negative or not a number, so it cannot be added up"
    TIME_AHEAD = 4, "the time is too far ahead of processing time (max_future)"
    UNKNOWN_KIND = 5, f"the kind is not one of {', '.join(KINDS)}"
    AT_NO_TIME = 6, "the time is the first or last microsecond that a timestamp can hold, which stand for no time"
    BAD_EXTENSION = 7, "the value of the extend (seconds) is null, negative, infinite or not a number"
    OPERATION_ALONE = (
        8,
        "the key is null: an event with only an operation_id needs `scope`, or operations with several keys",
    )
    # The event is only counted: an operation with this id and key may come.
    FOREIGN_KEY = 9, "its operation_id names a pending operation that does not have this key"


class EventMark(IntFlag):
    """Facts about an event that no operation has counted so far; the state stores the sum of an event's marks."""

    LATE = 1  # it arrived behind the watermark
    ENDED = 2  # an operation that would have counted it had ended
    NOT_TAKEN = 4  # an operation was pending at its time and did not count it
    NO_ADDEND = 8  # its value cannot be added up
    PAST = 16  # it came after an operation's deadline, by no more than the operation's wait


def among(rules: Int64s, which: tuple[Rule, ...]) -> Bools:
    """Return where ``rules`` has one of ``which``, (n,) bool."""
    return reduce(np.logical_or, (rules == rule for rule in which))
