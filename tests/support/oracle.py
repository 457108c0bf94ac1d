"""The reference oracle: what becomes of every row, worked out one operation at a time, as the documentation reads.

It shares no code with the engine. It has no micro-batches, no arrival, no state and no limit: all rows lie before it.
It uses dictionaries, loops and exact numbers (`int`, `Fraction`), and recounts everything at every instant, because
a reader has to be able to believe it. Times are int microseconds.

By hand: an operation waits for keys a and b from 10 to 20. Event a completes at 12, event b fails at 15.

    quorum(1)                COMPLETED at 12, matched 1, missing b: one key was enough, what comes later is ignored
    all_keys()               FAILED    at 15, matched 1, missing b: b can no longer complete
    all_keys(), no failure   EXPIRED   at 20, matched 1, missing b
    until_deadline()         COMPLETED at 20, matched 1, missing b: the deadline decides, for an event came

Readings, where the documentation leaves a choice:

 1. An event at the very time at which an operation is resolved still finds it pending. So it is no ORPHAN, and an
    `extend` at that time still lengthens the time for which the id is remembered. A later event does neither.
 2. A row of an id is DUPLICATE if it was created no later than the deadline of the row that stands, as that deadline
    was left by the extensions that the standing row received while it was pending. Whether the standing row was
    resolved before does not matter. A row created later stands, even where it arrives while the first is pending:
    under the law arrival decides nothing.
 3. Rows of one id are taken in the order of created, deadline and `row`, compared as text; rows that agree in all
    three are the same row, and either may stand. A DUPLICATE or REJECTED row receives no event and remembers nothing.
 4. An id is known by itself. A host that routes rows by key knows it together with its key.
 5. An event within the lookback may resolve an operation before its `created`: then `wait_ms` is negative. A criterion
    that needs no event (a sum of 0), and `level`, which reads values from whenever, hold at `created` at the
    earliest. A cancellation or failure within the lookback comes before that.
 6. An outcome is emitted when the watermark has reached `resolved_at` and `created`, an ORPHAN when it has reached
    the event's time + lookback, a REJECTED row at once.
 7. An extension is rounded to the nearest whole microsecond, and ends with int64.
 8. A null value completes its key and is matched; it adds 0 to a sum and reaches no level, as NaN reaches none.
 9. Values are never rounded, and add up exactly. A need or level is read in the type of the values: beside decimals
    and whole numbers a float is what it is written as, 0.8 is Decimal("0.8"); beside floats every need is the nearest
    float. All else is compared exactly, Decimal("2.5") with whole numbers for example. A number of keys or events is
    read as a float. Whether values are floats, and the needs of sums so limited, is the query's: `doubles` says it.
10. Of the deliveries of one event id that speak to an operation and count for it, the earliest counts, at one time the
    one with the smallest value (null is 0). Each delivery completes its own key and raises its own level.
11. A failure is looked at when a `fail` event comes: a quorum of three keys of two is FAILED with the first failure,
    and without any it is EXPIRED.
12. `matched` counts `complete` events only, those at `resolved_at` among them, whatever the status.
13. A `level` that is a mapping is read alone: a key that it lacks makes the operation REJECTED, whatever its `need`.
14. A control event that is not rejected finds an operation also where it changes nothing, for example an `extend` of 0.
15. Nothing is late here. Under `orphans="all"` an event that counts for no operation has a reason: rejected (the words
    of `why_event_rejected`), already_ended, not_taken, past_deadline or
    no_such_operation, the first that one of the operations on its
    key gives. An event that only operations under `sum_at_least` reject is not_taken by those.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal, NamedTuple

RULES = ("any_key", "all_keys", "quorum", "count", "sum_at_least", "level", "until_deadline")
KINDS = ("complete", "fail", "cancel", "force", "extend")
FIRST_US, LAST_US = -(2**63), 2**63 - 1
Row = dict[str, Any]

WHYS = ("already_ended", "not_taken", "past_deadline", "no_such_operation")
"""Why events count for no operation, the first that one of the operations on their key gives."""
BARE_OPERATION: Row = {"rule": None, "need": None, "level": None, "row": None}
BARE_EVENT: Row = {"kind": "complete", "value": None, "event_id": None, "operation_id": None}


class Fate(NamedTuple):
    """What became of an operation that stood."""

    outcome: Row
    remembered_until_us: int  # the deadline as it stood when the operation was resolved
    counted: set[int]  # places, among all events, of those that counted for it
    not_counted: dict[int, str]  # of the others in its time: why they did not count


class Progress(NamedTuple):
    """How far an operation has come."""

    holds: bool
    can_hold: bool  # with what its keys that have not failed may still bring
    matched: int
    missing_keys: list[str] | None


def decide(
    operations: Iterable[Mapping[str, Any]],
    events: Iterable[Mapping[str, Any]],
    *,
    watermark_us: int | None = None,
    criterion: Mapping[str, Any] | None = None,
    lookback_us: int = 0,
    orphans: Literal["none", "control", "all"] = "none",
    doubles: bool = False,
    whole_operations: bool = False,
    evidence: Evidence | None = None,
) -> list[Row]:
    """Give the outcomes of all operations in their order, then the ORPHAN events if `orphans` asks for them.

    An operation has id, keys, created, deadline, rule, need, level (one number, or key -> number) and row, its
    payload. `criterion` (rule, need) holds for operations without a rule of their own. An event has key, time, and
    perhaps kind, value, event_id and operation_id. Without `watermark_us` everything is decided; with it, only what a
    stream has emitted once its watermark stands there. `orphans` is "none", "control" or "all". `doubles` says
    that values are compared as doubles, which limits the needs of sums. `whole_operations` says that a control event
    may name an operation without a key. With `evidence` outcomes have `event` and `events`.
    """
    given = list(events)
    heard = [{**BARE_EVENT, **event, "place": place} for place, event in enumerate(given)]
    for event in heard:
        event["kind"] = "complete" if event["kind"] is None else event["kind"]
    sound = sorted(
        (event for event in heard if why_event_rejected(event, None, whole_operations) is None),
        key=lambda event: event["time"],
    )
    on_key: dict[Any, list[Row]] = {}
    for event in sound:
        # Where the key is null, the operation that the event names is its place.
        place = event["key"] if event["key"] is not None else (event["operation_id"],)
        on_key.setdefault(place, []).append(event)
    value_types = {type(event["value"]) for event in heard}

    rows = [{**BARE_OPERATION, **(criterion or {}), **operation} for operation in operations]
    outcomes: dict[int, Row] = {}
    rows_of_id: dict[Any, list[int]] = {}
    for place, op in enumerate(rows):
        why = why_operation_rejected(op, doubles)
        if why is None:
            rows_of_id.setdefault(op["id"], []).append(place)
        else:
            outcomes[place] = _outcome(op, "REJECTED", None, why=why)

    counted: set[int] = set()
    not_counted: dict[int, str] = {}
    for places in rows_of_id.values():
        remembered_until_us: int | None = None
        for place in sorted(places, key=lambda at: _precedence(rows[at])):
            op = rows[place]
            if remembered_until_us is not None and op["created"] <= remembered_until_us:
                outcomes[place] = _outcome(op, "DUPLICATE", op["created"], why="duplicate")
                continue
            fate = _fate(op, _on_its_keys(op, on_key), lookback_us, value_types, evidence)
            outcomes[place] = fate.outcome
            remembered_until_us = fate.remembered_until_us
            counted |= fate.counted
            for at, reason in fate.not_counted.items():
                not_counted[at] = min(reason, not_counted.get(at, reason), key=WHYS.index)

    emitted = [outcomes[place] for place, op in enumerate(rows) if _is_out(outcomes[place], op, watermark_us)]
    everybody = (criterion or {}).get("rule")
    for event in heard if orphans != "none" else []:
        why = why_event_rejected(event, everybody, whole_operations)
        if why is not None:
            if orphans == "all":
                emitted.append(_orphan(given[event["place"]], event, why, evidence))
            continue
        if event["place"] in counted or (event["kind"] == "complete" and orphans != "all"):
            continue
        if watermark_us is None or event["time"] + lookback_us <= watermark_us:
            reason = not_counted.get(event["place"], "no_such_operation")
            told = reason if orphans == "all" else "orphan"
            emitted.append(_orphan(given[event["place"]], event, told, evidence))
    return emitted


# --- one operation --------------------------------------------------------------------------------


def _fate(
    op: Row, on_its_keys: Sequence[Row], lookback_us: int, value_types: set[type], evidence: Evidence | None
) -> Fate:
    """Go through the operation's time, instant by instant; events on its keys that name it or nobody, by time."""
    created, deadline = op["created"], op["deadline"]
    begins = created - lookback_us
    speaking = [event for event in on_its_keys if why_event_rejected(event, op["rule"], True) is None]
    history = _history(op, [event for event in speaking if event["kind"] == "complete"], begins)
    counted: list[Row] = []
    failed: set[str] = set()

    def progress() -> Progress:
        return _progress(op, counted, history, failed, value_types)

    needs_no_event_of_its_own = op["rule"] == "level" or progress().holds
    controls: list[Row] = []
    status, resolved, may_hold = "", 0, False
    for now in sorted({created, *(event["time"] for event in speaking if event["time"] >= begins)}):
        if now > deadline:
            break
        here = [event for event in speaking if event["time"] == now >= begins]
        controls += [event for event in here if event["kind"] != "complete"]
        kinds = {event["kind"] for event in here}
        deadline = max(deadline, *(_extended_to(event) for event in here if event["kind"] == "extend"), now)
        counted += [event for event in here if event["kind"] == "complete" and event["key"] not in failed]
        for event in (event for event in here if event["kind"] == "fail"):
            failed |= {event["key"]} if event["key"] is not None else set(op["keys"])
        may_hold = now >= created or not needs_no_event_of_its_own
        if op["rule"] == "until_deadline":
            may_hold = now == deadline  # as it stands with what happens now
        if (may_hold and progress().holds) or "force" in kinds:
            status = "COMPLETED"
        elif "fail" in kinds and not progress().can_hold:
            status = "FAILED"
        elif "cancel" in kinds:
            status = "CANCELLED"
        if status:
            resolved = now
            break
    if not status:
        may_hold = op["rule"] == "until_deadline" and bool(counted)
        status, resolved = "COMPLETED" if may_hold else "EXPIRED", deadline
    why = {"FAILED": "failed", "CANCELLED": "cancelled"}.get(status)
    outcome = _outcome(op, status, resolved, progress().matched, progress().missing_keys, why)
    if evidence is not None:
        ordered = evidence.in_order(op, counted)
        once = _each_once(ordered) if op["rule"] == "sum_at_least" else evidence.firsts(ordered)
        outcome["events"] = evidence.listed(op, once)
        by_criterion = status == "COMPLETED" and may_hold and progress().holds
        taken = once if op["rule"] in ("count", "sum_at_least") else counted
        kind = None if by_criterion else {"FAILED": "fail", "CANCELLED": "cancel", "COMPLETED": "force"}.get(status)
        decided = evidence.deciding(
            op,
            taken if by_criterion else controls,
            resolved,
            kind,
            lambda so_far: _progress(op, so_far, history, failed, value_types).holds,
        )
        outcome["event"] = None if status == "EXPIRED" else decided
        if evidence.largest or (by_criterion and op["rule"] == "until_deadline"):
            outcome["event"] = next(iter(outcome["events"]), None)
    told = {event["place"] for event in [*counted, *controls]}
    others = [event for event in on_its_keys if begins <= event["time"] and event["place"] not in told]
    whys = {event["place"]: _why_not_counted(event["time"], resolved, deadline, created) for event in others}
    return Fate(outcome, deadline, told, whys)


