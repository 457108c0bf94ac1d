"""The oracle and the engine, under both settings of ``emit``, decide each operation of the table as worked by hand."""

from __future__ import annotations

import re
from typing import Any

import pytest

from spark_purgatory.core.spec.criteria import ByRow
from spark_purgatory.core.spec.engine_spec import EngineSpec
from tests.law.cases import CASES, DUPLICATES
from tests.support.engine_driver import END_MS, Shards, microseconds
from tests.support.oracle import decide

MS = 1000
EVENT = re.compile(
    r"(?:(?P<kind>\w+):)?(?P<key>[a-z])(?P<time>[\d.]+)(?:=(?P<value>[^#@]+))?(?:#(?P<id>\w))?(?:@(?P<op>\w))?"
)
CASE = re.compile(r"(\w+) (\w+)(?:\((.*)\))?(?:, lookback (\d+))?: (.*) ?-> (\w+) ([\d.]+) (\d+) (\S+)")
Row = dict[str, Any]


def lines(table: str) -> list[str]:
    return [line for line in table.strip().splitlines() if not line.startswith("#")]


def events_of(words: str) -> list[Row]:
    events = []
    for word in words.split():
        found = EVENT.fullmatch(word)
        assert found is not None, word
        kind, value = found["kind"] or "complete", None if found["value"] is None else float(found["value"])
        if kind == "extend" and value is not None:
            value /= 1000
        of = {"key": found["key"], "time": round(float(found["time"]) * MS), "kind": kind, "value": value}
        events.append({**of, "event_id": found["id"], "operation_id": found["op"]})
    return events


def operation(keys: str, rule: str = "any_key", need: str | None = None, **others: Any) -> Row:
    levels = dict(pair.split("=") for pair in need.split(",")) if need is not None and "=" in need else None
    level = None if levels is None else {key: float(value) for key, value in levels.items()}
    plain = {"id": "o", "keys": list(keys), "created": 10 * MS, "deadline": 20 * MS, "rule": rule, "row": "first"}
    return {**plain, "need": None if need is None or level else float(need), "level": level, **others}


def outcomes(who: str, operations: list[Row], events: list[Row], lookback_us: int = 0) -> list[Row]:
    """What the oracle or the engine gives, all in one micro-batch; times in ms."""
    if who == "oracle":
        found = decide(operations, events, lookback_us=lookback_us, doubles=True, whole_operations=True)
    else:
        spec = EngineSpec(
            ByRow("rule", "need", "levels"),
            final=who == "final",
            lookback_us=lookback_us,
            operation_ids=True,
            event_ids=True,
        )
        found = Shards(spec, several=True).run([(operations, events, 0), ([], [], END_MS)])
    at = {row["row"]: row["resolved_at"] for row in found}
    return [{**row, "at": at[row["row"]] if who == "oracle" else microseconds(at[row["row"]])} for row in found]


who = pytest.mark.parametrize("who", ["oracle", "early", "final"])


@who
@pytest.mark.parametrize("case", lines(CASES))
def test_an_operation_is_decided_as_worked_by_hand(case: str, who: str) -> None:
    found = CASE.fullmatch(case)
    assert found is not None, case
    keys, rule, need, lookback, words, *fate = found.groups()
    [outcome] = outcomes(who, [operation(keys, rule, need)], events_of(words), int(lookback or 0) * MS)
    missing = outcome["missing_keys"]
    told = [outcome["status"], f"{outcome['at'] / MS:g}", str(outcome["matched"])]
    assert [*told, "null" if missing is None else "".join(sorted(missing)) or "-"] == fate


@who
@pytest.mark.parametrize("case", lines(DUPLICATES))
def test_an_id_is_a_duplicate_until_the_deadline_as_extensions_left_it(case: str, who: str) -> None:
    words, last_ms = case.split("->")
    for created_us in (int(last_ms) * MS, int(last_ms) * MS + 1):
        again = operation("a", row="again", created=created_us, deadline=created_us + 50 * MS)
        for rows in ([operation("a"), again], [again, operation("a")]):
            statuses = {row["row"]: row["status"] for row in outcomes(who, rows, events_of(words))}
            assert statuses["first"] != "DUPLICATE"
            assert (statuses["again"] == "DUPLICATE") == (created_us == int(last_ms) * MS)
