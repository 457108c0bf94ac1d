"""The folder where the workers of an executor meet: their sockets, and how many bytes of engines each of them holds."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NUMBER = struct.Struct("<q")

LOG = logging.getLogger(__name__)


def executor_folder() -> Path | None:
    """The folder of this executor, that only this user can enter. None: there is none.

    All its workers are children of one process, whose number is in the folder's name. Numbers of processes are of a
    namespace, and containers may share the folder above: so the namespace is in the name too. Folders of processes
    that are gone are removed.
    """
    base = Path(tempfile.gettempdir()) / f"spark_purgatory-{os.getuid()}"
    namespace = _pid_namespace()
    folder = base / f"{namespace}-{os.getppid()}"
    try:
        base.mkdir(mode=0o700, exist_ok=True)
        found = base.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            LOG.warning("%s is not a folder of this user alone: no engine is kept in memory", base)
            return None
        folder.mkdir(mode=0o700, exist_ok=True)
        for other in base.glob(f"{namespace}-*"):
            process = other.name.rpartition("-")[2]
            if process.isdigit() and not is_alive(int(process)):
                shutil.rmtree(other, ignore_errors=True)
        for file in folder.iterdir():
            if ended(file):
                file.unlink(missing_ok=True)
    except OSError as error:
        LOG.warning("no folder for sockets below %s (%s): no engine is kept in memory", base, error)
        return None
    return folder


def _pid_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def ended(file: Path) -> bool:
    """Whether the file is of a worker that has ended: a worker's number begins its files' names."""
    process = file.name.partition("-")[0]
    return process.isdigit() and not is_alive(int(process))


def is_neighbour(address: str, folder: Path) -> bool:
    """Whether a socket is of a living worker of this user, on this machine and in this container.

    Addresses come from a checkpoint, and a checkpoint may be of another machine.
    """
    path = Path(address)
    namespaces = [each.name.partition("-")[0] for each in (path.parent, folder)]
    return path.parent.parent == folder.parent and namespaces[0] == namespaces[1] and not ended(path)


def is_alive(process: int) -> bool:
    """Whether there is a process of that number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class KeptSizes:
    """Bytes of engines that the workers of a folder keep: a file of eight bytes for each worker."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._path = folder / f"{name}.size"
        self._file = -1

    def note(self, size: int) -> None:
        """Let the other workers know how much this one holds. Raises OSError if the folder is gone or the disk full.

        It is written in place, so that nobody reads a file without a number.
        """
        if self._file < 0:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.pwrite(self._file, NUMBER.pack(size), 0)

    def of_others(self) -> int:
        """What the other workers keep."""
        return sum(_noted(file) for file in self._folder.glob("*.size") if file != self._path)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No two workers of the folder are in this block at once: to look for room and to take it."""
        try:
            file = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # The folder is gone, and with it what others keep.
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def close(self) -> None:
        """This worker holds nothing any more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._path.unlink(missing_ok=True)


def _noted(file: Path) -> int:
    """What a worker says it holds, 0 where it is gone."""
    process = file.name.partition("-")[0]
    if not process.isdigit() or not is_alive(int(process)):
        return 0
    try:
        size: int = NUMBER.unpack(file.read_bytes())[0]
    except (OSError, struct.error):
        return 0
    return size
