"""Storage in memory: a disk that keeps what is synchronised, and an object store; both fail where they are told to.

The product's own file operations run on the disk: `Names` stands for ``os``, `DiskPath` for ``Path``, and so on, in
`staging_folder`. A power loss takes from the disk what was not synchronised: a name that its folder did not get may be
there or not, and a file whose bytes were not synchronised may be whole, empty or half.

An object has no such half-way: it is there with all its bytes, or not. But a list of objects may lag behind.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from io import StringIO
from itertools import count
from pathlib import PurePosixPath
from typing import Any

CUT: dict[str, list[int]] = {}
"""A staged file that a power loss has cut."""


@dataclass(eq=False)
class File:
    """Bytes, and those of them that are sure to outlive a power loss."""

    text: str = ""
    synced: str = ""

    def after_power_loss(self, rng: random.Random) -> str:
        if self.text == self.synced:
            return self.text
        return rng.choice((self.text, self.synced, self.text[: len(self.text) // 2]))


@dataclass
class Disk:
    """Files by their paths."""

    reach: Callable[[str], None]
    """Called before and after each thing that is done to the disk; what it raises ends the caller there."""
    names: dict[str, File] = field(default_factory=dict)
    durable: dict[str, File] = field(default_factory=dict)
    """The names that a power loss leaves, where their folders are left."""
    folders: dict[str, bool] = field(default_factory=dict)
    """Folders that were made, and whether the folder that each is in was synchronised since."""
    opened: dict[int, str | File] = field(default_factory=dict)
    """Open files, and folders by their path."""
    numbers: Iterator[int] = field(default_factory=count)
    fails: list[str] = field(default_factory=list)
    """What the next operations do: "" nothing else, "full" fail, "lost answer" fail after they were done."""

    def does(self, what: str, done: Callable[[], Any]) -> Any:
        """An operation of the disk, with what may happen to it."""
        self.reach(f"before {what}")
        fault = self.fails.pop(0) if self.fails else ""
        if fault == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        result = done()
        if fault == "lost answer":
            raise OSError(errno.EIO, "Input/output error")
        self.reach(f"after {what}")
        return result

    def put(self, path: str, file: File) -> None:
        self.names[path] = file

    def move(self, path: str, to: str) -> None:
        self.names[to] = self.names.pop(path)

    def sync(self, opened: str | File) -> None:
        if isinstance(opened, File):
            opened.synced = opened.text
            return
        inside = [path for path in {*self.names, *self.durable} if path.rpartition("/")[0] == opened]
        for path in inside:
            self.durable.pop(path, None)
            if path in self.names:
                self.durable[path] = self.names[path]
        for path in self.folders:
            self.folders[path] |= str(PurePosixPath(path).parent) == opened

    def remove(self, folder: str) -> None:
        for path in sorted(path for path in self.names if path == folder or path.startswith(f"{folder}/")):
            self.does("remove", partial(self.names.pop, path, None))
        for path in [path for path in self.folders if path == folder or path.startswith(f"{folder}/")]:
            del self.folders[path]

    def copied(self) -> Disk:
        """A copy, no file of which anybody has synchronised."""
        names = {path: File(file.text) for path, file in self.names.items()}
        return Disk(self.reach, names, folders=dict.fromkeys((*self.folders, "/checkpoint"), False))

    def lose_power(self, rng: random.Random) -> None:
        """Only what was synchronised is sure to be there."""
        kept: dict[str, File] = {}
        lost = tuple(f"{path}/" for path, is_durable in self.folders.items() if not is_durable and rng.random() < 0.5)
        for path in sorted(path for path in {*self.names, *self.durable} if not path.startswith(lost)):
            now, then = self.names.get(path), self.durable.get(path)
            file = now if now is then else rng.choice((now, then))
            if file is not None:
                text = file.after_power_loss(rng)
                kept[path] = File(text, text)
        self.names, self.durable, self.opened, self.fails = kept, dict(kept), {}, []
        self.folders = {folder: True for path in kept for folder in map(str, PurePosixPath(path).parents)}


DISKS: list[Disk] = []
"""The disk of the history that is played now is the last one."""


class DiskPath(PurePosixPath):
    """What the product does with a ``Path``."""

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """A folder, and those that it is in; the checkpoint's own is there."""
        for folder in (*reversed(self.parents[:-2]), self):
            DISKS[-1].folders.setdefault(str(folder), False)

    def exists(self) -> bool:
        return self.parent.name == "" or str(self) in DISKS[-1].names or str(self) in DISKS[-1].folders

    def is_file(self) -> bool:
        return str(self) in DISKS[-1].names

    def unlink(self, missing_ok: bool = False) -> None:
        DISKS[-1].does("remove", lambda: DISKS[-1].names.pop(str(self), None))

    def replace(self, to: DiskPath) -> None:
        DISKS[-1].does("rename", lambda: DISKS[-1].move(str(self), str(to)))

    def read_text(self, encoding: str, errors: str) -> str:
        if str(self) not in DISKS[-1].names:
            raise FileNotFoundError(str(self))
        return DISKS[-1].names[str(self)].text

    @contextmanager
    def open(self, mode: str, encoding: str) -> Iterator[_Writer]:
        disk, file = DISKS[-1], File()
        disk.does("create", lambda: disk.put(str(self), file))
        yield _Writer(disk, file)


