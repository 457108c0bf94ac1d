"""One mutator for every reader of bytes: it changes inputs that the reader can read.

It runs in a process of its own (`python -m tests.fuzz`), because an input may end the process. Memory has a limit that
the system enforces. An input that takes too much CPU time is stopped by a timer of CPU time, which a loaded machine
does not make shorter.
"""

from __future__ import annotations

import random
import re
import resource
import signal
import struct
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_purgatory.errors import BugError, PurgatoryError

MOST_MEMORY = 1 << 30
"""Address space that an input may take beyond what the process has after its imports."""
MOST_CPU_SECONDS = 10.0
LONGEST_INPUT = 1 << 16
PACKAGE = "spark_purgatory"


@dataclass(frozen=True)
class Reader:
    """A function that reads bytes, and inputs that it can read."""

    name: str
    read: Callable[[bytes], object]
    """Gets a mutated input, which it may first put behind a right checksum."""
    seeds: Sequence[bytes]


class TooLongError(BaseException):
    """An input took more than its CPU time. No reader catches it."""


@dataclass
class Found:
    """What a reader did with the inputs that it got."""

    reader: str
    inputs: int = 0
    read: int = 0
    """Inputs that were read without an error."""
    named: int = 0
    """Inputs that were refused by an error of the library."""
    faults: dict[str, str] = field(default_factory=dict)
    """An input in hexadecimal by what went wrong with it: the class of the exception, and where."""

    def __str__(self) -> str:
        return (
            f"{self.reader}: {self.inputs:,} inputs, {self.read:,} read, {self.named:,} refused by name, "
            f"{len(self.faults)} faults"
        )


NUMBERS = (0, 1, -1, 2, 7, 127, 128, 255, 256, 65_535, 1 << 31, (1 << 31) - 1, 1 << 40, 1 << 62, (1 << 63) - 1)
TOKEN = re.compile(rb'-?\d+(?:\.\d+)?|"(?:[^"\\]|\\.)*"|null|true|false|[{}\[\],:]')
"""Tokens of JSON and, as far as it goes, of YAML."""
WORDS = (b"null", b"true", b"[]", b"{}", b'""', b'"x"', b"1e999", b"NaN", b"-1", b"1.5", b"[[]]", b'{"a":1}')


def mutated(draw: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """An input after one to four changes."""
    for _ in range(draw.choice((1, 1, 1, 2, 2, 4))):
        data = draw.choice(CHANGES)(draw, data, corpus)
    return data[:LONGEST_INPUT]


def _flipped(draw: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    changed = bytearray(data or b"\0")
    changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _numbered(draw: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """Another number in place of 1, 2, 4 or 8 bytes."""
    size = draw.choice((1, 2, 4, 8))
    at = draw.randrange(max(len(data) - size, 0) + 1)
    number = draw.choice(NUMBERS) & ((1 << 8 * size) - 1)
    return data[:at] + number.to_bytes(size, draw.choice(("little", "little", "big"))) + data[at + size :]


def _cut(draw: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = sorted((draw.randrange(len(data) + 1), draw.randrange(len(data) + 1)))
    return data[:start] + data[end:]


def _repeated(draw: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start = draw.randrange(len(data) + 1)
    part = data[start : start + draw.randrange(1, 64)]
    return data[:start] + part * draw.choice((2, 2, 3, 500)) + data[start + len(part) :]


def _spliced(draw: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    other = draw.choice(corpus)
    return data[: draw.randrange(len(data) + 1)] + other[draw.randrange(len(other) + 1) :]


def _retold(draw: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Another token in place of one of JSON's."""
    tokens = [*TOKEN.finditer(data)]
    if not tokens:
        return _flipped(draw, data, corpus)
    token = draw.choice(tokens)
    others = (*WORDS, *(str(number).encode() for number in NUMBERS), draw.choice(tokens)[0])
    return data[: token.start()] + draw.choice(others) + data[token.end() :]


def _nested(draw: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """A value inside so many lists that a reader which calls itself runs out of stack."""
    tokens = [*TOKEN.finditer(data)]
    if not tokens or draw.random() < 0.9:
        return _retold(draw, data, corpus)
    token, depth = draw.choice(tokens), draw.choice((50, 5_000))
    return data[: token.start()] + b"[" * depth + token[0] + b"]" * depth + data[token.end() :]


CHANGES = (_flipped, _numbered, _numbered, _cut, _repeated, _spliced, _retold, _retold, _retold, _nested)


def limit_memory() -> None:
    """Let this process take no more than `MOST_MEMORY` beyond what it has."""
    taken = int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MOST_MEMORY, taken + MOST_MEMORY))


@contextmanager
def _limited_cpu() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TooLongError

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def fuzz(reader: Reader, seed: int, goes_on: Callable[[int], bool], current: Path) -> Found:
    """Give a reader mutated inputs as long as ``goes_on`` says; ``current`` has the input if the process dies."""
    draw, found = random.Random(f"{reader.name} {seed}"), Found(reader.name)
    with current.open("r+b", buffering=0) as file:
        for seed_input in reader.seeds:
            _give(reader, seed_input, file, found)
            assert not found.faults and found.named == 0, f"{reader.name} cannot read its own seed: {found.faults}"
        while goes_on(found.inputs):
            _give(reader, mutated(draw, draw.choice(reader.seeds), reader.seeds), file, found)
    return found


def _give(reader: Reader, data: bytes, file: Any, found: Found) -> None:
    name = reader.name.encode()
    file.seek(0)
    file.write(struct.pack("<II", len(name), len(data)) + name + data)
    found.inputs += 1
    try:
        with _limited_cpu():
            reader.read(data)
        found.read += 1
    except BugError as error:
        found.faults.setdefault(_place(error), data.hex())
    except PurgatoryError:
        found.named += 1
    except (Exception, TooLongError) as error:
        found.faults.setdefault(_place(error), data.hex())


def _place(error: BaseException) -> str:
    """The class of an exception, and the last line of the library that it went through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if f"/{PACKAGE}/" in frame.filename]
    where = f"{frames[-1].filename.rpartition(f'/{PACKAGE}/')[2]}, {frames[-1].name}" if frames else "the test"
    return f"{type(error).__name__} in {where}: {frames[-1].line if frames else error}"


def last_input(current: Path) -> str:
    """The reader and the input that a process which died had last."""
    whole = current.read_bytes()
    name, size = struct.unpack_from("<II", whole)
    return f"{whole[8 : 8 + name].decode()}: {whole[8 + name : 8 + name + size].hex()}"


def until(seconds: float) -> Callable[[int], bool]:
    end = time.monotonic() + seconds
    return lambda _: time.monotonic() < end
