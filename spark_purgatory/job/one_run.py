"""One run of a job at a time: a run locks a file of its checkpoint, which Spark makes at the first start."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_purgatory.config.places import split_uri
from spark_purgatory.config.units import parse_duration
from spark_purgatory.errors import ForeignWriterError, without_login

POLL_SECONDS = 0.2


@contextmanager
def only_run(checkpoint: str, wait: str | None = None) -> Iterator[None]:
    """Hold the lock of a checkpoint on this machine's disk. The system ends it with the process, however that ends.

    ``wait``: how long another run may take to end. Raises ForeignWriterError if it has not.
    """
    until_s = time.monotonic() + (0 if wait is None else parse_duration(wait, "--wait") / 1_000_000)
    scheme, _, path = split_uri(checkpoint)
    file = Path(path) / "metadata"
    if scheme not in (None, "file") or sys.platform == "win32" or not file.is_file():
        yield
        return
    import fcntl

    with file.open("rb") as held:
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until_s:
                    raise ForeignWriterError(
                        f"checkpoint {without_login(checkpoint)} is used by another run of the job, which goes on. "
                        "Nothing was started. Start this one when the other has ended, or give --wait '1 hour'"
                    ) from None
                time.sleep(POLL_SECONDS)
            except OSError:
                break  # A file system without locks
        yield
