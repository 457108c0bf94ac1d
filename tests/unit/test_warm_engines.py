"""Engines held by one worker and stepped by another, over real sockets in a folder of their own."""

from __future__ import annotations

import gc
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

import pytest

from spark_purgatory import errors
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.engine_snapshot import restore, save
from spark_purgatory.core.state.step_log import Step, digest
from spark_purgatory.errors import BugError, ConfigError, PurgatoryError
from spark_purgatory.spark.host import warm_engines
from spark_purgatory.spark.host.exchange import to_blob
from spark_purgatory.spark.host.warm_engines import (
    IDLE_SECONDS,
    Answer,
    Request,
    WarmEngines,
    executor_folder,
    is_neighbour,
    step_engine,
)
from tests.support.engine_driver import events_table, from_blob, operations_table, outcome_rows

SPEC = EngineSpec(criteria.count(1), identity_width=2)
PLENTY = 1 << 40


class SizedEngine(EventTimePurgatory):
    """An engine that takes what its test says."""

    bytes_each = 100

    @property
    def memory_bytes(self) -> int:
        return self.bytes_each * self.pending


def operations(*names: str) -> Step:
    rows = [{"id": name, "keys": [name], "created": 10_000, "deadline": 20_000, "row": name} for name in names]
    return Step(1, [bytes(to_blob(operations_table(rows, several=False)))])


def events(*names: str, watermark_ms: int = 1) -> Step:
    rows = [{"key": name, "time": 15_000, "value": 1.0} for name in names]
    return Step(watermark_ms, [], [bytes(to_blob(events_table(rows)))])


def request(step: Step, token: str = "t0", next_token: str = "t1", **others: Any) -> Request:
    given: dict[str, Any] = {"shard_id": "s", "spec_digest": digest(SPEC), "shards": 1, "max_warm_bytes": PLENTY}
    return Request(token=token, next_token=next_token, step=step, **{**given, **others})


def hold(engines: WarmEngines, *names: str, **others: Any) -> bool:
    """Hold an engine in which these operations wait; whether there was room."""
    first = request(operations(*names), "", "t0", **others)
    engine = SizedEngine(SPEC)
    answer = step_engine(engine, first, engines.address)
    return engines.keep(first, engine, answer.warm_bytes)


def completed(answer: Answer | None) -> list[str]:
    assert answer is not None and answer.outcomes is not None
    return sorted(row["row"] for row in outcome_rows(from_blob(answer.outcomes)))


Make = Callable[..., WarmEngines]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for sockets, as pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="sp-") as name:
        yield Path(name)


@pytest.fixture
def worker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made: list[WarmEngines] = []
    listeners: list[Any] = []

    def listener(*given: Any) -> Listener:
        listeners.append(Listener(*given))
        return listeners[-1]

    def make(name: str = "", kind: type[WarmEngines] = WarmEngines, where: Path | None = folder) -> WarmEngines:
        made.append(kind(where, name))
        return made[-1]

    monkeypatch.setattr(warm_engines, "Listener", listener)
    yield make
    for each in made:
        for holder in list(each._clients):
            each._forget_client(holder)
    for each in listeners:
        each._listener._socket.shutdown(socket.SHUT_RDWR)  # The thread that accepts ends, and removes the file.
    until = time.monotonic() + 60
    while any(folder.rglob("*.socket")) and time.monotonic() < until:
        time.sleep(0.001)


def test_another_worker_is_given_what_the_holder_computes(worker: Make) -> None:
    holder, asker = worker(), worker()
    assert hold(holder, "a", "b")
    answer = asker.ask(holder.address, request(events("a"), wants_snapshot=True))
    assert completed(answer) == ["a"]
    assert answer is not None and answer.snapshot is not None
    engine = restore(SPEC, answer.snapshot, 1)
    assert (answer.due_ms, engine.pending) == (engine.next_due_ms(), 1)
    assert (answer.holder, answer.warm_bytes) == (holder.address, 100)
    assert answer.counted["completed"] == 1
    assert answer.gauges["oldest_us"] == 10_000
    alone = SizedEngine(SPEC)
    step_engine(alone, request(operations("a", "b")), "")
    assert answer == step_engine(alone, request(events("a"), wants_snapshot=True), holder.address)
    assert answer.snapshot == save(alone, 1)