class _Writer(StringIO):
    def __init__(self, disk: Disk, file: File) -> None:
        super().__init__()
        self.disk, self.file = disk, file

    def flush(self) -> None:
        def written() -> None:
            self.file.text = self.getvalue()

        self.disk.does("write", written)

    def fileno(self) -> int:
        return Names.opened(self.file)


class Names:
    """What the product uses of ``os``, and of ``shutil``."""

    O_RDONLY = 0

    @staticmethod
    def opened(what: str | File) -> int:
        number = next(DISKS[-1].numbers)
        DISKS[-1].opened[number] = what
        return number

    @staticmethod
    def open(path: DiskPath, flags: int) -> int:
        return Names.opened(DISKS[-1].names.get(str(path), str(path)))

    @staticmethod
    def close(number: int) -> None:
        DISKS[-1].opened.pop(number, None)

    @staticmethod
    def fsync(number: int) -> None:
        disk = DISKS[-1]
        disk.does("sync", lambda: disk.sync(disk.opened[number]))
        if isinstance(disk.opened[number], File):
            del disk.opened[number]  # Python's file object closes it.

    @staticmethod
    def walk(top: str | DiskPath) -> Iterator[tuple[str, list[str], list[str]]]:
        of: dict[str, list[str]] = {folder: [] for folder in DISKS[-1].folders if folder.startswith(str(top))}
        for path in sorted(DISKS[-1].names):
            folder, _, name = path.rpartition("/")
            if folder.startswith(f"{top}/"):
                of.setdefault(folder, []).append(name)
        for folder, names in of.items():
            yield folder, [], names

    @staticmethod
    def rmtree(path: DiskPath) -> None:
        if not path.exists():
            raise FileNotFoundError(str(path))
        DISKS[-1].remove(str(path))


@dataclass
class Store:
    """Objects by their paths: what Spark's jobs of one row write, where the product has no file of its own."""

    reach: Callable[[str], None]
    objects: dict[str, str] = field(default_factory=dict)
    born: dict[str, int] = field(default_factory=dict)
    """When each object was written: the number of writes by then."""
    writes: int = 0
    lag: int = 0
    """So many of the last writes are not listed yet."""
    fails: list[str] = field(default_factory=list)

    def write(self, path: str, line: str, mode: str) -> None:
        """A folder with one object; what an overwritten one has is removed first."""
        if mode == "overwrite":
            self.remove(path)
        self.does("write", lambda: self.put(f"{path}/part-0", line))

    def put(self, path: str, line: str) -> None:
        self.objects[path] = line
        self.writes += 1
        self.born[path] = self.writes

    def remove(self, folder: str) -> None:
        for path in sorted(path for path in self.objects if path.startswith(f"{folder}/")):
            self.does("remove", partial(self.objects.pop, path, None))

    def does(self, what: str, done: Callable[[], Any]) -> None:
        self.reach(f"before {what}")
        fault = self.fails.pop(0) if self.fails else ""
        if fault == "full":
            raise OSError(errno.EIO, "the store does not answer")
        done()
        if fault == "lost answer":
            raise OSError(errno.EIO, "the store does not answer")
        self.reach(f"after {what}")

    def listed(self, folder: str) -> list[tuple[str, str]]:
        newest = self.writes - self.lag
        found = sorted(path for path in self.objects if path.startswith(f"{folder}/"))
        return [(path, self.objects[path]) for path in found if self.born[path] <= newest]

    def copied(self) -> Store:
        """A copy of an object is as durable as the object."""
        return replace(self, objects=dict(self.objects), born=dict(self.born), fails=[])

    def lose_power(self, rng: random.Random) -> None:
        """A store keeps what it has said to have."""
        self.fails = []
