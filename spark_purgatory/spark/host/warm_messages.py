"""Messages between the workers of a machine, a line of JSON and then blobs, and the Unix sockets that carry them."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from spark_purgatory import errors
from spark_purgatory.core.state.step_log import Step
from spark_purgatory.errors import PurgatoryError

LONGEST_ADDRESS = 100  # Bytes of a socket's path. The system takes 107 at most
BACKLOG = 64
MOST_CONNECTIONS = 256  # One for each worker, with a thread here. Further ones are closed at once
MOST_LINE_BYTES = 1 << 20
MOST_BLOB_BYTES = (1 << 31) - 1  # The longest binary value that Spark has
TIME = struct.Struct("ll")  # ``struct timeval``: seconds and microseconds


@dataclass(frozen=True)
class Request:
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


def send_request(connection: Connection, request: Request) -> None:
    step = request.step
    counts = (step.watermark_ms, len(step.operations), len(step.events))
    _send(connection, {**vars(request), "step": counts}, [*step.operations, *step.events])


def receive_request(connection: Connection) -> Request:
    with _understood():
        fields = json.loads(connection.recv_bytes(MOST_LINE_BYTES))
        watermark_ms, *counts = fields["step"]
        operations, events = ([connection.recv_bytes(MOST_BLOB_BYTES) for _ in range(count)] for count in counts)
        return Request(**{**fields, "step": Step(watermark_ms, operations, events)})


def send_answer(connection: Connection, answer: Answer | PurgatoryError | None) -> None:
    """Send the answer to a request; None if the engine is not kept."""
    if answer is None:
        _send(connection, {"missed": True}, [])
    elif isinstance(answer, PurgatoryError):
        _send(connection, {"error": type(answer).__name__, "message": str(answer)}, [])
    else:
        blobs = {name: getattr(answer, name) for name in ("outcomes", "snapshot")}
        given = [name for name, blob in blobs.items() if blob is not None]
        fields = {name: value for name, value in vars(answer).items() if name not in blobs}
        _send(connection, {"answer": fields, "blobs": given}, [blobs[name] for name in given])


def receive_answer(connection: Connection) -> Answer | None:
    """Return the answer, None if the engine is not kept. Raises the error that the step raised."""
    with _understood():
        fields = json.loads(connection.recv_bytes(MOST_LINE_BYTES))
        if "missed" in fields:
            return None
        if "error" not in fields:
            blobs = {name: connection.recv_bytes(MOST_BLOB_BYTES) for name in fields["blobs"]}
            return Answer(**fields["answer"], outcomes=blobs.get("outcomes"), snapshot=blobs.get("snapshot"))
        error = errors.again(fields["error"], str(fields["message"]))
    raise error


@contextmanager
def _understood() -> Iterator[None]:
    """Raise OSError for a message that is not one of these, so that its sender counts as lost."""
    try:
        yield
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise OSError(f"a message of another worker cannot be understood ({type(error).__name__})") from error


def _send(connection: Connection, fields: dict[str, Any], blobs: Sequence[bytes]) -> None:
    connection.send_bytes(json.dumps(fields).encode())
    for blob in blobs:
        connection.send_bytes(blob)


def connect(address: str, seconds: float) -> Connection:
    """Connect to a worker. Raises OSError if nobody listens, and later if a transfer takes longer than ``seconds``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        limit = TIME.pack(int(seconds), int(seconds % 1 * 1e6))
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            made.setsockopt(socket.SOL_SOCKET, option, limit)
        made.connect(address)
        return Connection(made.detach())


class Server:
    """Listens at an address, and serves each connection in a thread of its own until it is closed."""

    def __init__(self, address: str, serve: Callable[[Connection], None]) -> None:
        """Listen at a path. Raises OSError if the path cannot be made."""
        self.address = address
        self._serve = serve
        self._closed = False
        self._connections: set[Connection] = set()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(address)
            self._socket.listen(BACKLOG)
        except OSError:
            self._socket.close()
            raise
        # A child that a user's function forks would keep the sockets open after this worker has ended.
        os.register_at_fork(after_in_child=self._close_all)
        self._start(self._accept)

    def close(self) -> None:
        """Stop listening, and remove the socket's file."""
        self._closed = True
        # The connection wakes the thread that waits for one, and the thread ends.
        with suppress(OSError):
            connect(self.address, 1).close()
        Path(self.address).unlink(missing_ok=True)

    def _accept(self) -> None:
        with self._socket, suppress(OSError):
            while not self._closed:
                connection = Connection(self._socket.accept()[0].detach())
                if self._closed or len(self._connections) >= MOST_CONNECTIONS:
                    connection.close()
                    continue
                self._connections.add(connection)
                self._start(self._talk, connection)

    def _talk(self, connection: Connection) -> None:
        try:
            with connection:
                self._serve(connection)
        finally:
            self._connections.discard(connection)

    def _close_all(self) -> None:
        self._socket.close()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.close()

    @staticmethod
    def _start(run: Callable[..., None], *arguments: Connection) -> None:
        threading.Thread(target=run, args=arguments, name="spark_purgatory-warm", daemon=True).start()
