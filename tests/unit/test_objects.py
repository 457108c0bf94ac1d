"""What people see of objects in a shell and in a notebook: what was set, in the words in which it is written."""

from __future__ import annotations

import inspect
import pydoc
from dataclasses import replace
from typing import Any

import pytest

from spark_purgatory import Completions, Operations, Purgatory, RecordAccumulator, criteria
from spark_purgatory.config import SinkOptions

ORDERS = {"id": "order_id", "keys": "order_id", "created": "ordered_at", "watermark": "10 minutes"}
NAMES = {each.__name__: each for each in (Completions, Operations, Purgatory, RecordAccumulator)} | {
    "criteria": criteria
}


def purgatory(**changes: Any) -> Purgatory:
    made = Purgatory(
        operations=Operations(**ORDERS, timeout="30 minutes"),
        completions=Completions(key="order_id", time="paid_at", value="amount", columns=["method"], watermark="1 hour"),
        criterion=criteria.any_key(),
    )
    return replace(made, **changes)


@pytest.mark.parametrize(
    "criterion",
    [
        *(criteria.any_key(), criteria.all_keys(), criteria.quorum(2), criteria.count(3), criteria.until_deadline()),
        *(criteria.sum_at_least(0.8), criteria.level(-5), criteria.by_row(need="acks")),
    ],
)
def test_an_object_is_shown_as_it_is_written_and_can_be_pasted(criterion: Any) -> None:
    given = purgatory(criterion=criterion, shards=9, emit="final")
    assert eval(repr(given), {**NAMES}) == given
    assert "max_future" not in repr(given) and max(map(len, repr(given).splitlines())) <= 88
    sink = RecordAccumulator(path="/lake/outcomes", linger="1 minute")
    assert repr(sink) == "RecordAccumulator(path='/lake/outcomes', linger='1 minute')"
    assert eval(repr(sink), {**NAMES}) == sink


@pytest.mark.parametrize("shown", [Purgatory, Operations, Completions, RecordAccumulator, SinkOptions])
def test_help_begins_with_bare_types(shown: type) -> None:
    text = f"{shown.__name__}{inspect.signature(shown)}"
    assert "Annotated" not in text and len(text) < 1000
    assert text.split("\n")[0] in pydoc.plain(pydoc.render_doc(shown))
    given = {name: each.default for name, each in inspect.signature(shown).parameters.items()}
    assert {"operations", "id", "key", "path"} & given.keys()
    assert "emit: Literal['early', 'final'] = 'early'" in str(inspect.signature(Purgatory)).replace('"', "'")


def test_the_rules_are_explained() -> None:
    lines = purgatory().explain().splitlines()
    text = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= 88
    assert repr(purgatory().explain()).splitlines() == lines, "as a shell shows it"
    for part in (
        "waits each `order_id` waits 30 minutes from `ordered_at` for events on `order_id`.",
        "completes at the first event on any of its keys (criteria.any_key())",
        "counts an event from `ordered_at` to the deadline, both included.",
        "While operations or completions are silent, nothing expires: give idle_after.",
    ):
        assert part in text
    assert "there is no event_id" not in text
    assert "counts twice: there is no event_id." in purgatory(criterion=criteria.count(3)).explain().replace(
        "\n          ", ""
    )
    by_column = replace(purgatory().operations, timeout="patience", timeout_unit="minutes", idle_after="1 minute")
    other = " ".join(purgatory(operations=by_column, lookback="5 minutes").explain().split())
    assert "waits `patience` minutes from" in other and "from 5 minutes before `ordered_at`" in other
    assert "While completions are silent" in other
    due = replace(purgatory().operations, timeout=None, deadline="due")
    assert "waits until `due` from" in purgatory(operations=due).explain()
