"""Engines that stay in the memory of the Python worker that loaded them, and are stepped there from any other.

Spark gives a partition to whichever worker is idle, so a worker seldom meets a shard twice in a row. So the worker
that loaded a shard *holds* its engine: a thread of it answers on a Unix socket, and the worker that has the task sends
it the step and is sent the outcomes. Whoever holds is asked directly: its address is in the shard's head.

What is held is never trusted beyond its token: `WarmEngines.step` answers only if the engine has the token of the
state that Spark committed, and the spec of the query that asks. A step takes the token away before it begins and gives
the next one when it is done. So an engine whose step failed, was repeated, or was not committed is found by nobody, and
is dropped.

Nothing here outlives Spark's workers, and nothing that is lost matters: a miss is a shard that is loaded again.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
import struct
import tempfile
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.state.engine_snapshot import gauges_of, save, tally_of
from spark_purgatory.core.state.step_log import take_step
from spark_purgatory.errors import PurgatoryError
from spark_purgatory.spark.host.calls import added, counts_of, packed
from spark_purgatory.spark.host.warm_messages import (
    Answer,
    Request,
    receive_answer,
    receive_request,
    send_answer,
    send_request,
)
from spark_purgatory.spark.host.worker import give_memory_back, prepare_worker

LONGEST_ADDRESS = 100
"""Bytes of a socket's path: the system takes 107 at most."""
STALE_SECONDS = 120.0
"""An engine that nobody asked for in this time makes room for another one. Within it none does: in each micro-batch
all shards of a query are asked for in turn, and to drop the one that was least recently asked for would be to drop the
one that is asked for next."""
ANSWER_SECONDS = 600.0
"""A holder that takes longer counts as lost."""

logger = logging.getLogger(__name__)


@dataclass
class _Held:
    engine: EventTimePurgatory
    token: str
    """Empty while a step is made, and for good if it fails."""
    spec_digest: str
    size: int = 0
    asked_at: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)


