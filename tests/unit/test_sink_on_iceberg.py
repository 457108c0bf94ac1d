"""The sink's protocol on an Iceberg table, without Spark: every point of a crash, all that the table can say then."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from spark_purgatory.demo.runner import demo_config
from spark_purgatory.errors import ConfigError, ForeignWriterError, PurgatoryError, StorageError, TableLostError
from spark_purgatory.job.job_config import DeadLetters
from spark_purgatory.job.session import build_session, reading_session, settings_of
from spark_purgatory.spark.sink.drain import actions
from spark_purgatory.spark.sink.table.history import NO_VERSION, SAYS, Undone
from spark_purgatory.spark.sink.table.iceberg_target import (
    EXTENSION,
    SnapshotHistory,
    branch_of,
    snapshot_history,
)
from tests.support.iceberg_world import APP, IN_COMMIT, IcebergWorld, WorldIceberg
from tests.support.sink_world import AGAIN, BESIDE, SMALL, WORLDS, crashed, last_of, run

CELLS = 3_810
FEW = ("files fill", "some are empty", "the schema changes")
"""Worlds of the short run; ``EVERY_CASE=1`` takes all."""
SAYINGS = (
    "as it was", "a neighbour appends", "compacted", "expired", "expired with neighbours",
    "compacted and expired with neighbours", "rolled back to the beginning", "replaced", "dropped", "made again",
    "branch dropped", "branch dropped and expired with neighbours", "foreign commit", "foreign number",
    "rolled back with its checkpoint",
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    actions.hook = None


def made(name: str, beside: str, again: str) -> IcebergWorld:
    batches, options = WORLDS[name]
    return IcebergWorld(list(batches), {"partition_by": "p", **options}, beside=beside, again=again)


def left(name: str, number: int, beside: str, again: str, neighbours: bool) -> tuple[IcebergWorld, str]:
    """A world whose run crashed at the failpoint of that number, and its name; "" if it ended before."""
    world = made(name, beside, again)

    def append(point: str) -> None:
        if neighbours and point == "before commit":
            world.neighbour()

    return world, crashed(world, number, append)


def may_know(world: IcebergWorld) -> bool:
    """Whether something in the table says if it has the open intent."""
    number = last_of(world, "intent")
    drain = f"{APP}/{number}"
    base = next(body["base_version"] for path, body in world.log.items() if path.endswith(f"/intent={number}"))
    last = world.snapshots[world.ancestors()[-1]] if world.ancestors() else None
    if last is None or base in world.ancestors() or last.parent in (None, base):
        return True
    if any(one.summary.get("published-wap-id") == drain for one in world.snapshots.values()):
        return True
    written = [one for one in world.snapshots.values() if one.summary.get("wap.id") == drain]
    if not written:
        return branch_of(APP) in world.refs
    return any(one.added & world.snapshot(world.refs["main"]) for one in written)


def said(world: IcebergWorld, saying: str) -> type[PurgatoryError] | None:
    """Make the table say something; the error that is due, by what was done; None: every row arrives once."""
    intent, done = last_of(world, "intent"), last_of(world, "done")
    is_open, is_there = intent > done, intent in world.drained
    exists, has_done = world.table_id is not None, done >= 0
    if "compacted" in saying and exists:
        world.compact()
    if "branch dropped" in saying:
        world.refs.pop(branch_of(APP), None)
    if "neighbour" in saying:
        world.neighbour()
        world.neighbour()
    if "expired" in saying:
        world.expire()
    match saying:
        case "rolled back to the beginning" if exists:
            world.refs["main"] = world.ancestors()[-1]
            return TableLostError if has_done else None
        case "rolled back with its checkpoint" if exists:
            later, at = deepcopy(world), world.refs["main"]
            later.batches.append((later.batches[-1][0], SMALL))
            run(later)
            world.snapshots, world.files, world.made = later.snapshots, later.files, later.made
            world.refs = {**later.refs, "main": at}
            return None
        case "replaced" if exists:
            world.refs["main"] = world.commit("new", "append")
            del world.refs["new"]
            return TableLostError if has_done else None
        case "dropped" | "made again":
            world.drop()
            if saying == "made again":
                world.create()
            entry = f"/intent={intent}"
            known = any(body["table_id"] is not None for path, body in world.log.items() if path.endswith(entry))
            return TableLostError if has_done or (saying == "dropped" and known) else None
        case "foreign commit" | "foreign number" if exists:
            if saying == "foreign commit" and (not is_open or is_there):
                return None
            number = intent if saying == "foreign commit" else intent + 7
            mark = {"wap.id": f"{APP}/{number}", "spark_purgatory.intent": "another", "added-records": "0"}
            world.commit("main", "append", world.file([]), summary=mark)
            return ForeignWriterError
    if is_open and world.table_id is not None and not may_know(world):
        return StorageError
    lost_trace = "branch dropped" in saying and "expired" in saying
    return TableLostError if has_done and lost_trace else None


def goes_on_as_it_should(world: IcebergWorld, saying: str, where: str) -> str:
    error = said(world, saying)
    before = world.in_table()
    try:
        run(world)
    except PurgatoryError as raised:
        assert error is not None and isinstance(raised, error), f"{where}: {raised!r}"
        assert world.in_table() == before, f"{where}: written in spite of {raised!r}"
        if error is StorageError and "branch dropped" not in saying:
            answered(world, where)
        if "If all rows are there, say so" in str(raised):  # The branch is missing, and every row is there.
            answered(world, where)
        return error.__name__
    assert error is None, f"{where}: no {error}"
    assert world.in_table() == world.every(), where
    return ""


def answered(world: IcebergWorld, where: str) -> None:
    """The owner looks, and says what was found: then every row arrives once."""
    intent = last_of(world, "intent")
    uuid = next(body["uuid"] for path, body in world.log.items() if path.endswith(f"/intent={intent}"))
    world.properties[SAYS + uuid] = "committed" if intent in world.drained else "not committed"
    run(world)
    assert world.in_table() == world.every(), where


def test_every_crash_and_all_that_an_iceberg_table_can_say_lose_and_double_nothing_or_are_named() -> None:
    cells: Counter[str] = Counter()
    points: set[str] = set()
    every = bool(os.environ.get("EVERY_CASE"))
    for beside, name, more in product(
        BESIDE if every else BESIDE[::2], WORLDS if every else FEW, (0, 1) if every else (0,)
    ):
        number = 0
        while True:
            again, neighbours = AGAIN[number % len(AGAIN)], (number + more) % 2 == 0
            world, point = left(name, number, beside, again, neighbours)
            if not point:
                break
            number += 1
            points.add(point)
            for saying in SAYINGS:
                where = f"{name}, drains beside {beside!r}, crash {number} {point}, then {again}, the table {saying}"
                cells[goes_on_as_it_should(deepcopy(world), saying, f"{where}, neighbours {neighbours}")] += 1
    assert points == {*actions.FAILPOINTS, "in stage", IN_COMMIT}
    print(f"{cells.total():,} cells: {dict(cells)}")
    assert cells.total() == (33_120 if every else CELLS)
    assert {"", "StorageError", "ForeignWriterError", "TableLostError"} == {*cells}


STALLS = ("look", "write", "pick")


@pytest.mark.parametrize("expires", [False, True])
@pytest.mark.parametrize("stalls_in", STALLS)
def test_a_commit_that_outlives_its_run_arrives_once_whenever_it_does(stalls_in: str, expires: bool) -> None:
    """A run that stalled goes on at each point of the next one; each row is there once.

    ``expires``: all but the current snapshot, and what branches keep, has expired by then, unless the last drain is not
    yet noted as done. The page says that expiry may not be so quick.
    """
    walked = 0
    for name, number in product(FEW if os.environ.get("EVERY_CASE") else FEW[:2], range(99)):
        first, point = left(name, number, "late", AGAIN[0], neighbours=number % 2 == 0)
        if not point or not first.under_way:
            continue
        first.begin(stalls_in)
        for late in range(99):
            world, reached = deepcopy(first), list[str]()

            def hook(point: str, world: IcebergWorld = world, reached: list[str] = reached, late: int = late) -> None:
                reached.append(point)
                if len(reached) == late + 1:
                    actions.hook = None
                    world.neighbour()
                    if expires and is_noted(world):
                        world.neighbour()
                        world.expire()
                    world.arrive()
                    actions.hook = hook

            actions.hook = hook
            run(world)
            actions.hook = None
            assert world.in_table() == world.every(), f"{name}, crash {number} {point}, arrived at {late}"
            walked += 1
            if len(reached) <= late:
                break
    assert walked > 50


def is_noted(world: IcebergWorld) -> bool:
    """Whether the log says of each drain in the table that it is done."""
    return max(world.drained, default=-1) <= last_of(world, "done")


def test_an_answer_that_is_lost_loses_and_doubles_nothing() -> None:
    """Every third write and every third pick fails, or its answer is lost."""
    for name, step, is_done, at in product(WORLDS, ("_write", "_pick"), (False, True), range(3)):
        with pytest.MonkeyPatch.context() as patch:
            do, number = getattr(WorldIceberg, step), count(at)

            def failing(*given: Any, do: Any = do, number: Any = number, is_done: bool = is_done) -> None:
                fails = next(number) % 3 == 0
                if is_done or not fails:
                    do(*given)
                if fails:
                    raise PySparkException("the storage does not answer")

            patch.setattr(WorldIceberg, step, failing)
            world = made(name, "", AGAIN[0])
            run(world)
        assert world.in_table() == world.every(), f"{name}, {step} fails, done: {is_done}"


def test_a_catalog_of_iceberg_in_a_session_brings_its_package_and_extension(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where only a job's existing table, or what a command reads, is an Iceberg table."""
    catalog = {"spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog"}
    config = demo_config(tmp_path)
    assert EXTENSION not in settings_of(config)["spark.sql.extensions"]
    with_catalog = config.model_copy(update={"spark": {**config.spark, **catalog}})
    letters = config.model_copy(update={"dead_letters": DeadLetters(table="lake.t.letters", format="iceberg")})
    for each in (with_catalog, letters):
        assert settings_of(each)["spark.sql.extensions"].endswith(f",{EXTENSION}")
    monkeypatch.setattr("pyspark.__version__", "4.9.0")
    for start in (lambda: build_session(with_catalog), lambda: reading_session(catalog, delta=True)):
        with pytest.raises(ConfigError, match=r"no runtime for Spark 4\.9\.0 yet"):
            start()


