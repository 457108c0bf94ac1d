"""The sink's protocol without Spark: every kind of micro-batch, every point of a crash, all that the table can say."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import count, product
from typing import Any, cast

import pytest

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import (
    BufferExhaustedError,
    BugError,
    DeliveryTimeoutError,
    ForeignWriterError,
    PurgatoryError,
    SkippedWriteError,
    StagingError,
    StorageError,
    TableLostError,
)
from spark_purgatory.spark.sink.accumulator_query import AccumulatorQuery
from spark_purgatory.spark.sink.drain import actions as do
from spark_purgatory.spark.sink.drain import sender
from spark_purgatory.spark.sink.drain.policy_adapter import Delivery, PolicyAdapter
from spark_purgatory.spark.sink.drain.protocol import MOVES, apply
from spark_purgatory.spark.sink.drain.sender import Sender
from spark_purgatory.spark.sink.staging.ledger import DrainState, Failed, Ledger, Piece, Run
from spark_purgatory.spark.sink.table.history import DrainCommit
from tests.support.sink_world import (
    AGAIN,
    BESIDE,
    ROW_BYTES,
    SMALL,
    WORLDS,
    World,
    WorldSender,
    crashed,
    last_of,
    run,
    run_each,
)

HOUR_MS = 3_600_000
CELLS = {
    "files fill": 477, "all linger": 198, "nothing lingers": 342, "some are empty": 333, "each fills files": 342,
    "larger than memory": 225, "memory runs out": 342, "the schema changes": 270,
    "memory runs out, and makes two drains": 558,
}  # fmt: skip
SAYINGS = (
    "as it was", "dropped", "replaced", "restored", "taken back", "restored with its checkpoint", "foreign commit",
    "foreign number", "forgot its history",
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    do.hook = None


def made(name: str, beside: str = "", again: str = "the same rows") -> World:
    batches, options = WORLDS[name]
    return World(list(batches), {"partition_by": "p", **options}, beside=beside, again=again)


def left(name: str, number: int, beside: str = "", again: str = "the same rows") -> tuple[World, str]:
    """A world whose run crashed at the failpoint of that number, and its name; "" if it ended before."""
    world = made(name, beside, again)
    return world, crashed(world, number)


def said(world: World, saying: str) -> type[PurgatoryError] | None:
    """Make the table say something; the error to be raised, by the table of cases; None: every row arrives once."""
    intent, done, held = last_of(world, "intent"), last_of(world, "done"), world.held()
    known = any(body["table_id"] for path, body in world.log.items() if path.endswith(f"/intent={intent}"))
    match saying:
        case "dropped" | "replaced":
            world.table_id = None if saying == "dropped" else "another"
            world.versions, world.rows, world.last_txn = [], [], -1
            return TableLostError if known or done >= 0 else None
        case "restored":
            if held >= 0:
                world.add("RESTORE", {"timestamp": "2020-01-01"})
            return TableLostError if held >= 0 else None
        case "taken back":
            before = next(
                (entry.version for entry in world.versions if entry.commit and entry.commit.number == held), 0
            )
            if before > 0:
                world.restore(before - 1)
            return TableLostError if before > 0 and held == done else None
        case "restored with its checkpoint":
            if world.versions:
                later, at = deepcopy(world), world.versions[-1].version
                later.batches.append((later.batches[-1][0], SMALL))
                run(later)
                world.versions, world.was, world.last_txn = later.versions, later.was, later.last_txn
                world.restore(at)
        case "foreign commit":
            if intent == done:
                return None
            if world.held() == intent:
                world.versions.pop()
            world.add("WRITE", {}, DrainCommit(0, "app", intent, "another"))
            return ForeignWriterError
        case "foreign number":
            world.add("WRITE", {}, DrainCommit(0, "app", intent + 7, "another"))
            return ForeignWriterError
        case "forgot its history":
            if held >= 0:
                world.add("OPTIMIZE", {})
                world.versions = world.versions[-1:]
    return None


def goes_on_as_it_should(world: World, saying: str, where: str) -> None:
    """The run after a crash: every row arrives once, or the error is the one that is due, and nothing is written."""
    error, rows = said(world, saying), list(world.rows)
    try:
        run(world)
    except PurgatoryError as raised:
        assert error is not None and isinstance(raised, error), f"{where}: {raised!r}"
        assert world.rows == rows, f"{where}: written in spite of {raised!r}"
        return
    assert error is None, f"{where}: no {error}"
    assert world.in_table() == world.every(), where
    if world.folders:
        assert world.again == "no rows", f"{where}: {world.folders}"
        world.batches.append((world.batches[-1][0], SMALL))
        run(world)
    assert not world.folders, f"{where}: the next drain leaves {world.folders}"
    assert set(range(len(world.batches))) <= set(world.evaluated), where


def test_every_crash_and_all_that_the_table_can_say_lose_and_double_nothing_or_are_named() -> None:
    cells: Counter[str] = Counter()
    points: set[str] = set()
    drawn = range(len(AGAIN)) if os.environ.get("EVERY_CASE") else (0,)
    for beside, name, more in product(BESIDE, WORLDS, drawn):
        number = 0
        while True:
            again = AGAIN[(number + more) % len(AGAIN)]
            world, point = left(name, number, beside, again)
            if not point:
                break
            number += 1
            points.add(point)
            for saying in SAYINGS:
                where = f"{name}, drains beside {beside!r}, crash {number} {point}, then {again}, the table {saying}"
                cells[name] += not more
                goes_on_as_it_should(deepcopy(world), saying, where)
    assert points == {*do.FAILPOINTS, "in stage"}
    every = Counter({name: number * len(BESIDE) for name, number in CELLS.items()})
    assert cells == every, "crash points of each world, times what the table can say, times how drains go"
    assert cells.total() == 9261


def test_runs_that_leave_rows_staged_lose_and_double_nothing_wherever_one_ends() -> None:
    cells = 0
    for name, beside in product(WORLDS, BESIDE):
        for number in count():
            world = made(name, beside, again=AGAIN[number % len(AGAIN)])
            world.staged_ms = {}
            point = crashed(world, number, play=run_each)
            if not point:
                break
            where = f"{name}, drains beside {beside!r}, crash {number} {point}"
            run_each(world)
            assert not world.in_table() - world.every(), where
            run(world)
            assert world.in_table() == world.every(), where
            cells += 1
    assert cells > 800
    print(f"{cells:,} crashes in runs that leave rows staged: 0 rows lost, 0 doubled")


@pytest.mark.parametrize(
    ("name", "later_ms", "versions"),
    [("all linger", 0, 0), ("all linger", 2 * 3_600_000, 2), ("files fill", 0, 2), ("nothing lingers", 0, 3)],
)
def test_the_end_of_a_run_takes_what_is_full_or_has_lingered_since_an_earlier_run(
    name: str, later_ms: int, versions: int
) -> None:
    world = made(name)
    world.staged_ms = {}
    run_each(world, later_ms)
    assert len(world.versions) == versions
    assert world.in_table() <= world.every()
    WorldSender(world).take(None, flush=True)
    assert world.in_table() == world.every()


def test_a_drain_takes_what_is_ripe_alone_though_it_notes_another_version_of_the_columns() -> None:
    world = World([("s", {"a": 2}), ("s", {"a": 2, "b": 1})] * 6, {"partition_by": "p", **WORLDS["files fill"][1]})
    sender = WorldSender(world)
    intents = []
    while world.committed < len(world.batches):
        sender.take(world.committed)
        intents += [sender.ledger.intent] if sender.ledger.intent not in [None, *intents] else []
    assert len(intents) >= 3 and all(intent.left for intent in intents), "rows of b wait for more of them"
    assert len([path for path in world.log if "/schema=" in path]) <= 1


def test_a_commit_that_outlives_its_run_arrives_once_whenever_it_does() -> None:
    walked = 0
    for name in WORLDS:
        for number in range(99):
            world, point = left(name, number, "late")
            if not point:
                break
            for late in range(99) if world.under_way else ():
                again = deepcopy(world)
                reached: list[str] = []

                def hook(name: str, again: World = again, reached: list[str] = reached, late: int = late) -> None:
                    reached.append(name)
                    if len(reached) == late + 1:
                        again.arrive()

                do.hook = hook
                run(again)
                do.hook = None
                assert again.in_table() == again.every(), f"{name}, crash {number} {point}, arrived at {late}"
                walked += 1
                if len(reached) <= late:
                    break
    assert walked > 50


def between(world: World, name: str, drain: int, act: Callable[[], None]) -> None:
    """Run a world; do something at the n-th time that a failpoint is reached."""
    reached = Counter[str]()

    def hook(at: str) -> None:
        reached[at] += 1
        if (at, reached[at]) == (name, drain):
            act()

    do.hook = hook
    try:
        run(world)
    finally:
        do.hook = None


@pytest.mark.parametrize(
    ("what", "kind", "said"),
    [
        ("dropped", TableLostError, "it is gone after a commit to it"),
        ("replaced", TableLostError, "it was replaced while a drain was written"),
        ("skips it", SkippedWriteError, "was written to table /table without an error, but its history has no such"),
        ("has fewer rows", StagingError, "committed 2 rows in version 1, and its staged files held 3"),
        ("cut", StorageError, "does not show whether the drain was committed"),
        ("cut later", None, ""),
    ],
)
def test_a_table_that_changes_between_a_commit_and_its_read_back_is_named_and_nothing_staged_goes(
    what: str, kind: type[StorageError] | None, said: str
) -> None:
    world = made("nothing lingers")

    def act() -> None:
        match what:
            case "dropped" | "replaced":
                world.table_id, world.versions = None if what == "dropped" else "another", []
            case "skips it":
                world.last_txn = 99
            case "has fewer rows":
                entry = world.versions.pop()
                assert entry.commit is not None
                world.versions.append(replace(entry, commit=replace(entry.commit, rows=2)))
            case _:
                for _ in range(3):
                    world.add("OPTIMIZE", {})
                world.versions = world.versions[-1:]

    def go_on() -> None:
        between(world, "before commit" if what == "skips it" else "after commit", 2, act)

    if what == "cut later":  # The commit came through, its answer was lost, and the next try is skipped.
        world.commit_fails = ["", "arrived"]
    if kind is None:
        go_on()
    else:
        with pytest.raises(kind, match=said):
            go_on()
        taken = next(body for path, body in world.log.items() if path.endswith("/intent=1"))["taken"]["path"]
        assert {path.rpartition("/")[0] for path in taken} <= {*world.folders}, "its rows stay staged"
        if what != "cut":
            return
        run(world)
    assert world.in_table() == world.every()


def test_a_micro_batch_that_a_run_was_not_given_is_missed() -> None:
    world = made("all linger")
    sender = WorldSender(world)
    sender.take(0)
    world.committed = 2
    with pytest.raises(StagingError, match="is at micro-batch 2, but /staging has micro-batches only up to 0"):
        sender.take(2)
    assert world.evaluated == [0]


def test_a_drain_that_is_under_way_is_ended_without_another_one() -> None:
    world = made("nothing lingers", "late")
    sender = WorldSender(world)
    sender.take(0)
    sender.take(1)
    assert (sender.ledger.drain, world.rows) == (DrainState.UNDERWAY, [])
    sender.beside.batch_id = world.committed  # What is waited for alone ends it.
    sender.take(None)
    assert sender.done[-2:] == ["ReadBack", "CleanUp"]
    assert len(world.rows) == sum(SMALL.values())


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("again", AGAIN)
def test_a_micro_batch_whose_commit_spark_lost_is_skipped_if_its_rows_are_the_same_and_else_stops(
    name: str, again: str
) -> None:
    world = made(name, again=again)
    run(world)
    rows = list(world.rows)
    world.committed -= 1
    had, may_have = world.drawn[world.committed], world.draw(world.committed)
    world.drawn[world.committed] = had
    if had == may_have:
        run(world)
    elif name == "some are empty":
        run(world)  # No drain has covered the last micro-batch, which had no rows.
        assert world.in_table() == world.every()
        return
    else:
        with pytest.raises(StagingError, match=r"micro-batch . again.* had other rows: .* rows .checksum .* now"):
            run(world)
        world.again, world.drawn[world.committed] = "the same rows", had  # As with the sources and the code of then.
        run(world)
    assert world.rows == rows


def test_a_micro_batch_before_the_last_drained_one_is_not_skipped_without_its_rows_being_compared() -> None:
    world = made("nothing lingers")
    run(world)
    world.committed -= 2
    with pytest.raises(StagingError, match=r"brought micro-batches up to 2 .* the last of them had other rows"):
        run(world)


def test_a_run_that_has_ended_is_not_current_once_another_has_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    world = made("all linger")
    world.options |= {"linger": "40000 days", "delivery_timeout": "50000 days"}
    monkeypatch.setattr(sender, "next_batch", lambda spark, checkpoint: world.committed)
    ended, spark = WorldSender(world), cast(Any, None)
    ended.take(0)
    assert ended.is_true(spark)
    later = WorldSender(world)
    later.take(1)
    assert (ended.is_true(spark), later.is_true(spark)) == (False, True)


def test_the_sinks_metrics_are_of_what_is_staged_and_of_what_it_has_drained() -> None:
    world = made("nothing lingers")
    sender = WorldSender(world)
    sender.take(0)
    staged = sender.policy.measure(sender.ledger)
    assert (staged["staged_bytes"], staged["drains_total"]) == (sum(SMALL.values()) * ROW_BYTES, 0)
    run(world, sender)
    drained = sender.policy.measure(sender.ledger)
    assert (drained["staged_bytes"], drained["drains_total"], drained["drained_rows_total"]) == (0, 3, len(world.rows))
    assert drained["file_bytes_avg"] == drained["drained_bytes_total"] / drained["drained_files_total"]


def test_a_flush_goes_on_as_long_as_the_table_takes_something_within_max_block() -> None:
    options = {"batch_size": "1 KiB", "max_request_size": "1 KiB", "linger": "1 hour", "max_block": "1 minute"}
    world = World([("s", {"a": 6, "b": 6})], {"partition_by": "p", "delivery_timeout": "2 hours", **options})
    sender = WorldSender(world)
    sender.take(0)

    def slow(name: str) -> None:
        sender.policy._made_ms += 40_000 * (name == "before commit")

    do.hook, world.commit_fails = slow, ["", "absent"]
    sender.take(None, flush=True)
    assert sender.done.count("Commit") == 3, "the second drain failed once, 80 s after the flush began"
    assert world.in_table() == world.every()


def test_a_drain_that_the_last_run_has_committed_is_not_counted_and_says_nothing_of_how_long_one_takes() -> None:
    world = next(world for world, point in (left("all linger", n) for n in range(99)) if point == "after commit")
    sender = WorldSender(world)
    before_ms = sender.policy.drain_ms
    sender.take(None)
    assert sender.done == ["Look", "ReadBack", "Adopt", "CleanUp"]
    assert (sender.policy.totals["drains_total"], sender.policy.drain_ms) == (0, before_ms)


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize(
    ("faults", "said"),
    [
        (["absent"], "^$"),
        (["absent"] * 3, "^$"),
        (["arrived"], "^$"),
        (["absent", "arrived"], "^$"),
        (["remedy"], r"however often it is tried: remedy\. .* its rows stay staged\. Drop it$"),
        (None, "took nothing for max_block"),
    ],
)
def test_a_commit_that_raises_is_looked_for_and_tried_again_or_ends_the_query_by_name(
    name: str, faults: list[str] | None, said: str
) -> None:
    world = made(name)
    world.commit_fails, world.takes_nothing = list(faults or ()), faults is None
    found = ""
    try:
        run(world)
    except (StorageError, BufferExhaustedError) as error:
        found = str(error)
    assert re.search(said, found)
    world.commit_fails, world.takes_nothing = [], False
    run(world)
    assert world.in_table() == world.every()
    assert not world.folders


def test_rows_that_the_table_does_not_take_for_delivery_timeout_stop_the_query_and_go_out_after_a_restart() -> None:
    world = made("nothing lingers")
    world.options |= {"delivery_timeout": "1 minute", "max_block": "1 hour"}
    world.takes_nothing = True
    told = list[Any]()
    sender = WorldSender(world, lambda *given: told.append(given))
    with pytest.raises(DeliveryTimeoutError, match="for delivery_timeout, 60,000 ms: absent") as raised:
        run(world, sender)
    assert told == [(None, raised.value)]
    world.takes_nothing = False
    run(world)
    assert world.in_table() == world.every()


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (DeliveryTimeoutError, {"delivery_timeout": "1 minute", "max_block": "1 hour"}),
        (BufferExhaustedError, {"linger": "1 hour", "delivery_timeout": "2 hours"}),
        (StorageError, {}),
        (TableLostError, {}),
        (StagingError, {}),
    ],
)
def test_on_delivery_hears_of_each_way_in_which_a_query_gives_up_once(
    error: type[PurgatoryError], options: dict[str, str]
) -> None:
    """Only a delivery timeout was told, and the docstring said: when their query gave up."""
    world = made("nothing lingers")
    world.options |= options
    world.takes_nothing, world.commit_fails = bool(options), ["remedy"] * (error is StorageError)
    if error is TableLostError:
        run(world)
        world.table_id = "another"
    if error is StagingError:
        world.committed = 1
    heard: list[tuple[Delivery | None, BaseException | None]] = []
    sender = WorldSender(world)
    sender.policy.on_delivery = lambda delivery, fault: heard.append((delivery, fault))
    with pytest.raises(error) as raised:
        for batch_id in range(world.committed, len(world.batches)):
            sender.take(batch_id)
        sender.take(None, flush=True)
    assert type(raised.value) is error
    assert [fault for _, fault in heard if fault] == [raised.value] and heard[-1][0] is None


def test_what_was_staged_and_is_gone_is_missed_by_name() -> None:
    world = made("all linger")
    sender = WorldSender(world)
    for batch_id in range(3):
        sender.take(batch_id)
    path = next(path for path in world.folders if "batch=00000000000000000001" in path)
    kept, lost = dict(world.folders), f"the files of /staging/{path} are missing, with the 3 rows that were staged in"
    del world.folders[path]
    with pytest.raises(StagingError, match=f"at micro-batch 3, but {lost} micro-batch 1.* Bring the folder back"):
        run(world)
    assert world.in_table() == Counter()
    world.folders = kept
    run(world)
    assert world.in_table() == world.every()


def test_a_result_that_cannot_follow_is_a_bug_and_changes_nothing() -> None:
    results = [do.Committed(), do.CleanUp(), do.Found("id", DrainCommit(0, "app", 0, "uuid")), do.NotThere()]
    assert {type(result) for result in results} < {result for _, result in MOVES}
    for state, result in product(DrainState, results):
        if (state, type(result)) not in MOVES:
            ledger = Ledger(drain=state)
            before = deepcopy(ledger)
            with pytest.raises(BugError, match=f"{state.value} cannot be {type(result).__name__}"):
                apply(ledger, result, do.Work(None, 0), 0)
            assert ledger == before


def test_a_clock_that_is_set_back_an_hour_does_not_stop_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = PolicyAdapter(SinkOptions(path="/table", linger="10 seconds"), "/table")
    began_ms = adapter.now()
    ledger = Ledger(pieces={("part-0", "p"): piece(began_ms)})
    wall_ns, elapsed_ns = time.time_ns(), time.monotonic_ns()
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns - HOUR_MS * 1_000_000)
    assert not adapter.next_pieces(ledger, adapter.now(), everything=False)
    monkeypatch.setattr(time, "monotonic_ns", lambda: elapsed_ns + 10_000_000_000)
    assert 10_000 <= adapter.now() - began_ms < 20_000
    assert len(adapter.next_pieces(ledger, adapter.now(), everything=False)) == 1


@pytest.mark.parametrize(("staged_s_ago", "ripe_after_s"), [(-3600, 10), (0, 10), (4, 6), (10, 0), (7200, 0)])
def test_what_an_earlier_run_staged_lingers_from_then_on_and_never_longer_than_linger(
    staged_s_ago: int, ripe_after_s: int
) -> None:
    """The times of staged files are the wall clock's, which may have been set back or forth since."""
    options = SinkOptions(path="/table", linger="10 seconds", delivery_timeout="20 seconds")
    adapter = PolicyAdapter(options, "/table")
    adapter.drain_ms = 0
    now_ms = adapter.now()
    staged = piece(now_ms - staged_s_ago * 1000)
    ledger = Ledger(pieces={staged.key: staged}, run=Run(1, "a"), adopted_ms=now_ms)
    ripe_s = next(s for s in range(60) if adapter.next_pieces(ledger, now_ms + s * 1000, everything=False))
    assert ripe_s == ripe_after_s
    apply(ledger, Failed("said"), do.Work(None, 0), now_ms)
    assert not adapter.is_out_of_time(ledger), "the delivery time-out begins anew"


