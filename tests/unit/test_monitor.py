"""A query's monitor, on reports without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_purgatory.metrics.catalog import Sample
from spark_purgatory.spark.monitoring import monitor
from spark_purgatory.spark.monitoring.monitor import QueryMonitor


def report(batch_id: int, run: str = "run") -> Any:
    return SimpleNamespace(
        batchId=batch_id, runId=run, durationMs={"addBatch": 1, "triggerExecution": 5}, sources=[], eventTime={},
        observedMetrics={},
    )  # fmt: skip


@pytest.mark.parametrize("earlier", [[], [0], [0, 1]])
def test_a_micro_batch_is_counted_once_however_often_it_is_reported(
    earlier: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = SimpleNamespace(streams=SimpleNamespace(addListener=lambda listener: None))
    monkeypatch.setattr(monitor, "_session_of", lambda query: session)
    samples = list[Sample]()
    query: Any = SimpleNamespace(name="q", id="id", runId="run", isActive=True, recentProgress=[*map(report, earlier)])
    listener = QueryMonitor(query, (samples.append,), None, 60_000, "spark_purgatory")
    for again in (*earlier, *earlier, 2, 2):
        listener.onQueryProgress(SimpleNamespace(progress=report(again)))
    listener.onQueryProgress(SimpleNamespace(progress=report(9, run="another")))
    assert samples[-1].values["batches_total"] == {(): len(earlier) + 1}
    assert samples[-1].batch == 2
