"""Unix sockets between the workers of a machine."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

LONGEST_ADDRESS = 100
"""Bytes of a socket's path: the system takes 107 at most."""
BACKLOG = 64
MOST_CONNECTIONS = 256
"""Each worker of the executor has one, and each of them has a thread here. Further ones are closed at once."""
TIME = struct.Struct("ll")
"""``struct timeval``: seconds and microseconds."""


def connect(address: str, seconds: float) -> Connection:
    """A connection to a worker. Raises OSError if nobody listens, and for what takes longer than ``seconds``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        limit = TIME.pack(int(seconds), int(seconds % 1 * 1e6))
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            made.setsockopt(socket.SOL_SOCKET, option, limit)
        made.connect(address)
        return Connection(made.detach())


class Server:
    """Listens at an address, and gives each connection a thread, until it is closed."""

    def __init__(self, address: str, serve: Callable[[Connection], None]) -> None:
        """Listen at a path, and call ``serve`` with each connection. Raises OSError if the path cannot be made."""
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
        # A child that a user's function forks would keep the sockets open when this worker is gone.
        os.register_at_fork(after_in_child=self._close_all)
        self._start(self._accept)

    def close(self) -> None:
        """Listen no more, and remove the socket's file."""
        self._closed = True
        # Wakes the thread that waits for connections: it ends.
        with suppress(OSError):
            connect(self.address, 1).close()
        Path(self.address).unlink(missing_ok=True)

    def _accept(self) -> None:
        with self._socket:
            while not self._closed:
                try:
                    accepted, _ = self._socket.accept()
                except OSError:
                    return
                if self._closed or len(self._connections) >= MOST_CONNECTIONS:
                    accepted.close()
                    continue
                connection = Connection(accepted.detach())
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
