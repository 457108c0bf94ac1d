"""Runs of `tests.support.connect_child`."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.children import only_connect_server, run_module

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def land(folder: Path, name: str, hour: int, key: str, keys: range) -> None:
    """One file of rows, all of one time."""
    (folder / name).mkdir(exist_ok=True)
    times = pa.array([NOON + timedelta(hours=hour)] * len(keys), pa.timestamp("us", "UTC"))
    path = folder / name / f"{hour}.parquet"
    pq.write_table(pa.table({key: list(keys), "at": times}), path)
    os.utime(path, (1_700_000_000 + hour, 1_700_000_000 + hour))


def run_child(role: str, folder: Path) -> None:
    """A part of `connect_child`; it must end well."""
    with only_connect_server():
        run_module("tests.support.connect_child", role, str(folder))
