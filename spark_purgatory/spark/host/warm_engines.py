"""Engines that stay in the memory of the Python worker that loaded them, where every other worker can step them.

Spark gives a partition to any idle worker, so a worker seldom meets a shard twice in a row. Therefore the worker that
loaded a shard *keeps* its engine. One of its threads answers on a Unix socket, whose address is in the shard's head.
The worker that has the task sends it the step and receives the outcomes.

A kept engine is trusted only by its token: `WarmEngines.step` answers if the engine has the token of the state that
Spark committed, and the spec of the query that asks. A step removes the token before it begins and sets the next one
when it is done. So an engine whose step failed, was repeated or was not committed is never used again, and is dropped.

Engines end with Spark's workers, and no loss matters: after a miss the shard is loaded from its state.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import struct
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path

from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.state.engine_snapshot import gauges_of, save, tally_of
from spark_purgatory.core.state.step_log import take_step
from spark_purgatory.errors import PurgatoryError
from spark_purgatory.spark.host import warm_messages
from spark_purgatory.spark.host.calls import added, counts_of, packed
from spark_purgatory.spark.host.warm_messages import LONGEST_ADDRESS, Answer, Request, Server, connect
from spark_purgatory.spark.host.worker import give_memory_back, prepare_worker

# The folder where the workers of an executor meet: their sockets, and the bytes of engines that each of them holds.

NUMBER = struct.Struct("<q")


def executor_folder() -> Path | None:
    """Return the folder of this executor, which only this user can enter; None if it cannot be made.

    All workers of an executor are children of one process, whose number is in the folder's name. Containers number
    their processes separately and may share the parent folder, so the name also has the process namespace. Folders of
    processes that have ended are removed.
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


