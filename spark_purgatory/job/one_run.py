"""One run of a job at a time: a run locks a file of its checkpoint, which Spark makes at the first start."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_purgatory.config.places import split_uri
from spark_purgatory.errors import ForeignWriterError, without_login


@contextmanager
def only_run(checkpoint: str) -> Iterator[None]:
    """Hold the lock of a checkpoint on this machine's disk. The system ends it with the process, however that ends.

    Raises ForeignWriterError if another run has it.
    """
    scheme, _, path = split_uri(checkpoint)
    file = Path(path) / "metadata"
    if scheme not in (None, "file") or sys.platform == "win32" or not file.is_file():
        yield
        return
    import fcntl

    with file.open("rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ForeignWriterError(
                f"checkpoint {without_login(checkpoint)} is used by another run of the job, which goes on. "
                "Nothing was started. Start this one when the other has ended"
            ) from None
        except OSError:
            pass  # A file system without locks
        yield