def _why_not_counted(time: int, resolved: int, deadline: int, created: int) -> str:
    if time <= resolved:
        return "not_taken"
    if time <= deadline:
        return "already_ended"
    return "past_deadline" if time <= deadline + (deadline - created) else "no_such_operation"


def _on_its_keys(op: Row, on_key: Mapping[Any, Sequence[Row]]) -> list[Row]:
    """Events on the operation's keys that name it or nobody, in the order of time."""
    events = [event for place in {*op["keys"], (op["id"],)} for event in on_key.get(place, ())]
    return sorted(
        (event for event in events if event["operation_id"] in (None, op["id"])), key=lambda event: event["time"]
    )


def _extended_to(event: Row) -> int:
    """Where an `extend` moves a deadline that lies before."""
    return min(LAST_US, int(event["time"]) + round(Fraction(event["value"]) * 1_000_000))


# --- criteria -------------------------------------------------------------------------------------


def _progress(
    op: Row, counted: Sequence[Row], history: Sequence[Row], failed: set[str], value_types: set[type]
) -> Progress:
    """Recount everything: `counted` are the complete events that counted so far, `history` those from long before."""
    keys, rule = sorted(set(op["keys"])), op["rule"]
    events = _each_once(counted)
    open_keys = {key for key in keys if key not in failed}
    if rule in ("count", "sum_at_least"):
        got = len(events) if rule == "count" else _sum(events)
        holds = got >= _need(op["need"], value_types)
        return Progress(holds, holds or bool(open_keys), len(events), None)
    if rule == "level":
        done = {key for key in keys if _has_reached_its_level(op, key, [*history, *counted], value_types)}
    else:
        done = {event["key"] for event in counted}
    wanted = {"any_key": 1, "until_deadline": 1, "quorum": op["need"]}.get(rule, len(keys))
    missing = [key for key in keys if key not in done]
    return Progress(len(done) >= wanted, len(done | open_keys) >= wanted, len(events), missing)


