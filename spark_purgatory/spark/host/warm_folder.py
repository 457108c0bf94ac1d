"""The folder where the workers of an executor meet: their sockets, and the bytes of engines that each of them holds."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NUMBER = struct.Struct("<q")

LOG = logging.getLogger(__name__)


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
