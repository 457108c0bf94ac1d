"""The log host on Spark, whose workers are killed and whose tasks fail at every place where it could matter.

Each stream must give the outcomes of the other host, row for row: its micro-batches are the same, and so are its
watermarks. Late rows, time-outs and restored shards are among them.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_purgatory.spark.host.log_host import FAILPOINTS
from tests.support.children import run_module
from tests.support.engine_driver import multiset
from tests.support.stream_rows import event, operation, purgatory
from tests.support.streams import Landing

BATCHES = 16
COLUMNS = ("id", "row", "status", "resolved_at", "wait_ms", "matched", "missing_keys", "late", "reason")
STREAMS: dict[str, dict[str, Any]] = {
    "killed": {"faults": [f"kill {failpoint}" for failpoint in FAILPOINTS]},
    "failed": {"faults": [f"fail {failpoint}" for failpoint in reversed(FAILPOINTS)], "emit": "final"},
    "without holders": {"faults": ["kill the holder before step"] * 6},
    "always cold": {"faults": [], "max_warm_bytes": 1},
}


def land(landing: Landing) -> None:
    """Operations of several lengths and ids that come twice; events in time, late, and for nobody."""
    rng = random.Random(20261123)
    for batch in range(BATCHES):
        starts = [batch + rng.uniform(-2, 1) for _ in range(20)]
        ids = [f"o{rng.randrange(batch * 20, batch * 20 + 24)}" for _ in starts]
        operations = [
            operation(id, created=start, deadline=start + rng.uniform(0, 6))
            for id, start in zip(ids, starts, strict=True)
        ]
        events = [
            event(f"o{rng.randrange(max(batch * 20 - 60, 0), batch * 20 + 20)}", batch + rng.uniform(-3, 1))
            for _ in range(15)
        ]
        landing.add(operations, events)


@pytest.mark.long
def test_killed_and_failed_at_every_step_it_gives_what_the_other_host_gives(
    spark: SparkSession, tmp_path: Path
) -> None:
    land(Landing(tmp_path))
    (tmp_path / "plans.json").write_text(json.dumps(STREAMS))
    run_module("tests.support.faulty_child", str(tmp_path))
    expected: dict[str, Counter[Any]] = {}
    for emit in ("early", "final"):
        rows = Landing(tmp_path, emit).run(spark, purgatory(emit=emit, host="applyInPandasWithState"))
        expected[emit] = multiset(rows, *COLUMNS)
        assert {row["status"] for row in rows} == {"COMPLETED", "EXPIRED", "DUPLICATE"}
        assert {row["late"] for row in rows} == {True, False}
    for name, options in STREAMS.items():
        left = [file.name for file in (tmp_path / f"plan of {name}").glob("[0-9]*")]
        assert not left, f"{name}: these faults did not happen: {left}"
        found = multiset(Landing(tmp_path, name).written(spark), *COLUMNS)
        assert found == expected[options.get("emit", "early")], name