def _each_once(counted: Sequence[Row]) -> list[Row]:
    """Leave of each event the delivery that counts."""
    first: dict[Any, Row] = {}
    for event in counted:
        # Without an id every delivery is an event of its own.
        name = ("place", event["place"]) if event["event_id"] is None else ("id", event["event_id"])
        known = first.get(name)
        if known is None or (event["time"], _addend(event)) < (known["time"], _addend(known)):
            first[name] = event
    return list(first.values())


def _sum(events: Sequence[Row]) -> Fraction | float:
    addends = [_addend(event) for event in events]
    if math.inf in addends:
        return math.inf
    return sum((Fraction(addend) for addend in addends), Fraction(0))


def _addend(event: Row) -> Fraction | float:
    """What an event adds to a sum; other rules than a sum may meet a NaN, and do not mind."""
    return Fraction(0) if is_no_number(event["value"]) else _exact(event["value"])


def _history(op: Row, completions: Sequence[Row], begins: int) -> list[Row]:
    """The events from before the time at which they begin to count, in the order of time; only a level reads them.

    Of an operation that came so late that its deadline is among them, only each key's first event of the largest value
    is still known, and counts if it is not after the deadline.
    """
    earlier = [event for event in completions if event["time"] < begins]
    if begins <= op["deadline"]:
        return earlier
    numbers = [event for event in earlier if not is_no_number(event["value"])]
    of_keys = ([event for event in numbers if event["key"] == key] for key in set(op["keys"]))
    known = [max(events, key=lambda event: _exact(event["value"])) for events in of_keys if events]
    return [event for event in known if event["time"] <= op["deadline"]]


