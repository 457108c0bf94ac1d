"""Checkpoint, staged rows and table in an object store that speaks S3: the job is killed, the checkpoint is moved."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
import yaml

from tests.support.cluster import HOST
from tests.support.delta_files import delta_rows
from tests.support.job_process import JobProcess
from tests.support.object_store import BUCKET, ObjectStore, object_store
from tests.support.places_world import World, differences, folder_sources, orders_job

pytestmark = [pytest.mark.spark, pytest.mark.long]

AWS_SDK = "2.35.4"
PACKAGES = [
    "org.apache.hadoop:hadoop-aws:3.5.0",
    *(f"software.amazon.awssdk:{module}:{AWS_SDK}" for module in ("s3", "s3-transfer-manager", "sts")),
]
"""As docs/how-to/object_store.md has them."""
FILES = 6
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}


def job_file(folder: Path, store: ObjectStore, host: str, **more: object) -> Path:
    s3a = {
        "endpoint": store.endpoint,
        "path.style.access": True,
        "connection.ssl.enabled": False,
        "access.key": "testing",
        "secret.key": "testing",
        # moto lacks the call that Hadoop then makes to copy the files of a RocksDB snapshot.
        "optimized.copy.from.local.enabled": False,
        **more,
    }
    settings = {
        "spark.master": "local[2,4]",
        "spark.jars.excludes": "software.amazon.awssdk:bundle",
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()},
    }
    return orders_job(folder / "job.yaml", folder_sources(folder), f"s3a://{BUCKET}", host, settings, packages=PACKAGES)


def committed(store: ObjectStore) -> int:
    found = store.files().get_file_info(pafs.FileSelector(f"{BUCKET}/checkpoint/commits", allow_not_found=True))
    return max((int(file.base_name) for file in found if file.base_name.isdigit()), default=-1)


def versions(store: ObjectStore) -> int:
    """Commits of the table."""
    found = store.files().get_file_info(pafs.FileSelector(f"{BUCKET}/outcomes/_delta_log", allow_not_found=True))
    return sum(file.base_name.endswith(".json") for file in found)


@pytest.mark.parametrize("host", ["applyInPandasWithState", "transformWithState"])
def test_nothing_is_lost_or_doubled_in_an_object_store(tmp_path: Path, host: str) -> None:
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
        before, reached, drained = store.requests(), committed(store), versions(store)
        while committed(store) < reached + 2:
            assert job.is_alive() and time.monotonic() < deadline_s, job.said()
            time.sleep(0.5)
        asked, drains = store.requests() - before, versions(store) - drained
        job.kill()
        world.land_closing(tmp_path)
        job.run_to_the_end()
        job.run_to_the_end()
        table = tmp_path / "outcomes"
        pafs.copy_files(f"{BUCKET}/outcomes", str(table), source_filesystem=store.files())
    print(f"{host}: 2 micro-batches with {drains} drains made {dict(asked)} requests")
    assert differences(delta_rows(table, ["order_id", "status"]), world.expected()) == {}


class Throttled(BaseHTTPRequestHandler):
    """Passes requests on to a store, but refuses some that read staged rows, as a store with too many requests does."""

    protocol_version = "HTTP/1.1"
    store: ObjectStore
    left = 0

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command == "GET" and "/staging/rows/" in self.path and self.left:
            type(self).left -= 1
            return self.answer(503, b"<Error><Code>SlowDown</Code><Message>Reduce your request rate</Message></Error>")
        store = HTTPConnection(HOST, self.store.port)
        store.request(self.command, self.path, body, dict(self.headers))
        found = store.getresponse()
        self.answer(found.status, found.read(), found.getheaders())

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = pass_on

    def answer(self, status: int, body: bytes, headers: Sequence[tuple[str, str]] = ()) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding"):
                self.send_header(name, value)
        if "content-length" not in {name.lower() for name, _ in headers}:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_a_drain_whose_staged_rows_a_throttled_store_does_not_give_is_tried_again(tmp_path: Path) -> None:
    world = World(orders=9_000)
    world.land(tmp_path, range(world.orders))
    world.land_closing(tmp_path)
    few_tries = {"attempts.maximum": 1, "retry.limit": 1, "retry.throttle.limit": 1, "retry.throttle.interval": "10ms"}
    with object_store(tmp_path) as store:
        Throttled.store, Throttled.left = store, 16
        with ThreadingHTTPServer((HOST, 0), Throttled) as proxy:
            threading.Thread(target=proxy.serve_forever, daemon=True).start()
            endpoint = f"http://{HOST}:{proxy.server_address[1]}"
            job = JobProcess(
                job_file(tmp_path, store, "applyInPandasWithState", **few_tries, endpoint=endpoint),
                tmp_path / "checkpoint",
                environment=KEYS,
            )
            job.run_to_the_end()
            job.run_to_the_end()
            proxy.shutdown()
        table = tmp_path / "outcomes"
        pafs.copy_files(f"{BUCKET}/outcomes", str(table), source_filesystem=store.files())
    assert Throttled.left == 0 and "Status Code: 503" in job.said() and "from a copy" not in job.said(), job.said()
    assert differences(delta_rows(table, ["order_id", "status"]), world.expected()) == {}


def objects(store: ObjectStore, folder: str) -> dict[str, Any]:
    """What lies there, with sizes and the times of the last change."""
    found = store.files().get_file_info(pafs.FileSelector(f"{BUCKET}/{folder}", recursive=True))
    return {file.path: (file.size, file.mtime_ns) for file in found if file.is_file}


def test_a_checkpoint_is_moved_in_an_object_store_to_the_other_host_and_back(tmp_path: Path) -> None:
    world = World(orders=9_000)
    parts = [range(first, first + 3_000) for first in range(0, world.orders, 3_000)]
    stops = [("checkpoint", "applyInPandasWithState", 4), ("moved", "transformWithState", 9)]
    stops.append(("back", "applyInPandasWithState", 2))
    with object_store(tmp_path) as store:
        for number, (checkpoint, host, shards) in enumerate(stops):
            file = job_file(tmp_path, store, host)
            job = yaml.safe_load(file.read_text(encoding="utf-8"))
            job["purgatory"]["shards"], job["checkpoint"] = shards, f"s3a://{BUCKET}/{checkpoint}"
            file.write_text(yaml.safe_dump(job), encoding="utf-8")
            if number:
                before = stops[number - 1][0]
                old = objects(store, before)
                command = (sys.executable, "-m", "spark_purgatory", "move")
                move = JobProcess(file, tmp_path, command, environment=KEYS)
                move.start("--from", f"s3a://{BUCKET}/{before}")
                assert move.exit_code() == 0, move.said()
                assert objects(store, before) == old, "the old checkpoint is only read"
            world.land(tmp_path, parts[number])
            run = JobProcess(file, tmp_path, environment=KEYS)
            run.run_to_the_end()
        world.land_closing(tmp_path)
        run.run_to_the_end()
        run.run_to_the_end()
        table = tmp_path / "outcomes"
        pafs.copy_files(f"{BUCKET}/outcomes", str(table), source_filesystem=store.files())
    assert differences(delta_rows(table, ["order_id", "status"]), world.expected()) == {}
