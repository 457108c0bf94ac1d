"""Engines that stay in the memory of the Python worker that loaded them, and are stepped there from any other.

Spark gives a partition to whichever worker is idle, so a worker seldom meets a shard twice in a row. So the worker
that loaded a shard *keeps* its engine: a thread of it answers on a Unix socket, and the worker that has the task sends
it the step and is sent the outcomes. Whoever keeps it is asked directly: its address is in the shard's head.

What is kept is never trusted beyond its token: `WarmEngines.step` answers only if the engine has the token of the
state that Spark committed, and the spec of the query that asks. A step takes the token away before it begins and gives
the next one when it is done. So an engine whose step failed, was repeated, or was not committed is found by nobody, and
is dropped.

Nothing here outlives Spark's workers, and nothing that is lost matters: a miss is a shard that is loaded again.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from contextlib import suppress
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
from spark_purgatory.spark.host.warm_folder import KeptSizes, executor_folder, is_neighbour
from spark_purgatory.spark.host.warm_messages import Answer, Request
from spark_purgatory.spark.host.warm_sockets import LONGEST_ADDRESS, Server, connect
from spark_purgatory.spark.host.worker import give_memory_back, prepare_worker

STALE_SECONDS = 120.0
"""An engine that nobody asked for in this time makes room for another one. Within it none does: in each micro-batch
all shards of a query are asked for in turn, and to drop the one that was least recently asked for would be to drop the
one that is asked for next."""
FORGOTTEN_SECONDS = 1200.0
"""An engine that nobody asked for in this time is let go: its query has ended, or another worker holds its shard."""
ANSWER_SECONDS = 600.0
"""A holder that takes longer counts as lost."""

LOG = logging.getLogger(__name__)


@dataclass
class _Kept:
    engine: EventTimePurgatory | None
    """None: it is kept no more."""
    token: str
    """Empty while a step is made, and for good if it fails."""
    spec_digest: str
    size: int = 0
    asked_at: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def release(self) -> None:
        """Let go of the engine, for good; only with the lock."""
        self.token, self.engine = "", None

    def release_unless_stepped(self) -> bool:
        """The same, where nobody steps it just now; whether it was done."""
        if not self.lock.acquire(blocking=False):
            return False
        self.release()
        self.lock.release()
        return True


class WarmEngines:
    """The engines that this process holds."""

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
        """Where other workers of this machine can ask; empty: they cannot."""
        if self._server is None and self._folder is not None:
            self._listen(self._folder)
        return "" if self._server is None else self._server.address

    def ask(self, holder: str, request: Request) -> Answer | None:
        """Have the holder make a step, and raise what that raises; None where the engine is not kept in this state."""
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
            # The worker was ended, or is of another machine.
            self._forget_client(holder)
            return None

    def step(self, request: Request) -> Answer | None:
        """Step a kept engine; None where it is not kept in this state, and then it is dropped."""
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
            if self._size() > request.max_warm_bytes:
                self._let_go_of(STALE_SECONDS, until_fits=request.max_warm_bytes)
            if self._size() > request.max_warm_bytes:
                # It has grown, and counts for more than the budget has.
                self._drop(request.shard_id, kept)
                return replace(answer, holder="")
        self._note_size()
        return answer

    def keep(self, request: Request, engine: EventTimePurgatory, size: int) -> bool:
        """Keep an engine that was stepped as the request says; False where there is no room for it."""
        if self._sizes is None or not self.address:
            return False
        self._let_go_of(FORGOTTEN_SECONDS)
        with self._sizes.alone():
            with self._guard:
                former = self._kept.pop(request.shard_id, None)
            if former is not None:
                former.release_unless_stepped()
            fits = self._makes_room(size, request.max_warm_bytes)
            if fits:
                with self._guard:
                    self._kept[request.shard_id] = _Kept(engine, request.next_token, request.spec_digest, size)
            self._note_size()
        return fits

    def _makes_room(self, size: int, max_warm_bytes: int) -> bool:
        """Whether ``size`` bytes more are within the budget, perhaps without engines that nobody asks for any more."""
        if self._size() + size > max_warm_bytes:
            self._let_go_of(STALE_SECONDS, until_fits=max_warm_bytes - size)
        fits = self._size() + size <= max_warm_bytes
        if not fits:
            self._say_once(
                "full",
                "max_warm_bytes is %s, and another shard with %s bytes does not fit: shards that are not kept are "
                "loaded from the checkpoint in each micro-batch",
                f"{max_warm_bytes:,}",
                f"{size:,}",
            )
        return fits

    def _let_go_of(self, seconds: float, until_fits: int = -1) -> None:
        """Drop engines that nobody asked for in so many seconds, the longest first, until that many bytes are kept."""
        before = time.monotonic() - seconds
        for shard_id, kept in list(self._kept.items()):
            if kept.asked_at < before and self._size() > until_fits and kept.release_unless_stepped():
                self._drop(shard_id, kept)

    def _size(self) -> int:
        """Bytes of engines that the workers of this executor keep."""
        others = 0 if self._sizes is None else self._sizes.of_others()
        return others + sum(kept.size for kept in list(self._kept.values()))

    def _note_size(self) -> None:
        """Let the other workers of this executor know how much this one keeps, and keep no more than that."""
        if self._sizes is not None:
            # Under the guard, so that of two threads the later one notes the later size.
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
        """Keep it no more; with its lock, or once it was released."""
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
        """Keep nothing, and answer nobody any more: as when the worker ends."""
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
        """Answer one request. A method of its own, so that nothing of it is kept until the next one."""
        request = warm_messages.receive_request(connection)
        if self._closed:
            return
        try:
            answer: Answer | PurgatoryError | None = self.step(request)
        except PurgatoryError as error:
            answer = error
        except Exception:
            # The task's own worker loads the shard and meets the same error, with its own stack.
            LOG.exception("a step of a kept engine failed")
            answer = None
        warm_messages.send_answer(connection, answer)


def step_engine(engine: EventTimePurgatory, request: Request, holder: str) -> Answer:
    """Make a step with an engine."""
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
    """This worker's."""
    return WarmEngines(executor_folder())