def piece(staged_ms: int) -> Piece:
    return Piece("p", "rows/generation=0/epoch=0/batch=0-0-a/part-0", 1, 100, 0, 0, staged_ms)


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, GeneratorExit])
def test_a_callback_that_raises_is_logged_like_kafkas(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def raises(delivery: Delivery | None, error: BaseException | None) -> None:
        raise kind("a fault of the caller's")

    adapter = PolicyAdapter(SinkOptions(path="/table"), "/table", raises)
    adapter.notify(Delivery("/table", 1, 2, 3, 4), None)
    assert "on_delivery raised" in caplog.text and "a fault of the caller's" in caplog.text


@pytest.mark.parametrize("call", ["flush", "stop"])
def test_a_call_that_would_wait_for_its_own_callback_is_refused(call: str, caplog: pytest.LogCaptureFixture) -> None:
    sender = Sender(SinkOptions(path="/table"), "/checkpoint", lambda delivery, error: getattr(query, call)())
    query = AccumulatorQuery(None, sender, None, {})  # type: ignore[arg-type]
    sender.policy.notify(Delivery("/table", 1, 2, 3, 4), None)
    assert f"{call}() in on_delivery would wait for itself: call it in another thread" in caplog.text


def test_a_call_of_the_user_gets_a_table_of_its_own() -> None:
    """It took the facts of the sink's own away while a drain began."""
    sender = Sender(SinkOptions(path="/table"), "/checkpoint")
    query = AccumulatorQuery(None, sender, None, {})  # type: ignore[arg-type]
    assert str(query.target) == "/table" and query.target is not sender.target
