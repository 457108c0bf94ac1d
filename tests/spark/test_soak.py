"""The soak feeds every file, checks every outcome, and its growth is the last quarter of the time over the third."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from benchmarks.long_run import contenders
from benchmarks.soak import Sample, draw_picture, growth, line_of, shape_of, soak, waiting_by_batch
from benchmarks.workload_l import Shape, draw, ended_at_last, prepared
from spark_purgatory.spark.storage.spark_access import settings

pytestmark = pytest.mark.bench

AT = Sample(
    seconds=0,
    batch=3,
    ms=900,
    waiting=2_000_000,
    worker_bytes=100,
    jvm_bytes=50,
    checkpoint_files=10,
    checkpoint_bytes=10,
)


def test_as_many_arrive_as_end() -> None:
    shape = shape_of(2_000_000, minutes=30, trigger_seconds=2)
    assert (shape.batches, shape.minutes) == (900, 903)
    waiting = waiting_by_batch(draw(replace(shape, waiting=20_000, operations=71), seed=1))
    assert 19_900 < waiting[0] <= 20_000
    assert min(waiting) > 19_500 and max(waiting) < 28_000


def test_what_waits_is_counted_operation_by_operation() -> None:
    drawn = draw(Shape(waiting=400, operations=30, batches=6, minutes=12), seed=4)
    ends = [
        event if completes else (deadline - drawn.created_us.min() // 60_000_000 * 60_000_000) // 60_000_000
        for event, completes, deadline in zip(drawn.event_batch, drawn.completes, drawn.deadline_us, strict=True)
    ]
    for batch, waiting in enumerate(waiting_by_batch(drawn)):
        assert waiting == sum(
            arrived <= batch < end for arrived, end in zip(drawn.operation_batch.tolist(), ends, strict=True)
        )


def test_growth_compares_the_third_quarter_with_the_last() -> None:
    samples = [replace(AT, seconds=s, worker_bytes=100 + s, checkpoint_files=10) for s in range(0, 101, 5)]
    grown = growth(samples)
    assert grown["checkpoint files"] == 1
    assert grown["worker memory"] == pytest.approx(187.5 / 160)


def test_a_sample_is_a_line_and_all_of_them_a_picture(tmp_path: Path) -> None:
    assert "2,000,000 wait" in line_of(AT)
    draw_picture(tmp_path / "soak.svg", [replace(AT, seconds=s) for s in (0, 60, 120)])
    text = "".join(ElementTree.parse(tmp_path / "soak.svg").getroot().itertext())
    assert "Python workers, GB" in text and "minutes" in text


@pytest.mark.long
@pytest.mark.spark
def test_a_small_soak_ends_with_the_outcomes_that_the_arrays_say(spark: SparkSession, tmp_path: Path) -> None:
    workload = prepared(Shape(waiting=500, operations=40, batches=6, minutes=12), 7, tmp_path)
    contender = contenders(12)["log"]
    seen: list[Sample] = []
    with settings(spark, contender.settings):
        samples, found = soak(spark, contender, workload, 2, 0.5, 1, tmp_path / "run", seen.append)
    assert found == ended_at_last(workload.drawn, contender.grace_ms)
    assert samples == seen and samples[-1].batch >= samples[0].batch
    assert all(at.worker_bytes > 0 and at.checkpoint_files > 0 for at in samples)
    waiting = waiting_by_batch(workload.drawn)
    assert {at.waiting for at in samples} <= set(waiting)
    assert np.diff([at.seconds for at in samples]).min() > 0.5
