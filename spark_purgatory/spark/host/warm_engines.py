"""Engines that stay in the memory of the Python worker that loaded them, where every other worker can step them.

Spark gives a partition to any idle worker, so a worker seldom meets a shard twice in a row. Therefore the worker that
loaded a shard *keeps* its engine. One of its threads answers on a Unix socket, whose address is in the shard's head.
The worker that has the task sends it the step and receives the outcomes.

A kept engine is trusted only by its token (docs/protocol.md): a step removes the token before it begins and sets the
next one when it is done. Engines end with Spark's workers, and no loss matters: after a miss the shard is loaded from
its state.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from spark_purgatory import errors
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.state.engine_snapshot import gauges_of, save, tally_of
from spark_purgatory.core.state.step_log import Step, take_step
from spark_purgatory.errors import PurgatoryError
from spark_purgatory.spark.host.calls import added, counts_of, packed
from spark_purgatory.spark.host.worker import end_task, prepare_worker

LOG = logging.getLogger(__name__)
IDLE_SECONDS = 600.0
"""An engine without a request in this time is dropped: its query has ended, another worker holds its shard, or
micro-batches are so far apart that loading it again does not matter."""
ANSWER_SECONDS = 600.0  # A holder that takes longer counts as lost
LOOK_SECONDS = 1.0  # How often a worker that waits for an answer looks if the holder is alive
BACKLOG = 64  # Workers that may connect at the same moment
TIME = struct.Struct("ll")  # ``struct timeval``: seconds and microseconds


@dataclass(frozen=True)
class Request:
    """A step, and the engine that it is meant for."""

    shard_id: str
    token: str
    next_token: str  # The engine's token after the step
    spec_digest: str
    step: Step
    shards: int
    max_warm_bytes: int
    wants_snapshot: bool = False


@dataclass(frozen=True)
class Answer:
    outcomes: bytes | None
    counted: dict[str, int]  # The increase of `calls.counts_of` in the step
    due_ms: int | None
    gauges: dict[str, Any]
    tally: dict[str, Any]
    warm_bytes: int
    holder: str = ""  # Address of the worker that holds the engine after the step; empty if none does
    snapshot: bytes | None = None


# --- the folder where the workers of an executor meet ----------------------------------------------------------------


def executor_folder() -> Path | None:
    """Return the folder of this executor, which only this user can enter; None if it cannot be made.

    All workers of an executor are children of one process, whose number is in the folder's name, with the process
    namespace: containers number their processes separately and may share the parent folder.
    """
    base = Path(tempfile.gettempdir()) / f"spark_purgatory-{os.getuid()}"
    namespace = 0
    with suppress(OSError):
        namespace = os.stat("/proc/self/ns/pid").st_ino
    folder = base / f"{namespace}-{os.getppid()}"
    try:
        base.mkdir(mode=0o700, exist_ok=True)
        found = base.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            LOG.warning("%s is not a folder of this user alone: no engine is kept in memory", base)
            return None
        folder.mkdir(mode=0o700, exist_ok=True)
        for other in base.glob(f"{namespace}-*"):
            if _has_ended(other.name.rpartition("-")[2]):
                shutil.rmtree(other, ignore_errors=True)
        for file in folder.iterdir():
            if _is_left_over(file):
                file.unlink(missing_ok=True)
    except OSError as error:
        LOG.warning("cannot make a folder for sockets below %s (%s): no engine is kept in memory", base, error)
        return None
    return folder


def _has_ended(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except (ValueError, PermissionError):  # It is not a number, or another user's process.
        return False
    return False


def _is_left_over(file: Path) -> bool:
    """Return True if the worker whose number begins the file's name has ended."""
    return _has_ended(file.name.partition("-")[0])


def is_neighbour(address: str, folder: Path) -> bool:
    """Return True if a socket belongs to a living worker of this user, on this machine and in this container.

    Addresses come from a checkpoint, which another machine may have written.
    """
    path = Path(address)
    namespaces = [each.name.partition("-")[0] for each in (path.parent, folder)]
    return path.parent.parent == folder.parent and namespaces[0] == namespaces[1] and not _is_left_over(path)


def connect(address: str, seconds: float) -> Connection:
    """Connect to a worker. Raises OSError if nobody listens, and later if a transfer takes longer than ``seconds``."""
    connection = Client(address, "AF_UNIX")
    with socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as same:
        limit = TIME.pack(int(seconds), int(seconds % 1 * 1e6))
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            same.setsockopt(socket.SOL_SOCKET, option, limit)
    return connection


# --- the engines -----------------------------------------------------------------------------------------------------


@dataclass
class _Kept:
    engine: EventTimePurgatory | None  # None after it was released
    token: str  # Empty during a step, and from then on if the step fails
    spec_digest: str
    size: int = 0
    asked_at: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def release(self) -> None:
        """Let go of the engine for good. The caller holds the lock."""
        self.token, self.engine = "", None

    def release_unless_stepped(self) -> bool:
        """Let go of the engine, and return True, unless a step is being made."""
        if not self.lock.acquire(blocking=False):
            return False
        self.release()
        self.lock.release()
        return True