class KeptSizes:
    """The bytes of engines that the workers of a folder keep, in a file of eight bytes for each worker."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._path = folder / f"{name}.size"
        self._file = -1

    def note(self, size: int) -> None:
        """Let the other workers know this worker's bytes. Raises OSError if the folder is gone or the disk is full.

        The number is written in place, so that no worker reads a file without one.
        """
        if self._file < 0:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.pwrite(self._file, NUMBER.pack(size), 0)

    def of_others(self) -> int:
        """Return the bytes that the other living workers keep."""
        total = 0
        for file in self._folder.glob("[0-9]*.size"):
            if file != self._path and not _is_left_over(file):
                with suppress(OSError, struct.error):
                    total += NUMBER.unpack(file.read_bytes())[0]
        return total

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep the other workers of the folder out of such a block, so that room cannot be taken twice."""
        try:
            file = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # The folder is gone, and with it the engines that others keep.
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def close(self) -> None:
        """Remove this worker's file: it holds nothing any more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._path.unlink(missing_ok=True)


# --- --------------------------------------------------------------------------------------------------------------

STALE_SECONDS = 120.0
"""An engine without a request in this time makes room for another one; a younger one does not. Each micro-batch asks
for all shards of a query in turn, so the engine that was asked for longest ago is the one that is needed next."""
FORGOTTEN_SECONDS = 1200.0
"""An engine without a request in this time is dropped: its query has ended, or another worker holds its shard."""
ANSWER_SECONDS = 600.0  # A holder that takes longer counts as lost.

LOG = logging.getLogger(__name__)


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
        self._sizes = None if folder is None else KeptSizes(folder, self._name)
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._guard = threading.Lock()
        self._server: Server | None = None
        self._clients: dict[str, Connection] = {}
        self._said: set[str] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def address(self) -> str:
        """The address at which other workers of this machine can ask; empty if they cannot."""
        if self._server is None and self._folder is not None:
            self._listen(self._folder)
        return "" if self._server is None else self._server.address

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
            warm_messages.send_request(connection, request)
            if not connection.poll(ANSWER_SECONDS):
                raise TimeoutError
            return warm_messages.receive_answer(connection)
        except (OSError, EOFError):
            self._forget_client(holder)  # The worker has ended, or belongs to another machine
            return None

    def step(self, request: Request) -> Answer | None:
        """Step a kept engine; one that is not in the requested state is dropped, and the answer is None."""
        self._let_go_of(FORGOTTEN_SECONDS)
        with self._guard:
            kept = self._kept.get(request.shard_id)
            if kept is None:
                return None
            self._kept.move_to_end(request.shard_id)
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
            if not self._fits(0, request.max_warm_bytes):
                self._drop(request.shard_id, kept)
                return replace(answer, holder="")
        self._note_size()
        return answer

    def keep(self, request: Request, engine: EventTimePurgatory, size: int) -> bool:
        """Keep an engine that was stepped as the request says; False if there is no room for it."""
        if self._sizes is None or not self.address:
            return False
        self._let_go_of(FORGOTTEN_SECONDS)
        with self._sizes.alone():
            with self._guard:
                former = self._kept.pop(request.shard_id, None)
            if former is not None:
                former.release_unless_stepped()
            fits = self._fits(size, request.max_warm_bytes)
            if fits:
                with self._guard:
                    self._kept[request.shard_id] = _Kept(engine, request.next_token, request.spec_digest, size)
            else:
                said = (
                    "max_warm_bytes is %s, and another shard with %s bytes does not fit: shards that are not kept are "
                    "loaded from the checkpoint in each micro-batch"
                )
                self._say_once("full", said, f"{request.max_warm_bytes:,}", f"{size:,}")
            self._note_size()
        return fits

    def _fits(self, size: int, max_warm_bytes: int) -> bool:
        """Return True if ``size`` more bytes are within the budget, if need be without engines that are stale."""
        if self._size() + size > max_warm_bytes:
            self._let_go_of(STALE_SECONDS, until_fits=max_warm_bytes - size)
        return self._size() + size <= max_warm_bytes

    def _let_go_of(self, seconds: float, until_fits: int = -1) -> None:
        """Drop engines without a request in so many seconds, the oldest first, until no more bytes are kept."""
        before = time.monotonic() - seconds
        for shard_id, kept in list(self._kept.items()):
            if kept.asked_at < before and self._size() > until_fits and kept.release_unless_stepped():
                self._drop(shard_id, kept)

    def _size(self) -> int:
        """Return the bytes of engines that the workers of this executor keep."""
        others = 0 if self._sizes is None else self._sizes.of_others()
        return others + sum(kept.size for kept in list(self._kept.values()))

    def _note_size(self) -> None:
        """Let the other workers of this executor know how much this one keeps, and give other memory back."""
        if self._sizes is not None:
            # The guard makes the thread that comes later note the later size.
            with self._guard:
                size = sum(kept.size for kept in self._kept.values())
                try:
                    self._sizes.note(size)
                except OSError:
                    self._say_once("note", "cannot write to %s: max_warm_bytes counts this worker alone", self._folder)
            give_memory_back(size)

    def _say_once(self, what: str, message: str, *values: object) -> None:
        if what not in self._said:
            self._said.add(what)
            LOG.warning(message, *values)

    def _drop(self, shard_id: str, kept: _Kept) -> None:
        """Stop keeping an engine. The caller holds its lock, or has released it."""
        kept.release()
        with self._guard:
            if self._kept.get(shard_id) is kept:
                del self._kept[shard_id]
        self._note_size()

    def _forget_client(self, holder: str) -> None:
        connection = self._clients.pop(holder, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Drop all engines and stop answering, as when the worker ends."""
        with self._guard:
            self._closed = True
            self._kept.clear()
        if self._server is not None:
            self._server.close()
        if self._sizes is not None:
            self._sizes.close()
        for holder in list(self._clients):
            self._forget_client(holder)

    # --- answering -------------------------------------------------------------------------------------

    def _listen(self, folder: Path) -> None:
        address = str(folder / f"{self._name}.socket")
        if len(os.fsencode(address)) > LONGEST_ADDRESS:
            self._folder = None
            LOG.warning("%s is too long a path for a socket: no engine is kept in memory; set TMPDIR", address)
            return
        try:
            self._server = Server(address, self._serve)
        except OSError as error:
            self._folder = None
            LOG.warning("cannot open a socket at %s (%s): no engine is kept in memory", address, error)

    def _serve(self, connection: Connection) -> None:
        prepare_worker()
        with suppress(OSError, EOFError):
            while not self._closed:
                self._answer(connection)

    def _answer(self, connection: Connection) -> None:
        """Answer one request. As a method it leaves no variables in memory until the next request."""
        request = warm_messages.receive_request(connection)
        if self._closed:
            return
        try:
            answer: Answer | PurgatoryError | None = self.step(request)
        except PurgatoryError as error:
            answer = error
        except Exception:
            # The task's own worker loads the shard, and raises the same error with its own stack.
            LOG.exception("a step of a kept engine failed")
            answer = None
        warm_messages.send_answer(connection, answer)


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