class WarmEngines:
    """The engines that this process holds."""

    def __init__(self, folder: Path | None, name: str = "") -> None:
        self._folder = folder
        self._name = name or f"{os.getpid()}-{os.urandom(4).hex()}"
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._guard = threading.Lock()
        self._address = ""
        self._clients: dict[str, Connection] = {}
        self._said_full = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._held)

    @property
    def address(self) -> str:
        """Where other workers of this machine can ask; empty: they cannot."""
        if not self._address and self._folder is not None:
            self._listen(str(self._folder / f"{self._name}.socket"))
        return self._address

    def ask(self, holder: str, request: Request) -> Answer | None:
        """Have the holder make a step; None where it does not hold the engine in this state.

        Raises what the step raises.
        """
        if not holder:
            return None
        if holder == self.address:
            return self.step(request)
        try:
            connection = self._clients.get(holder)
            if connection is None:
                connection = self._clients[holder] = Client(holder, family="AF_UNIX")
            send_request(connection, request)
            if not connection.poll(ANSWER_SECONDS):
                raise TimeoutError
            return receive_answer(connection)
        except (OSError, EOFError):
            # The worker was ended, or is of another machine.
            self._forget_client(holder)
            return None

    def step(self, request: Request) -> Answer | None:
        """Step a held engine; None where it is not held in this state, and then it is dropped."""
        with self._guard:
            held = self._held.get(request.shard_id)
            if held is None:
                return None
            self._held.move_to_end(request.shard_id)
            held.asked_at = time.monotonic()
        with held.lock:
            if held.token != request.token or held.spec_digest != request.spec_digest:
                self._drop(request.shard_id, held)
                return None
            held.token = ""
            try:
                answer = step_engine(held.engine, request, self.address)
            except BaseException:
                self._drop(request.shard_id, held)
                raise
            held.token, held.size = request.next_token, answer.warm_bytes
        self._note_size()
        if self._size() > request.max_warm_bytes:
            # It has grown, and counts for more than the budget has.
            self._drop(request.shard_id, held)
            return replace(answer, holder="")
        return answer

    def hold(self, request: Request, engine: EventTimePurgatory, size: int) -> bool:
        """Keep an engine that was stepped as the request says; False where there is no room for it."""
        if not self.address or not self._make_room(request, size):
            self._note_size()
            return False
        with self._guard:
            self._held[request.shard_id] = _Held(engine, request.next_token, request.spec_digest, size)
        self._note_size()
        return True

    def _make_room(self, request: Request, size: int) -> bool:
        """Whether ``size`` bytes more are within the budget, perhaps without engines that nobody asks for any more."""
        with self._guard:
            self._held.pop(request.shard_id, None)
            stale = [
                shard_id
                for shard_id, held in self._held.items()
                if time.monotonic() - held.asked_at > STALE_SECONDS and not held.lock.locked()
            ]
            while stale and self._size() + size > request.max_warm_bytes:
                del self._held[stale.pop(0)]
            fits = self._size() + size <= request.max_warm_bytes
        if not fits and not self._said_full:
            self._said_full = True
            logger.warning(
                "max_warm_bytes is %s, and another shard with %s bytes does not fit: shards that are not held are "
                "loaded from the checkpoint in each micro-batch",
                f"{request.max_warm_bytes:,}",
                f"{size:,}",
            )
        return fits

    def _size(self) -> int:
        """Bytes of engines that the workers of this executor hold."""
        others = 0
        if self._folder is not None:
            for file in self._folder.glob("*.size"):
                if file.stem != self._name:
                    others += _noted(file)
        return others + sum(held.size for held in list(self._held.values()))

    def _note_size(self) -> None:
        """Let the other workers of this executor know how much this one holds, and keep no more than that."""
        if self._folder is not None:
            # Under the guard, so that of two threads the later one notes the later size.
            with self._guard:
                size = sum(held.size for held in self._held.values())
                try:
                    (self._folder / f"{self._name}.size").write_bytes(struct.pack("<q", size))
                except OSError:
                    logger.warning("cannot write to %s: max_warm_bytes counts this worker alone", self._folder)
            give_memory_back(size)

    def _drop(self, shard_id: str, held: _Held) -> None:
        with self._guard:
            if self._held.get(shard_id) is held:
                del self._held[shard_id]
        self._note_size()

    def _forget_client(self, holder: str) -> None:
        connection = self._clients.pop(holder, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Hold nothing, and answer nobody any more: as when the worker ends."""
        with self._guard:
            self._closed = True
            self._held.clear()
        if self._address:
            # Wakes the thread that waits for connections: it ends.
            with suppress(OSError):
                Client(self._address, family="AF_UNIX").close()
            Path(self._address).unlink(missing_ok=True)
        if self._folder is not None:
            (self._folder / f"{self._name}.size").unlink(missing_ok=True)
        for holder in list(self._clients):
            self._forget_client(holder)

    # --- answering -------------------------------------------------------------------------------------

    def _listen(self, address: str) -> None:
        if len(os.fsencode(address)) > LONGEST_ADDRESS:
            self._folder = None
            logger.warning("%s is too long a path for a socket: no engine is kept in memory; set TMPDIR", address)
            return
        try:
            listener = Listener(address, family="AF_UNIX", backlog=64)
        except OSError as error:
            self._folder = None
            logger.warning("cannot open a socket at %s (%s): no engine is kept in memory", address, error)
            return
        self._address = address
        threading.Thread(target=self._accept, args=(listener,), name="spark_purgatory-warm", daemon=True).start()

    def _accept(self, listener: Listener) -> None:
        while True:
            try:
                connection = listener.accept()
            except OSError:
                return
            if self._closed:
                connection.close()
                with suppress(OSError):
                    listener.close()
                return
            threading.Thread(target=self._serve, args=(connection,), name="spark_purgatory-warm", daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        prepare_worker()
        with connection:
            while True:
                try:
                    request = receive_request(connection)
                    if self._closed:
                        return
                    try:
                        answer: Answer | PurgatoryError | None = self.step(request)
                    except PurgatoryError as error:
                        answer = error
                    except Exception:
                        # The task's own worker loads the shard and meets the same error, with its own stack.
                        logger.exception("a step of a held engine failed")
                        answer = None
                    send_answer(connection, answer)
                except (OSError, EOFError):
                    return


def step_engine(engine: EventTimePurgatory, request: Request, holder: str) -> Answer:
    """Make a step with an engine."""
    before = counts_of(engine.outcomes.tally)
    outcomes = packed(take_step(engine, request.step, is_kept=True))
    return Answer(
        outcomes,
        added(engine.outcomes.tally, before),
        engine.next_due_ms(),
        gauges_of(engine),
        tally_of(engine),
        engine.memory_bytes,
        holder,
        save(engine, request.shards) if request.wants_snapshot else None,
    )


@cache
def warm_engines() -> WarmEngines:
    """This worker's."""
    return WarmEngines(executor_folder())


def executor_folder() -> Path | None:
    """Where the workers of this executor meet: a folder that only this user can enter. None: there is none.

    All of them are children of one process. Folders of processes that are gone are removed.
    """
    base = Path(tempfile.gettempdir()) / f"spark_purgatory-{os.getuid()}"
    folder = base / str(os.getppid())
    try:
        base.mkdir(mode=0o700, exist_ok=True)
        found = base.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            logger.warning("%s is not a folder of this user alone: no engine is kept in memory", base)
            return None
        folder.mkdir(mode=0o700, exist_ok=True)
        for other in base.iterdir():
            if other.name.isdigit() and not _is_alive(int(other.name)):
                shutil.rmtree(other, ignore_errors=True)
        for file in folder.iterdir():
            worker = file.name.partition("-")[0]
            if worker.isdigit() and not _is_alive(int(worker)):
                file.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("no folder for sockets below %s (%s): no engine is kept in memory", base, error)
        return None
    return folder


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _noted(file: Path) -> int:
    """What a worker says it holds, 0 where it is gone."""
    try:
        worker = int(file.name.partition("-")[0])
        size: int = struct.unpack("<q", file.read_bytes())[0]
    except (OSError, ValueError, struct.error):
        return 0
    return size if _is_alive(worker) else 0
