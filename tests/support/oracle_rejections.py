"""Which rows the oracle rejects, and why: semantics 2.3, shared with nothing but the oracle."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

RULES = ("any_key", "all_keys", "quorum", "count", "sum_at_least", "level", "until_deadline")
KINDS = ("complete", "fail", "cancel", "force", "extend")
FIRST_US, LAST_US = -(2**63), 2**63 - 1


def why_operation_rejected(op: Mapping[str, Any], doubles: bool = False) -> str | None:
    """Tell why an operation is REJECTED; None if it is sound."""
    keys, created, deadline, rule, need = (op.get(name) for name in ("keys", "created", "deadline", "rule", "need"))
    if op.get("id") is None:
        return "null_id"
    if not keys:
        return "null_keys"
    if any(key is None for key in keys):
        return "null_key"
    if created is None:
        return "null_created"
    if deadline is None:
        return "null_deadline"
    if created in (FIRST_US, LAST_US):
        return "no_time"
    if deadline < created:
        return "deadline_before_created"
    if rule not in RULES:
        return "unknown_rule"
    if rule in ("quorum", "count") and not _is_whole_from_one(need):
        return "bad_need"
    if rule == "sum_at_least" and not _is_a_sum(need, doubles):
        return "bad_need"
    if rule == "level" and any(is_no_number(level_of(op, key)) for key in keys):
        return "bad_need"
    return None


def why_event_rejected(event: Mapping[str, Any], rule: str | None = None, whole_operations: bool = False) -> str | None:
    """Tell why an event is rejected, by everybody or by operations under `rule`; None if it is sound.

    `whole_operations`: operations have several keys, or keys are scoped, so an operation id needs no key.
    """
    kind = event.get("kind")
    value: Any = event.get("value")
    if event.get("key") is None:
        alone = event.get("operation_id") is not None and kind in ("fail", "cancel", "force", "extend")
        if not alone:
            return "null_key"
        if not whole_operations:
            return "operation_alone"
    if event.get("time") is None:
        return "null_time"
    if event["time"] in (FIRST_US, LAST_US):
        return "no_time"
    if kind is not None and kind not in KINDS:
        return "unknown_kind"
    if kind == "extend" and (is_no_number(value) or is_infinite(value) or value < 0):
        return "bad_extension"
    summed = rule == "sum_at_least" and kind in (None, "complete") and value is not None
    if summed and (is_no_number(value) or value < 0):
        return "bad_value"
    return None


def level_of(op: Mapping[str, Any], key: str) -> Any:
    """The level that the operation needs on a key."""
    level = op.get("level")
    if isinstance(level, Mapping):
        return level.get(key)
    return op.get("need") if level is None else level


def is_no_number(value: Any) -> bool:
    """Null or NaN."""
    return value is None or bool(value != value)


def _is_whole_from_one(need: Any) -> bool:
    return not is_no_number(need) and not is_infinite(need) and need >= 1 and float(need).is_integer()


def _is_a_sum(need: Any, doubles: bool) -> bool:
    if is_no_number(need) or is_infinite(need) or need < 0:
        return False
    return not doubles or need == 0 or 2.0**-43 <= need <= 2.0**62


def is_infinite(value: Any) -> bool:
    """Plus or minus infinity."""
    return value in (math.inf, -math.inf)
