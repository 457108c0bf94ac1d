"""A real schema registry on this machine's loopback (Apicurio's, with the interface of Confluent's), and Avro in bytes.

The registry is one archive of Maven Central, and keeps what it has in memory.
"""

from __future__ import annotations

import json
import os
import tarfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import WORK
from benchmarks.jars import retrieved
from tests.support.cluster import HOST, free_port
from tests.support.server import server

NAME, VERSION = "apicurio-registry-app", "3.0.9"


class SchemaRegistry:
    """Where it listens."""

    def __init__(self, url: str) -> None:
        self.url = url

    def register(self, subject: str, schema: Mapping[str, Any]) -> int:
        body = json.dumps({"schema": json.dumps(schema)}).encode()
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(f"{self.url}/subjects/{subject}/versions", data=body, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(json.load(answer)["id"])


@contextmanager
def schema_registry(folder: Path) -> Iterator[SchemaRegistry]:
    port = free_port()
    url = f"http://{HOST}:{port}/apis/ccompat/v7"
    command = ["java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", str(_runner())]
    environment = {**os.environ, "QUARKUS_HTTP_HOST": HOST, "QUARKUS_HTTP_PORT": str(port)}
    with server(command, f"{url}/subjects", folder / "registry.log", environment):
        yield SchemaRegistry(url)


def _runner() -> Path:
    """The jar to run, with its libraries beside it; unpacked once."""
    folder = WORK / "registry"
    runner = folder / f"{NAME}-{VERSION}-runner.jar"
    if not runner.exists():
        archive = retrieved("io.apicurio", NAME, VERSION, "all", "tar.gz", WORK / "ivy-registry")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    return runner


def framed(schema_id: int, record: bytes) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + record


def avro_long(number: int) -> bytes:
    """A long: zigzag, seven bits a byte, the lowest first."""
    rest = (number << 1) ^ (number >> 63)
    found = bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def avro_string(text: str) -> bytes:
    """A string: how many bytes, and these."""
    return avro_long(len(text.encode())) + text.encode()
