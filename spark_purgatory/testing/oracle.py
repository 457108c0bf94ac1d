"""The reference oracle: what becomes of every operation, decided row by row from a whole set of rows.

It is written to be believed, not to be fast: dictionaries, loops and whole numbers, and nothing of the engine
that it judges. An operation is a dictionary of id, keys, created, deadline, rule, need, level (one number, or
key -> number) and row, what is in it: of an id's rows equal in both times the smaller stands. An event is one of
key, time, kind, value, event_id and operation_id. Times are in us.

Order `o` waits for `a` and `b` from 10 to 20; `a` completes at 12, `b` fails at 15. A quorum of one would be
COMPLETED at 12; all keys are FAILED at 15, matched 1, missing `b`; without the failure, EXPIRED at 20.
"""

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

RULES = ("any_key", "all_keys", "quorum", "count", "sum_at_least", "level")
NUMBERED = ("quorum", "count", "sum_at_least")  # the rules that read `need`
KINDS = ("complete", "fail", "cancel", "force", "extend")
BARE_EVENT = {"kind": "complete", "value": None, "event_id": None, "operation_id": None}
Row = dict[str, Any]


def decide(
    operations: Iterable[Row],
    events: Iterable[Row],
    *,
    watermark_us: int | None = None,
    criterion: Row | None = None,
    lookback_us: int = 0,
    orphans: bool = False,
) -> list[Row]:
    """Give every operation its outcome as `emit="final"` would; with a watermark, pending ones are left out.
    `criterion` is the rule, need, level of operations that bring none; `orphans` adds unheard control events.
    """
    ruled = [{**(criterion or {}), **operation} for operation in operations]
    judged = [(why_operation_rejected(op), op) for op in ruled]
    outcomes = [_outcome(op, "REJECTED", None, why=why) for why, op in judged if why]
    sound = [op for why, op in judged if not why]
    by_key: dict[str, list[Row]] = {}
    for event in (event for event in events if not why_event_rejected(event)):
        given = {name: value for name, value in event.items() if value is not None}
        by_key.setdefault(event["key"], []).append({**BARE_EVENT, "row": event, **given})
    standing: dict[Any, Row] = {}
    answered: set[int] = set()  # identities of the control events that found a pending operation
    for op in sorted(sound, key=lambda op: (op["created"], op["deadline"], repr(op.get("row")))):
        if op["id"] in standing and op["created"] <= standing[op["id"]]["deadline"]:
            outcome = _outcome(op, "DUPLICATE", op["created"])
        else:
            standing[op["id"]] = op
            heard = [event for key in set(op["keys"]) for event in by_key.get(key, [])]
            outcome = _fate(op, heard, lookback_us, answered)
        # Settled before its own creation (lookback), it is held till then: an earlier row of its id may come.
        if watermark_us is None or max(outcome["resolved_at"], op["created"]) <= watermark_us:
            outcomes.append(outcome)
    for event in (event for heard in by_key.values() for event in heard if orphans):
        released = watermark_us is None or event["time"] + lookback_us <= watermark_us
        if event["kind"] != "complete" and id(event) not in answered and released:
            outcomes.append(_outcome({**event, "id": event["operation_id"]}, "ORPHAN", event["time"]))
    return outcomes


def why_operation_rejected(op: Row) -> str | None:
    """Name what makes the operation REJECTED, or give None for a sound one."""
    for field in ("id", "keys", "created", "deadline"):
        if op.get(field) is None:
            return f"null_{field}"
    rule = op.get("rule")
    needs = _levels(op).values() if rule == "level" else [op.get("need")] if rule in NUMBERED else []
    checks = {
        "null_keys": len(op["keys"]) == 0,
        "null_key": None in op["keys"],
        "deadline_before_created": op["deadline"] < op["created"],
        "unknown_rule": rule not in RULES,
        "bad_need": any(x is None or math.isnan(x) or (rule == "sum_at_least" and x < 0) for x in needs),
    }
    return next((why for why, holds in checks.items() if holds), None)


def why_event_rejected(event: Row, rule: str | None = None) -> str | None:
    """Name what makes the event REJECTED, for operations under `rule`, or give None for a sound one."""
    kind, value = event.get("kind") or "complete", event.get("value")
    checks = {
        "null_key": event.get("key") is None,
        "null_time": event.get("time") is None,
        "unknown_kind": kind not in KINDS,
        "bad_value": (rule, kind) == ("sum_at_least", "complete") and value is not None and not value >= 0,
    }
    return next((why for why, holds in checks.items() if holds), None)


