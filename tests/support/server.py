"""A server that a test starts: its process, until it answers, and its end."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

START_S = 180
Asked = str | urllib.request.Request | tuple[str, int]


@contextmanager
def server(
    command: Sequence[str], asked: Asked, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    """A process that answers a request, or listens at a host and port, within the block; it prints to ``log``."""
    with log.open("wb") as said:
        process = subprocess.Popen(command, cwd=log.parent, env=environment, stdout=said, stderr=subprocess.STDOUT)
    try:
        deadline_s = time.monotonic() + START_S
        while True:
            try:
                _ask(asked)
                break
            except OSError as error:
                told = f"{error}\n{log.read_text(encoding='utf-8', errors='replace')[-3000:]}"
                assert process.poll() is None and time.monotonic() < deadline_s, told
                time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait()


def _ask(asked: Asked) -> None:
    if isinstance(asked, tuple):
        socket.create_connection(asked, timeout=5).close()
    else:
        urllib.request.urlopen(asked, timeout=5)
