"""What a Python worker is told once, tried in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from spark_purgatory.spark.host import worker

ALLOCATE = """
import gc, resource
from spark_purgatory.spark.host.worker import prepare_worker
{prepare}
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def blobs():
    return [b"x" * 5_000_000 for _ in range(4)]
blobs()
before = faults()
for _ in range(10):
    blobs()
print(gc.get_freeze_count() > 0, faults() - before)
"""


def printed(code: str, env: Mapping[str, str] | None = None) -> list[str]:
    """The words that a Python of its own prints."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout.split()


def run(prepare: str) -> tuple[str, int]:
    """(whether modules are frozen, page faults of allocating 200 MB in blobs again and again)."""
    frozen, faults = printed(ALLOCATE.format(prepare=prepare))
    return frozen, int(faults)


def test_a_prepared_worker_keeps_its_memory_and_does_not_collect_modules() -> None:
    plain, prepared = run(""), run("prepare_worker(); prepare_worker()")
    assert (plain[0], prepared[0]) == ("False", "True")
    if sys.platform == "linux":
        assert prepared[1] < plain[1] / 5


def test_the_switch_leaves_a_worker_as_it_is() -> None:
    frozen, _ = run("import os; os.environ['SPARK_PURGATORY_TUNE_WORKERS'] = '0'; prepare_worker()")
    assert frozen == "False"


@pytest.mark.parametrize(
    ("most_taken", "asked"),
    [
        (1 << 31, [(-3, 256 << 20), (-1, 256 << 20), "system"]),
        (32 << 20, [(-3, 256 << 20), (-3, 32 << 20), (-1, 256 << 20), "system"]),
        (0, [(-3, 256 << 20), (-3, 32 << 20)]),
    ],
)
def test_a_glibc_that_refuses_a_large_threshold_is_not_left_with_its_smallest(
    monkeypatch: pytest.MonkeyPatch, most_taken: int, asked: list[object]
) -> None:
    """Trimming set alone would keep M_MMAP_THRESHOLD at 128 KiB: every blob mapped and faulted in anew."""
    found: list[object] = []

    def mallopt(parameter: int, value: int) -> int:
        found.append((parameter, value))
        return int(parameter == -1 or value <= most_taken)

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("ARROW_DEFAULT_MEMORY_POOL", raising=False)
    monkeypatch.setattr(worker.pa, "set_memory_pool", lambda pool: found.append(pool.backend_name))
    monkeypatch.setattr(worker.ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=mallopt))
    worker._keep_freed_memory.__wrapped__()
    assert found == asked


ARROWS_POOL = """
import pyarrow as pa
from spark_purgatory.spark.host.worker import prepare_worker
prepare_worker()
print(pa.default_memory_pool().backend_name)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing keeps freed memory")
@pytest.mark.parametrize("wanted", [None, "mimalloc"])
def test_arrow_takes_its_memory_where_it_is_kept_unless_told_otherwise(wanted: str | None) -> None:
    told = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    if wanted:
        told["ARROW_DEFAULT_MEMORY_POOL"] = wanted
    assert printed(ARROWS_POOL, told) == [wanted or "system"]


IMPORT_LATER = """
import gc
from spark_purgatory.spark.host.worker import prepare_worker
prepare_worker()
first = gc.get_freeze_count()
import xmlrpc.server
walked = len(gc.get_objects())
prepare_worker()
second = gc.get_freeze_count()
kept = [[] for _ in range(5000)]
prepare_worker()
print(first, walked, second, gc.get_freeze_count())
"""


def test_what_is_imported_later_is_frozen_by_the_next_task_and_what_a_task_makes_is_not() -> None:
    """A worker that packs first meets pandas only when it is given a state function."""
    first, walked, second, third = map(int, printed(IMPORT_LATER))
    assert walked > 500
    assert second >= first + walked - 50
    assert third <= second


HOLES = """
from pathlib import Path
from spark_purgatory.spark.host import worker
def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) >> 8
worker.prepare_worker()
least, kept = megabytes(), []
for seconds in {ends}:
    freed = []
    for _ in range(4000):
        freed.append(bytearray(50_000))
        kept.append(bytearray(1000))
    del freed
    worker.time.monotonic = lambda: seconds
    worker.end_task()
    print(megabytes() - least)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's setting")
def test_a_worker_gives_back_what_lies_free_between_its_engines_once_in_a_while() -> None:
    """After each task 200 MB lie free between the 4 MB that it leaves."""
    first, soon, later = map(int, printed(HOLES.format(ends=[60.0, 119.0, 120.0])))
    assert first < 50 and later < 50, "those of an earlier period are given back"
    assert soon > 150, "what the next task needs is kept"
