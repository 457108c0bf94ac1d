"""What rules, kinds of events, statuses and rejections are called, and the code of each in arrays and in the state.

Codes are stored in checkpoints: add at the end, never renumber.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag


class Rule(IntEnum):
    """When an operation is complete."""

    ANY_KEY = 0
    ALL_KEYS = 1
    QUORUM = 2
    COUNT = 3
    SUM_AT_LEAST = 4
    LEVEL = 5


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


class OperationRejection(IntEnum):
    """Why an operation is REJECTED; `reason` is the text of its outcome. Where several hold, the last set stands."""

    NONE = 0
    NULL_ID = 1
    NO_KEYS = 2
    NULL_KEY = 3
    NULL_CREATED = 4
    NULL_DEADLINE = 5
    DEADLINE_BEFORE_CREATED = 6
    CREATED_AHEAD = 7
    UNKNOWN_RULE = 8
    NO_NEED = 9
    DEADLINE_OVERFLOWS = 10
    CREATED_AT_NO_TIME = 11

    @property
    def reason(self) -> str:
        """The text of the outcome's ``reason``, empty for `NONE`."""
        return _OPERATION_REASONS[self]


class EventRejection(IntEnum):
    """Why an event is rejected and counted."""

    NONE = 0
    NULL_KEY = 1
    NULL_TIME = 2
    BAD_VALUE = 3
    TIME_AHEAD = 4
    UNKNOWN_KIND = 5
    AT_NO_TIME = 6
    BAD_EXTENSION = 7
    OPERATION_ALONE = 8

    @property
    def reason(self) -> str:
        """The reason as a text, empty for `NONE`."""
        return _EVENT_REASONS[self]


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


RULES = tuple(rule.name.lower() for rule in Rule)
"""Names of the rules, by code."""
KINDS = tuple(kind.name.lower() for kind in EventKind)
"""Names of the kinds of events, by code."""
STATUSES = tuple(status.name for status in Status)
"""Names of the statuses, by code."""

_OPERATION_REASONS = {
    OperationRejection.NONE: "",
    OperationRejection.NULL_ID: "the id is null",
    OperationRejection.NO_KEYS: "the operation has no watch keys",
    OperationRejection.NULL_KEY: "a watch key is null",
    OperationRejection.NULL_CREATED: "the created time is null",
    OperationRejection.NULL_DEADLINE: "the deadline or time-out is null",
    OperationRejection.DEADLINE_BEFORE_CREATED: "the deadline is before the created time",
    OperationRejection.CREATED_AHEAD: "the created time is too far ahead of processing time (max_future)",
    OperationRejection.UNKNOWN_RULE: f"the rule is none of {', '.join(RULES)}",
    OperationRejection.NO_NEED: (
        "the number that the rule needs is missing or out of range: a whole number of at least 1 of keys or events, a "
        "sum of at least 0 within the range of sums"
    ),
    OperationRejection.DEADLINE_OVERFLOWS: (
        "the deadline is past the end of time: created + time-out does not fit in 64 bits of microseconds"
    ),
    OperationRejection.CREATED_AT_NO_TIME: (
        "the created time is the first or last microsecond that a timestamp can hold, which stand for no time"
    ),
}
_EVENT_REASONS = {
    EventRejection.NONE: "",
    EventRejection.NULL_KEY: "the key is null",
    EventRejection.NULL_TIME: "the time is null",
    EventRejection.BAD_VALUE: "the value is not a number, or negative, where values add up",
    EventRejection.TIME_AHEAD: "the time is too far ahead of processing time (max_future)",
    EventRejection.UNKNOWN_KIND: f"the kind is none of {', '.join(KINDS)}",
    EventRejection.BAD_EXTENSION: "the seconds of the extend are null, negative, infinite or not a number",
    EventRejection.OPERATION_ALONE: (
        "the key is null, and without scope operation_id alone reaches no operation with one key"
    ),
    EventRejection.AT_NO_TIME: (
        "the time is the first or last microsecond that a timestamp can hold, which stand for no time"
    ),
}
