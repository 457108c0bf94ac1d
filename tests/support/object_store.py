"""An object store that speaks S3, on this machine's loopback."""

from __future__ import annotations

import re
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import pyarrow.fs as pafs

from tests.support.cluster import HOST, free_port
from tests.support.server import server

BUCKET = "lake"
REQUEST = re.compile(r'"(GET|PUT|HEAD|POST|DELETE) (/\S*)')
PARTS = ("outcomes", "staging", "state")
"""Of a place: the table, and parts of the checkpoint; the rest is Spark's own."""


class ObjectStore:
    """An S3-compatible server on this machine."""

    def __init__(self, log: Path) -> None:
        self.port = free_port()
        self.log = log

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    def requests(self) -> Counter[str]:
        """How many it has answered, by part of the place."""
        asked = REQUEST.findall(self.log.read_text(encoding="utf-8", errors="replace"))
        return Counter(part_of(unquote(path)) for _, path in asked)

    def files(self) -> pafs.S3FileSystem:
        return pafs.S3FileSystem(
            access_key="testing", secret_key="testing", endpoint_override=self.endpoint, region="us-east-1"
        )


def part_of(path: str) -> str:
    """The part of the place that a request asks for; the prefix of a listing says it too."""
    return next((part for part in PARTS if f"/{part}" in path or f"={part}" in path), "checkpoint")


@contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """A server with a bucket, within the block."""
    store = ObjectStore(folder / "s3.log")
    command = [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(store.port)]
    with server(command, urllib.request.Request(f"{store.endpoint}/{BUCKET}", method="PUT"), store.log):
        yield store
