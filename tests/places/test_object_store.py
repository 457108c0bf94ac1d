"""Checkpoint, staged rows and table in an object store that speaks S3, with the job killed in the middle."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from benchmarks.cluster import HOST, free_port
from benchmarks.harness import WORK
from benchmarks.jars import resolved
from tests.support.delta_files import delta_rows
from tests.support.job_process import JobProcess
from tests.support.places_world import World, differences, folder_sources, orders_job

BUCKET = "lake"
AWS_SDK = "2.35.4"
JARS = [
    "org.apache.hadoop:hadoop-aws:3.5.0",
    *(f"software.amazon.awssdk:{module}:{AWS_SDK}" for module in ("s3", "s3-transfer-manager", "sts")),
]
REQUEST = re.compile(r'"(GET|PUT|HEAD|POST|DELETE) /')
FILES = 6
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}


class ObjectStore:
    """An S3-compatible server on this machine."""

    def __init__(self, log: Path) -> None:
        self.port = free_port()
        self.log = log
        with log.open("wb") as said:
            command = [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(self.port)]
            self.process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://{HOST}:{self.port}"

    def requests(self) -> Counter[str]:
        """How many it has answered, by method."""
        return Counter(REQUEST.findall(self.log.read_text(encoding="utf-8", errors="replace")))

    def files(self) -> pafs.S3FileSystem:
        """Its objects as Arrow reads them."""
        return pafs.S3FileSystem(
            access_key="testing", secret_key="testing", endpoint_override=self.endpoint, region="us-east-1"
        )


@contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """A server with a bucket, within the block."""
    store = ObjectStore(folder / "s3.log")
    try:
        deadline_s = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(urllib.request.Request(f"{store.endpoint}/{BUCKET}", method="PUT"), timeout=5)
                break
            except OSError:
                assert time.monotonic() < deadline_s, store.log.read_text(encoding="utf-8")[-2000:]
                time.sleep(0.2)
        yield store
    finally:
        store.process.terminate()
        store.process.wait()


def job_file(folder: Path, store: ObjectStore, host: str) -> Path:
    s3a = {
        "endpoint": store.endpoint,
        "path.style.access": True,
        "connection.ssl.enabled": False,
        "access.key": "testing",
        "secret.key": "testing",
        # moto lacks the call that Hadoop then makes to copy the files of a RocksDB snapshot.
        "optimized.copy.from.local.enabled": False,
    }
    settings = {
        "spark.master": "local[2,4]",
        "spark.jars": ",".join(map(str, sorted(Path(resolved_jars()).parent.glob("*.jar")))),
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()},
    }
    return orders_job(folder / "job.yaml", folder_sources(folder), f"s3a://{BUCKET}", host, settings)


def resolved_jars() -> str:
    """The folder of Hadoop's S3 client, with the parts of Amazon's SDK that it needs: 19 MB where all are 655."""
    return resolved(JARS, WORK / "ivy-s3", without=["software.amazon.awssdk:bundle"])


def committed(store: ObjectStore) -> int:
    found = store.files().get_file_info(pafs.FileSelector(f"{BUCKET}/checkpoint/commits", allow_not_found=True))
    return max((int(file.base_name) for file in found if file.base_name.isdigit()), default=-1)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("host", ["applyInPandasWithState", "transformWithState"])
def test_nothing_is_lost_or_doubled_in_an_object_store(
    tmp_path: Path, host: str, record_property: pytest.RecordProperty
) -> None:
    world = World(orders=54_000)
    size = world.orders // FILES
    for first in range(0, world.orders, size):
        world.land(tmp_path, range(first, first + size))
    with object_store(tmp_path) as store:
        job = JobProcess(job_file(tmp_path, store, host), tmp_path / "checkpoint", environment=KEYS)
        job.start()
        deadline_s = time.monotonic() + 600
        while committed(store) < 1:
            assert job.is_alive() and time.monotonic() < deadline_s, job.said()
            time.sleep(0.5)
        before = store.requests().total()
        reached = committed(store)
        while committed(store) < reached + 2:
            assert job.is_alive() and time.monotonic() < deadline_s, job.said()
            time.sleep(0.5)
        record_property("requests_a_micro_batch", (store.requests().total() - before) // 2)
        job.kill()
        world.land_closing(tmp_path)
        job.run_to_the_end()
        job.run_to_the_end()
        table = tmp_path / "outcomes"
        pafs.copy_files(f"{BUCKET}/outcomes", str(table), source_filesystem=store.files())
        print(f"{host}: {dict(store.requests())} requests in all")
    assert differences(delta_rows(table, ["order_id", "status"]), world.expected()) == {}
