"""Queries with a RecordAccumulator that tests start, wait for and look into."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from spark_purgatory import RecordAccumulator
from tests.support.sink_streams import Stream

LINGER_S, TRIGGER_S = 4, 1


HOUR = {"linger": "1 hour", "delivery_timeout": "1 hour"}


def accumulator(stream: Stream, **options: Any) -> RecordAccumulator:
    stream.sink = RecordAccumulator(path=str(stream.folder / "table"), partition_by=["part"], **options)
    return stream.sink


def start(stream: Stream, sink: RecordAccumulator, rows: DataFrame | None = None) -> Any:
    trigger = {"processingTime": f"{TRIGGER_S} seconds"}
    return sink.write_stream(
        stream.rows() if rows is None else rows, checkpoint=str(stream.checkpoint), trigger=trigger
    )


def wait_until(condition: Callable[[], bool], query: Any, seconds: float = 90) -> float:
    start_s = time.monotonic()
    while not condition():
        assert query.exception() is None, query.exception()
        assert time.monotonic() - start_s < seconds, "not reached"
        time.sleep(0.05)
    return time.monotonic() - start_s


def staged_files(stream: Stream) -> list[Path]:
    return list((stream.checkpoint / "staging").glob("rows/*/epoch=*/batch=*/**/*.parquet"))