@pytest.mark.parametrize("local", [True, False], ids=["itself", "another"])
@pytest.mark.parametrize(
    "wrong",
    [{"token": "t7"}, {"token": ""}, {"spec_digest": "other"}, {"shard_id": "other"}],
    ids=lambda wrong: "-".join(map(str, *wrong.items())),
)
def test_an_engine_in_another_state_is_a_miss_and_is_dropped(worker: Make, local: bool, wrong: dict[str, Any]) -> None:
    holder = worker()
    asker = holder if local else worker()
    hold(holder, "a")
    assert asker.ask(holder.address, request(events("a"), **wrong)) is None
    assert len(holder) == ("shard_id" in wrong)
    found = asker.ask(holder.address, request(events("a")))
    assert (found is not None) == ("shard_id" in wrong)


def test_nobody_is_asked_where_there_is_no_holder(worker: Make, folder: Path) -> None:
    asker = worker()
    assert asker.ask("", request(events("a"))) is None
    assert asker.ask(str(folder / "gone.socket"), request(events("a"))) is None


KILLED_HOLDER = """
import os, signal, sys, time
from pathlib import Path
from spark_purgatory.spark.host.warm_engines import WarmEngines
from tests.unit.test_warm_engines import hold

class Killed(WarmEngines):
    def step(self, request):
        if os.fork():
            os.kill(os.getpid(), signal.SIGKILL)
        print(os.getpid(), flush=True)
        time.sleep(60)

holder = Killed(Path(sys.argv[1]))
hold(holder, "a")
print(holder.address, flush=True)
time.sleep(60)
"""


def test_a_holder_that_is_killed_in_a_step_is_a_miss_although_a_child_of_it_keeps_the_socket(
    worker: Make, folder: Path
) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED_HOLDER, str(folder)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        address, asker = process.stdout.readline().decode().strip(), worker()
        threading.Thread(target=process.wait).start()  # so that its number is free, as under Spark's daemon
        assert asker.ask(address, request(events("a"))) is None
        assert asker._clients == {}
        assert worker().ask(address, request(events("a"))) is None
        os.kill(int(process.stdout.readline()), signal.SIGKILL)
    Path(address).unlink()