def history(main: int, *parents: tuple[int, int | None]) -> SnapshotHistory:
    """Of (snapshot, parent), the branch ``main`` at one of them."""
    rows = ({"snapshot_id": id, "parent_id": parent, "operation": "append", "summary": {}} for id, parent in parents)
    return snapshot_history(rows, {"main": main})


WHOLE = history(30, (10, None), (20, 10), (30, 20), (99, 10))
CUT = history(30, (30, 20), (10, None))


def test_snapshots_are_in_the_order_of_their_parents_and_others_are_left_out() -> None:
    assert [entry.version for entry in WHOLE.entries] == [30, 20, 10]
    assert WHOLE.version == 30
    assert [entry.version for entry in WHOLE.up_to(20).entries] == [20, 10]
    assert snapshot_history([], {}).version == NO_VERSION


@pytest.mark.parametrize(
    ("found", "version", "since", "start"),
    [
        (WHOLE, 10, True, True), (WHOLE, 99, True, True), (WHOLE, NO_VERSION, True, True),
        (CUT, 30, True, True), (CUT, 20, True, False), (CUT, 10, False, False), (CUT, NO_VERSION, False, False),
        (snapshot_history([], {}), NO_VERSION, True, True),
    ],
)  # fmt: skip
def test_a_history_is_whole_since_an_ancestor_or_the_one_that_expired_last(
    found: SnapshotHistory, version: int, since: bool, start: bool
) -> None:
    assert found.is_whole_since(version) is since
    assert found.is_whole_from(version) is start


def test_a_snapshot_that_is_no_ancestor_was_undone_where_every_ancestor_is_there() -> None:
    assert WHOLE.undone(20) is None
    assert WHOLE.undone(99) == Undone("rolled back to snapshot 30, or replaced", 30)
    assert CUT.undone(10) is None, "nobody can tell"


def test_a_snapshot_that_expired_was_the_tables_if_the_branch_of_the_query_is_there() -> None:
    assert WHOLE.lacks(50, APP) and CUT.lacks(50, APP)
    kept = SnapshotHistory(CUT.entries, CUT.before, CUT.snapshots, {**CUT.refs, branch_of(APP): 10})
    assert not kept.lacks(50, APP) and not kept.lacks(30, APP)
