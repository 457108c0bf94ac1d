"""Streams whose source is a real Kafka broker, moved between two runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.children import run_module
from tests.support.kafka_broker import kafka_broker
from tests.support.lanes import BLOB, LOG

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.mark.parametrize(
    ("seed", "sink", "options", "stops"),
    [
        pytest.param(4, "accumulator", {}, [(LOG, 7), (BLOB, 2)], id="into a RecordAccumulator"),
        pytest.param(3, "delta", {"emit": "early"}, [(BLOB, 8), (LOG, 3)], id="early, several keys, into Delta"),
    ],
)
def test_a_moved_stream_of_kafka_has_the_table_of_the_one_that_stays(
    tmp_path: Path, seed: int, sink: str, options: dict[str, Any], stops: list[Any]
) -> None:
    with kafka_broker(tmp_path / "broker") as broker:
        run_module(
            "tests.support.kafka_lanes_child",
            str(tmp_path),
            broker.address,
            str(seed),
            sink,
            json.dumps(options),
            json.dumps(stops),
        )
