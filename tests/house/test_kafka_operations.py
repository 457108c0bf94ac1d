"""The examples of docs/how-to/from_kafka_classes.md run, and tell what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "from_kafka_classes.md"


@pytest.mark.parametrize("operation", ["DelayedProduce", "DelayedHeartbeat"])
def test_kafkas_own_operation_comes_out_as_its_example_says(spark: SparkSession, operation: str) -> None:
    text = PAGE.read_text()
    example: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), example)
    assert re.search(rf"`[\w.]+\.{operation}`", text), "the page names the Kafka class"
    example[re.sub(r"(?<!^)(?=[A-Z])", "_", operation).lower()](spark)
