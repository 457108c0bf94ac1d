"""Readers of bytes get inputs that were changed behind a right checksum: they read them or refuse them by name.

`make fuzz` gives them many more, `make fuzz MINUTES=60` for an hour. The cases below are what it has found.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_purgatory.errors import BugError, PurgatoryError
from tests.fuzz.fuzzer import last_input
from tests.fuzz.readers import readers

INPUTS = os.environ.get("FUZZ_INPUTS", "60")
ROOT = Path(__file__).resolve().parents[2]


def test_every_reader_reads_a_changed_input_or_refuses_it_by_name(tmp_path: Path) -> None:
    """In a process of its own: the worst that an input can do is to end the process."""
    current = tmp_path / "current"
    command = [sys.executable, "-m", "tests.fuzz", "--inputs", INPUTS, "--current", str(current)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode in (0, 1), f"{ran.stderr[-2000:]}\nended by {last_input(current)}"
    assert ran.returncode == 0, ran.stdout + ran.stderr[-2000:]
    assert ran.stdout.count(" 0 faults") == len(readers(tmp_path))


def json_with(**changed: object) -> Callable[[bytes], bytes]:
    """The first line of an input with other fields."""

    def change(data: bytes) -> bytes:
        return json.dumps({**json.loads(data), **changed}).encode()

    return change


def contents_with(change: Callable[[dict], None]) -> Callable[[bytes], bytes]:
    """The contents of a state with other metadata."""

    def changed(data: bytes) -> bytes:
        size = int.from_bytes(data[:4], "little")
        meta = json.loads(data[4 : 4 + size])
        change(meta)
        text = json.dumps(meta).encode()
        return struct.pack("<I", len(text)) + text + data[4 + size :]

    return changed


def _longer(meta: dict) -> None:
    """The lengths of the first texts are read as numbers of eight bytes: most point beyond the characters."""
    lengths = next(each for each in meta["arrays"] if each[0].endswith("/lengths"))
    lengths[1:5] = ["<i8", "<i8", 0, ""]


def _no_streams(meta: dict) -> None:
    """The bytes of an array are split into no streams."""
    next(each for each in meta["arrays"] if each[5])[6] = 0


CASES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "texts beyond their characters": ("contents", contents_with(_longer)),
    "bytes in no streams": ("contents", contents_with(_no_streams)),
    "a column less": ("contents", contents_with(lambda meta: meta["arrays"].pop())),
    "an entry of an exabyte": ("compressed", lambda data: struct.pack("<Q", 1 << 60) + data[8:]),
    "a head that is no object": ("head", lambda _: b"[]"),
    "a head with a text for a number": ("head", json_with(log_bytes="many")),
    "a name that is a list": ("staging", lambda _: b'{"format":1,"crc32":0,"entry":[],"body":""}'),
    "lists in lists": ("staging", lambda _: b"[" * 100_000),
    "pieces of different numbers": ("staging", lambda data: data.replace(b'"rows":[3,4]', b'"rows":[3]')),
    "a schema without fields": ("Avro", lambda _: b'{"type": "record"}'),
}


@pytest.mark.parametrize("name", CASES)
def test_what_was_found_is_refused_by_name(name: str, tmp_path: Path) -> None:
    part, change = CASES[name]
    reader = next(each for each in readers(tmp_path) if part in each.name.split() or part in each.name)
    with pytest.raises(PurgatoryError) as refused:
        reader.read(change(reader.seeds[0]))
    assert not isinstance(refused.value, BugError)