def test_a_holder_that_does_not_answer_counts_as_lost(worker: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_engines, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(warm_engines, "LOOK_SECONDS", 0.01)
    release = threading.Event()

    class Slow(WarmEngines):
        def step(self, request: Request) -> Answer | None:
            release.wait(30)
            return super().step(request)

    holder, asker = worker(kind=Slow), worker()
    hold(holder, "a")
    assert asker.ask(holder.address, request(events("a"))) is None
    release.set()
    assert asker.ask(holder.address, request(events("a"), "t7")) is None, "the late answer is nobody's"


def subclasses(kind: type[Exception]) -> list[type[Exception]]:
    return [kind, *(each for direct in kind.__subclasses__() for each in subclasses(direct))]


OWN = [kind for kind in subclasses(PurgatoryError) if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("text", ["it is 1 and may be 2", "", "two\nlines, \u00fcber"])
def test_every_error_of_ours_keeps_its_type_and_message_on_the_way(
    worker: Make, kind: type[PurgatoryError], text: str
) -> None:
    raised = kind(text)

    class Failing(WarmEngines):
        def step(self, _: Request) -> Answer | None:
            raise raised

    with pytest.raises(PurgatoryError) as said:
        worker().ask(worker(kind=Failing).address, request(Step(1)))
    assert (type(said.value), str(said.value)) == (type(raised), str(raised))
    assert isinstance(said.value, ConfigError) == isinstance(raised, ConfigError)
    assert isinstance(said.value, BugError) == isinstance(raised, BugError)


@pytest.mark.parametrize("error", [ValueError("x"), MemoryError(), OSError("y"), KeyError("z")], ids=repr)
def test_any_other_error_is_a_miss_with_its_stack_in_the_log(
    worker: Make, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(WarmEngines):
        def step(self, _: Request) -> Answer | None:
            raise error

    holder, asker = worker(kind=Failing), worker()
    assert asker.ask(holder.address, request(Step(1))) is None
    assert asker.ask(holder.address, request(Step(1))) is None, "the connection is still in step"
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [error, error]


def test_of_two_that_ask_for_one_step_at_once_one_is_answered(worker: Make) -> None:
    for _ in range(10):
        holder, askers = worker(), [worker(), worker()]
        hold(holder, "a", "b")
        ready, found = threading.Barrier(2), dict[int, Answer | None]()

        def ask(
            at: int,
            holder: WarmEngines = holder,
            askers: list[WarmEngines] = askers,
            ready: threading.Barrier = ready,
            found: dict[int, Answer | None] = found,
        ) -> None:
            ready.wait(10)
            found[at] = askers[at].ask(holder.address, request(events("a"), "t0", f"of {at}"))

        threads = [threading.Thread(target=ask, args=(at,)) for at in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(answer is None for answer in found.values()) == [False, True]
        assert [completed(answer) for answer in found.values() if answer is not None] == [["a"]]
        assert len(holder) == 0, "which of the two is committed is not known"


def test_the_budget_is_of_one_worker(worker: Make, caplog: pytest.LogCaptureFixture) -> None:
    first, second = worker(), worker()
    assert hold(first, "a", "b", shard_id="1", max_warm_bytes=250)
    assert hold(second, "c", shard_id="2", max_warm_bytes=250)
    assert not hold(first, "d", shard_id="3", max_warm_bytes=250)
    assert not hold(first, "e", shard_id="4", max_warm_bytes=250)
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning == (
        "max_warm_bytes is 250, and another shard with 100 bytes does not fit into this worker: shards that are not "
        "kept are loaded from the checkpoint in each micro-batch"
    )


@pytest.mark.parametrize("how", ["another token", "step fails", "held anew without room"])
def test_an_engine_that_is_dropped_gives_its_room_back(worker: Make, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    holder, asker = worker(), worker()
    assert hold(holder, "a", "b", max_warm_bytes=200)
    if how == "another token":
        assert asker.ask(holder.address, request(events("a"), "t7")) is None
    elif how == "step fails":
        with monkeypatch.context() as patched:
            patched.setattr(warm_engines, "step_engine", lambda *_: 1 / 0)
            assert asker.ask(holder.address, request(events("a"))) is None
    else:
        assert not hold(holder, "a", "b", "c", max_warm_bytes=200)
    assert len(holder) == 0
    assert hold(holder, "c", "d", shard_id="2", max_warm_bytes=200)


def test_without_a_folder_nothing_is_held(worker: Make) -> None:
    alone = worker(where=None)
    assert alone.address == ""
    assert not hold(alone, "a")
    assert alone.ask("", request(events("a"))) is None


def test_a_folder_whose_path_is_too_long_for_a_socket_is_named_once_and_nothing_is_held(
    folder: Path, worker: Make, caplog: pytest.LogCaptureFixture
) -> None:
    deep = folder / ("x" * 100)
    deep.mkdir()
    alone = worker(where=deep)
    assert not hold(alone, "a")
    assert not hold(alone, "b")
    [warning] = [record.getMessage() for record in caplog.records]
    assert "(AF_UNIX path too long): no engine is kept in memory; set TMPDIR to a short path" in warning


@pytest.fixture
def base(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the folders of this user's executors are."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder / f"spark_purgatory-{os.getuid()}"


NAMESPACE = os.stat("/proc/self/ns/pid").st_ino if sys.platform == "linux" else 0
OWN_FOLDER = f"{NAMESPACE}-{os.getppid()}"


def test_the_folder_is_this_user_s_alone_and_of_the_parent_process(base: Path) -> None:
    found = executor_folder()
    assert found == base / OWN_FOLDER
    assert [stat.S_IMODE(each.stat().st_mode) for each in (base, found)] == [0o700, 0o700]
    assert executor_folder() == found


@pytest.mark.parametrize("how", ["open to all", "open to the group", "a link", "a file"])
def test_a_folder_that_others_can_enter_is_not_used(base: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    if how == "a link":
        (base.parent / "elsewhere").mkdir(mode=0o700)
        base.symlink_to(base.parent / "elsewhere")
    elif how == "a file":
        base.touch(0o700)
    else:
        base.mkdir()
        base.chmod(0o755 if how == "open to all" else 0o710)
    assert executor_folder() is None
    assert "no engine is kept in memory" in caplog.text
    assert not (base.parent / "elsewhere" / OWN_FOLDER).exists()


def ended_process() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_files_of_dead_workers_and_folders_of_dead_executors_are_removed(base: Path) -> None:
    folder = executor_folder()
    assert folder is not None
    dead, alive = ended_process(), os.getpid()
    for name in (f"{dead}-1.socket", f"{alive}-1.socket", "other.txt"):
        (folder / name).touch()
    of_a_dead_one, of_another_container = base / f"{NAMESPACE}-{dead}", base / f"1-{dead}"
    of_a_dead_one.mkdir()
    (of_a_dead_one / f"{dead}-1.socket").touch()
    of_another_container.mkdir()
    (base / "notes").mkdir()
    assert executor_folder() == folder
    assert sorted(file.name for file in folder.iterdir()) == [f"{alive}-1.socket", "other.txt"]
    assert sorted(each.name for each in base.iterdir()) == sorted(["notes", of_another_container.name, OWN_FOLDER])


class Watched(SizedEngine):
    """Its arrays, seen from outside."""

    def column(self) -> weakref.ref[Any]:
        return weakref.ref(self.rows.columns["created_us"])


@pytest.fixture
def no_garbage_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("how", ["another token", "held anew", "idle", "grown"])
def test_the_memory_of_an_engine_that_is_dropped_is_free_at_once(
    worker: Make, how: str, no_garbage_collector: None
) -> None:
    holder = worker()
    first = request(operations("a", "b"), "", "t0", max_warm_bytes=200)
    engine = Watched(SPEC)
    step_engine(engine, first, "")
    column = engine.column()
    assert holder.keep(first, engine, 200)
    del engine
    gc.freeze()  # as `prepare_worker` does when modules were imported
    try:
        assert column() is not None
        if how == "another token":
            assert holder.step(request(events("a"), "t7")) is None
        elif how == "held anew":
            assert hold(holder, "c", max_warm_bytes=200)
        elif how == "grown":
            answer = holder.step(request(operations("c"), max_warm_bytes=200))
            assert answer is not None and answer.holder == ""
        else:
            holder._kept["s"].asked_at -= IDLE_SECONDS + 10
            assert hold(holder, "c", shard_id="2", max_warm_bytes=200)
            assert list(holder._kept) == ["2"]
        assert column() is None
    finally:
        gc.unfreeze()


def test_only_living_workers_of_the_same_user_and_container_are_asked(folder: Path) -> None:
    mine = folder / "7-100"
    assert is_neighbour(str(folder / "7-101" / f"{os.getpid()}-ab.socket"), mine)
    assert not is_neighbour(str(folder / "7-101" / f"{ended_process()}-ab.socket"), mine)
    assert not is_neighbour(str(folder / "8-101" / f"{os.getpid()}-ab.socket"), mine)
    assert not is_neighbour(str(folder / "else" / "7-101" / f"{os.getpid()}-ab.socket"), mine)


def test_an_address_that_leads_out_of_the_folders_of_executors_is_not_asked(folder: Path) -> None:
    mine, name = folder / "7-100", f"{os.getpid()}-ab.socket"
    mine.mkdir()
    for address in (f"/etc/{name}", f"{mine}/../../7-101/{name}", f"{mine}/7-1/../{name}", f"../7-101/{name}", "7", ""):
        assert not is_neighbour(address, mine), address