def _fate(op: Row, heard: list[Row], lookback_us: int, answered: set[int]) -> Row:
    """Walk through the distinct times of the events on the operation's keys until one of them settles it."""
    rule, created, start, deadline = op["rule"], op["created"], op["created"] - lookback_us, op["deadline"]
    # What may hold without an event (a level reached earlier, a need of nothing) is first asked at `created`.
    asked_from = created if rule == "level" or (rule in NUMBERED and op["need"] <= 0) else start
    heard = [e for e in heard if e["operation_id"] in (None, op["id"]) and not why_event_rejected(e, rule)]
    taken = [e for e in heard if e["time"] < start and e["kind"] == "complete"]  # levels count from whenever
    counted, seen, met, failed = [], set(), set(), set()
    for t in sorted({created} | {e["time"] for e in heard if e["time"] >= start}):
        if t > deadline:
            break
        now = {kind: [e for e in heard if e["time"] == t and e["kind"] == kind] for kind in KINDS}
        answered.update(id(e) for kind in KINDS[1:] for e in now[kind])
        for event in sorted(now["complete"], key=lambda e: e["value"] or 0):
            if event["key"] not in failed:
                taken.append(event)
                met.add(event["key"])
                counted += [event] if event["event_id"] is None or event["event_id"] not in seen else []
                seen.add(event["event_id"])
        failed |= {e["key"] for e in now["fail"]}
        holds, hopeless, missing = _criterion(op, counted, met, taken, failed)
        if (holds and t >= asked_from) or now["force"]:
            return _outcome(op, "COMPLETED", t, len(counted), missing)
        if hopeless and now["fail"]:
            return _outcome(op, "FAILED", t, len(counted), missing)
        if now["cancel"]:
            return _outcome(op, "CANCELLED", t, len(counted), missing)
        for seconds in (e["value"] for e in now["extend"] if math.isfinite(e["value"] or 0)):
            deadline = max(deadline, min(t + round(Fraction(seconds or 0) * 1_000_000), 2**63 - 1))
    return _outcome(op, "EXPIRED", deadline, len(counted), missing)


def _criterion(
    op: Row, counted: list[Row], met: set[str], taken: list[Row], failed: set[str]
) -> tuple[bool, bool, Any]:
    """Say whether the criterion holds, whether (if not) a failure has ended it, and which keys it misses."""
    rule, keys, need, levels = op["rule"], set(op["keys"]), op.get("need") or 0, _levels(op)
    high = [e for e in taken if rule == "level" and e["value"] is not None and e["value"] >= levels[e["key"]]]
    satisfied = {e["key"] for e in high} if rule == "level" else met
    values = [e["value"] or 0 for e in counted] if rule == "sum_at_least" else []
    total = math.inf if math.inf in values else sum(map(Fraction, values))  # exact, whatever the order
    lost, all_failed = failed - satisfied, failed == keys
    holds, hopeless = {
        "any_key": (len(satisfied) >= 1, lost == keys),
        "all_keys": (satisfied == keys, len(lost) > 0),
        "level": (satisfied == keys, len(lost) > 0),
        "quorum": (len(satisfied) >= need, len(keys) - len(lost) < need),
        "count": (len(counted) >= need, all_failed and need > 0),
        "sum_at_least": (total >= need, all_failed and need > 0),
    }[rule]
    return holds, hopeless, None if rule in ("count", "sum_at_least") else sorted(keys - satisfied)


def _levels(op: Row) -> dict[str, Any]:
    level = op.get("need") if op.get("level") is None else op["level"]
    return {key: level.get(key) if isinstance(level, Mapping) else level for key in op["keys"]}


def _outcome(op: Row, status: str, at: Any, matched: int = 0, missing: Any = None, why: str = "") -> Row:
    wait_ms = None if at is None or op.get("created") is None else (at - op["created"]) // 1000
    reason = None if status in ("COMPLETED", "EXPIRED") else why or status.lower()
    outcome = {"row": op.get("row"), "id": op.get("id"), "status": status, "resolved_at": at}
    return {**outcome, "wait_ms": wait_ms, "matched": matched, "missing_keys": missing, "reason_kind": reason}