class WarmEngines:
    def __init__(self, folder: Path | None, name: str = "") -> None:
        self._folder = folder
        self._name = name or f"{os.getpid()}-{os.urandom(4).hex()}"
        self._kept: dict[str, _Kept] = {}
        self._guard = threading.Lock()
        self._address = ""
        self._clients: dict[str, Connection] = {}
        self._has_warned = False

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def address(self) -> str:
        """The address at which other workers of this machine can ask; empty if they cannot."""
        if not self._address and self._folder is not None:
            self._listen(self._folder)
        return self._address

    def ask(self, holder: str, request: Request) -> Answer | None:
        """Have the holder make a step, and raise what it raises; None if it does not keep the engine in this state."""
        if not holder:
            return None
        if holder == self.address:
            return self.step(request)
        if self._folder is None or not is_neighbour(holder, self._folder):
            self._forget_client(holder)
            return None
        try:
            connection = self._clients.get(holder)
            if connection is None:
                connection = self._clients[holder] = connect(holder, ANSWER_SECONDS)
            connection.send(request)
            until = time.monotonic() + ANSWER_SECONDS
            while not connection.poll(LOOK_SECONDS):
                # A child that a user's function forked may keep the socket of a dead holder open.
                if _is_left_over(Path(holder)) or time.monotonic() > until:
                    raise TimeoutError
            answer = connection.recv()
        except (OSError, EOFError):
            self._forget_client(holder)  # The worker has ended, or belongs to another machine
            return None
        if isinstance(answer, tuple):
            raise errors.again(*answer)
        return answer

    def step(self, request: Request) -> Answer | None:
        """Step a kept engine; one that is not in the requested state is dropped, and the answer is None."""
        self._drop_idle()
        with self._guard:
            kept = self._kept.get(request.shard_id)
            if kept is None:
                return None
            kept.asked_at = time.monotonic()
        with kept.lock:
            if kept.engine is None or kept.token != request.token or kept.spec_digest != request.spec_digest:
                self._drop(request.shard_id, kept)
                return None
            kept.token = ""
            try:
                answer = step_engine(kept.engine, request, self.address)
            except BaseException:
                self._drop(request.shard_id, kept)
                raise
            kept.token, kept.size = request.next_token, answer.warm_bytes
            if self._size() > request.max_warm_bytes:
                self._drop(request.shard_id, kept)
                return replace(answer, holder="")
        return answer

    def keep(self, request: Request, engine: EventTimePurgatory, size: int) -> bool:
        """Keep an engine that was stepped as the request says; False if there is no room for it."""
        if not self.address:
            return False
        self._drop_idle()
        with self._guard:
            former = self._kept.pop(request.shard_id, None)
        if former is not None:
            former.release_unless_stepped()
        fits = self._size() + size <= request.max_warm_bytes
        if fits:
            with self._guard:
                self._kept[request.shard_id] = _Kept(engine, request.next_token, request.spec_digest, size)
        elif not self._has_warned:
            self._has_warned = True
            LOG.warning(
                "max_warm_bytes is %s, and another shard with %s bytes does not fit into this worker: shards that are "
                "not kept are loaded from the checkpoint in each micro-batch",
                f"{request.max_warm_bytes:,}",
                f"{size:,}",
            )
        return fits

    def _drop_idle(self) -> None:
        before = time.monotonic() - IDLE_SECONDS
        for shard_id, kept in list(self._kept.items()):
            if kept.asked_at < before and kept.release_unless_stepped():
                self._drop(shard_id, kept)

    def _size(self) -> int:
        return sum(kept.size for kept in list(self._kept.values()))

    def _drop(self, shard_id: str, kept: _Kept) -> None:
        """Stop keeping an engine. The caller holds its lock, or has released it."""
        kept.release()
        with self._guard:
            if self._kept.get(shard_id) is kept:
                del self._kept[shard_id]

    def _forget_client(self, holder: str) -> None:
        connection = self._clients.pop(holder, None)
        if connection is not None:
            connection.close()

    def _listen(self, folder: Path) -> None:
        address = str(folder / f"{self._name}.socket")
        try:
            listener = Listener(address, "AF_UNIX", BACKLOG)
        except OSError as error:
            self._folder = None
            LOG.warning(
                "cannot open a socket at %s (%s): no engine is kept in memory; set TMPDIR to a short path of a folder "
                "that can be written",
                address,
                error,
            )
            return
        self._address = address
        _start(self._accept, listener)

    def _accept(self, listener: Listener) -> None:
        with listener, suppress(OSError):
            while True:
                _start(self._serve, listener.accept())

    def _serve(self, connection: Connection) -> None:
        prepare_worker()
        with connection, suppress(OSError, EOFError):
            while True:
                self._answer(connection)

    def _answer(self, connection: Connection) -> None:
        """Answer one request. As a method it leaves no variables in memory until the next request."""
        request = connection.recv()
        answer: Answer | tuple[str, str] | None = None
        try:
            answer = self.step(request)
        except PurgatoryError as error:
            answer = type(error).__name__, str(error)
        except Exception:
            # The task's own worker loads the shard, and raises the same error with its own stack.
            LOG.exception("a step of a kept engine failed")
        connection.send(answer)
        end_task()


def _start(run: Callable[[Any], None], argument: Any) -> None:
    threading.Thread(target=run, args=(argument,), name="spark_purgatory-warm", daemon=True).start()


def step_engine(engine: EventTimePurgatory, request: Request, holder: str) -> Answer:
    """Make a step with an engine; ``holder``: the address that the answer names."""
    before = counts_of(engine.outcomes.tally)
    outcomes = packed(take_step(engine, request.step, is_kept=True))
    return Answer(
        outcomes=outcomes,
        counted=added(engine.outcomes.tally, before),
        due_ms=engine.next_due_ms(),
        gauges=gauges_of(engine),
        tally=tally_of(engine),
        warm_bytes=engine.memory_bytes,
        holder=holder,
        snapshot=save(engine, request.shards) if request.wants_snapshot else None,
    )


@cache
def warm_engines() -> WarmEngines:
    return WarmEngines(executor_folder())