def _has_reached_its_level(op: Row, key: str, events: Sequence[Row], value_types: set[type]) -> bool:
    level = _need(level_of(op, key), value_types)
    values = [event["value"] for event in events if event["key"] == key]
    return any(_exact(value) >= level for value in values if not is_no_number(value))


# --- numbers --------------------------------------------------------------------------------------


def _exact(value: Any) -> Fraction | float:
    """The number itself, as a Fraction; plus or minus infinity as it is."""
    if is_infinite(value):
        return math.inf if value > 0 else -math.inf
    return Fraction(value)


def _need(need: Any, value_types: set[type]) -> Fraction | float:
    """A need or level in the type of the values that it is compared with."""
    if float in value_types:
        return _exact(float(need))
    if isinstance(need, float):
        return _exact(Decimal(repr(need)))
    return _exact(need)


# --- rows -----------------------------------------------------------------------------------------


def _precedence(op: Row) -> tuple[int, int, str]:
    """Of two rows of one id the one that sorts first stands."""
    return op["created"], op["deadline"], str(op["row"])


def _is_out(outcome: Row, op: Row, watermark_us: int | None) -> bool:
    if watermark_us is None or outcome["status"] == "REJECTED":
        return True
    return bool(max(outcome["resolved_at"], op["created"]) <= watermark_us)


