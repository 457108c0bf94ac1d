"""How long an id is remembered when `extend` events move its operation's deadline. Times by hand are in ms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.blob import read_blob, write_blob
from spark_purgatory.core.state.engine_snapshot import restore, save
from tests.support.engine_driver import END_MS, Shards, final
from tests.support.operations import Row, op, play, told

ANY = EngineSpec(criteria.any_key(), operation_ids=True, event_ids=True)
HELD = final(ANY)
both = pytest.mark.parametrize("spec", [ANY, HELD], ids=["early", "final"])
each_width = pytest.mark.parametrize("several", [True, False], ids=["by id", "by id and key"])


def row(created: int, deadline: int, **others: Any) -> Row:
    return op(created=created * 1000, deadline=deadline * 1000, row=f"[{created}, {deadline}]", **others)


@both
def test_late_rows_are_judged_by_extended_deadlines(spec: EngineSpec) -> None:
    play(
        spec,
        (0, [row(10, 20), *told("extend:a:15:0.090")], ""),
        (50, [row(30, 40), row(40, 120)], "o DUPLICATE 30000, o DUPLICATE 40000"),
        (105, [], "o EXPIRED 105000"),
    )
    # The first of two late rows of one batch is extended by what the log still holds.
    play(
        spec,
        (0, [op("p"), *told("extend:a:22:0.030@o")], ""),
        (20, [row(15, 25), row(30, 40)], "p EXPIRED 20000" + (", o DUPLICATE 30000" if spec is ANY else "")),
        (52, [], "o EXPIRED 52000" + ("" if spec is ANY else ", o DUPLICATE 30000")),
        several=True,
    )


@each_width
def test_a_state_written_without_the_places_of_ids_finds_them(several: bool) -> None:
    spec = replace(HELD, identity_width=1 if several else 2)
    shards = Shards(spec, several=several)
    shards.step([row(10, 20), row(11, 20, id="p", keys="c"), row(10, 22, id="q", keys="b")], [], 0)
    shards.step([], told("complete:b:11 extend:c:14:0.020@p"), 11)
    blob = shards.blobs[0]
    assert blob is not None
    facts, columns = read_blob(blob)
    del columns["rows.id_slot"]
    # p's id is remembered until its first deadline only.
    columns["ids.deadline_us"] = np.where(columns["ids.deadline_us"] == 34_000, 20_000, columns["ids.deadline_us"])
    shards.blobs[0] = write_blob({**facts, "control_events": False}, columns)
    batches = [
        ([], told("extend:a:15:0.050@o"), 12),
        ([row(30, 40), row(33, 40, id="p", keys="c")], [], 25),
        ([], [], END_MS),
    ]
    fates = sorted(f"{outcome['id']} {outcome['row']} {outcome['status']}" for outcome in shards.run(batches))
    assert fates == ["o [10, 20] EXPIRED", "o [30, 40] DUPLICATE", "p [11, 20] EXPIRED", "p [33, 40] DUPLICATE"]


def test_a_state_written_with_the_places_of_ids_is_read_where_none_are_asked_for_and_the_reverse() -> None:
    def saved(spec: EngineSpec) -> bytes:
        shards = Shards(spec, several=True)
        shards.step([row(10, 20)], [], 0)
        assert shards.blobs[0] is not None
        return shards.blobs[0]

    without = replace(ANY, control_events=False)
    assert "rows.id_slot" not in read_blob(saved(without))[1]
    for written, read in (
        (ANY, without),
        (without, ANY),
        (replace(without, operation_ids=False), replace(ANY, operation_ids=False)),
    ):
        engine = restore(Shards(read, several=True).spec, saved(written), 1)
        assert engine.pending == 1 and save(engine, 1) is not None


def test_a_query_without_control_events_keeps_no_places_of_ids() -> None:
    engine = EventTimePurgatory(replace(ANY, control_events=False))
    assert "id_slot" not in engine.rows.columns
