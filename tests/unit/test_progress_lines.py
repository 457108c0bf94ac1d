"""`metrics.progress()`: the lines of samples that a real query gave."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spark_purgatory import metrics
from spark_purgatory.metrics.catalog import BY_NAME, PREFIX

FILE = Path(__file__).resolve().parents[1] / "data" / "metrics_recorded.jsonl.gz"
AT_MS = 1_764_163_200_000
"""2025-11-26 13:20:00 UTC."""


def recorded(first_batch: int = 0, **more: float) -> Iterator[metrics.Sample]:
    """What was recorded, as samples; the checkpoint was new."""
    for line in gzip.decompress(FILE.read_bytes()).decode().splitlines():
        values: dict[str, dict[tuple[str, ...], float]] = {}
        for series, number in json.loads(line)["samples"].items():
            [family] = text_string_to_metric_families(f"{series} {number}\n")
            [sample] = family.samples
            name = sample.name.removeprefix(PREFIX)
            labels = (value for label, value in sample.labels.items() if label != "query")
            values.setdefault(name, {})[tuple(labels)] = number
        assert set(values) <= set(BY_NAME)
        values |= {name: {(): number} for name, number in more.items()}
        batch = first_batch + int(values["batches_total"][()]) - 1
        yield metrics.Sample("<orders>", AT_MS, values, batch)


def printed(samples: Iterator[metrics.Sample], capsys: pytest.CaptureFixture[str]) -> list[str]:
    report = metrics.progress()
    for sample in samples:
        report(sample)
        report(sample)  # the state was read: the same micro-batch once more
    return [re.sub(r"^\d\d:\d\d:00 ", "", line) for line in capsys.readouterr().out.splitlines()]


def test_a_line_is_a_micro_batch_or_the_end_of_a_drain(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(recorded(), capsys)
    assert lines[0] == (
        "batch 0: 20 rows in, 10 decided, 0 waiting, 1 rows/s, took 34.4 s, watermark none yet, this run COMPLETED 10"
    )
    assert lines[1] == (
        "batch 2: 20 rows in, 10 decided, 0 waiting, 3 rows/s, took 7.8 s, watermark 2025-11-26 11:19:10 UTC "
        "(2.0 h behind the clock), this run COMPLETED 20"
    ), "batch 1 only passed the time"
    assert lines[3] == "drain 1 ended after 44.8 s: 10 rows in 1 file"
    assert "2 drains ended, the last after 26.4 s: 20 rows in 2 files" in lines
    assert ": 20 rows in, 10 decided, 12,000 waiting, " in lines[-2]
    assert lines[-2].endswith("this run COMPLETED 280, EXPIRED 60")
    ends = [re.findall(r"(?:^drain | ended.*: )(\d+)", line) for line in lines if line.startswith("drain ")]
    assert len(ends) == 16 and sum(int(rows) for _, rows in ends) == 320 - 20


def test_a_drain_begins_once(capsys: pytest.CaptureFixture[str]) -> None:
    """It goes on over micro-batches; a new one begins where another has ended."""
    lines = [line for line in printed(recorded(draining_rows=7), capsys) if line.startswith("drain ")]
    assert lines[:4] == [
        "drain 1 began: 7 rows",
        "drain 1 ended after 44.8 s: 10 rows in 1 file",
        "drain 2 began: 7 rows",
        "drain 2 ended after 29.8 s: 20 rows in 1 file",
    ]
    assert lines[-1] == "drain 19 began: 7 rows"