def _outcome(
    op: Row,
    status: str,
    at_us: int | None,
    matched: int = 0,
    missing_keys: list[str] | None = None,
    why: str | None = None,
) -> Row:
    return {
        "row": op["row"],
        "id": op.get("id"),
        "status": status,
        "resolved_at": at_us,
        "wait_ms": None if at_us is None else (at_us - op["created"]) // 1000,
        "matched": matched,
        "missing_keys": missing_keys,
        "reason_kind": why,
    }


def _orphan(row: Mapping[str, Any], event: Row, why: str, evidence: Evidence | None) -> Row:
    unknown = {"row": row, "id": event["operation_id"], "created": event["time"]}
    told = {} if evidence is None else {"event": evidence.shown(event)}
    return {**_outcome(unknown, "ORPHAN", event["time"], why=why), "wait_ms": None, **told}


# --- which rows are rejected, and why: semantics 2.3 -----------------------------------------------------------------


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
    return value is None or bool(value != value)


def _is_whole_from_one(need: Any) -> bool:
    return not is_no_number(need) and not is_infinite(need) and need >= 1 and float(need).is_integer()


def _is_a_sum(need: Any, doubles: bool) -> bool:
    if is_no_number(need) or is_infinite(need) or need < 0:
        return False
    return not doubles or need == 0 or 2.0**-43 <= need <= 2.0**62


def is_infinite(value: Any) -> bool:
    return value in (math.inf, -math.inf)


# --- evidence --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """What outcomes carry of events: columns by name, and at most so many events."""

    columns: Sequence[str] = ()
    most: int = 100
    largest: bool = False

    def in_order(self, op: Row, events: Sequence[Row]) -> list[Row]:
        """The events as evidence takes them."""
        return sorted(events, key=lambda event: self._rank(op, event))

    def deciding(
        self, op: Row, taken: Sequence[Row], resolved: int, control: str | None, holds: Callable[[list[Row]], bool]
    ) -> Row | None:
        """The event at the resolution with which the criterion was met, or the first control event of that kind."""
        here = self.in_order(op, [event for event in taken if event["time"] == resolved])
        if control is not None:
            return next((self.shown(event) for event in here if event["kind"] == control), None)
        so_far = [event for event in taken if event["time"] < resolved]
        if holds(so_far):
            return None  # it held before: at the created time no event decides
        for event in here:
            so_far.append(event)
            if holds(so_far):
                return self.shown(event)
        return None

    def firsts(self, ordered: Sequence[Row]) -> list[Row]:
        """The events in order without those that were delivered before."""
        seen: set[Any] = set()
        kept = []
        for event in ordered:
            if event["event_id"] is None or event["event_id"] not in seen:
                kept.append(event)
            seen.add(event["event_id"])
        return kept

    def listed(self, op: Row, once: Sequence[Row]) -> list[Row]:
        """The first events that counted, or the largest."""
        ordered = self.in_order(op, once)
        if self.largest:
            # Sorting is stable: equals stay in their order.
            ordered = sorted(ordered, key=lambda event: _size(event["value"]), reverse=True)
        return [self.shown(event) for event in ordered[: self.most]]

    def shown(self, event: Row) -> Row:
        """An event as an outcome has it."""
        names = ("key", "time", "value", "event_id", *self.columns)
        return {name: event.get(name) for name in names}

    def _rank(self, op: Row, event: Row) -> tuple[Any, ...]:
        key = -1 if event["key"] is None else op["keys"].index(event["key"])
        content = [event.get(name) for name in ("value", *self.columns)]
        return event["time"], key, _comparable(event["event_id"]), *map(_comparable, content)


def _size(value: Any) -> tuple[bool, Any]:
    """Null and NaN below every number."""
    is_number = value is not None and value == value
    return is_number, value if is_number else 0


def _comparable(value: Any) -> tuple[bool, Any]:
    """Null before everything; a float by its bits."""
    if isinstance(value, float):
        value = struct.unpack(">q", struct.pack(">d", value))[0]
    if isinstance(value, Decimal):
        value = int(value.scaleb(9))
    return value is not None, 0 if value is None else value
