"""The example of docs/how-to/from_kafka_classes.md runs, and its outcomes are what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "from_kafka_classes.md"


def test_kafkas_own_operation_comes_out_as_its_example_says(spark: SparkSession) -> None:
    text = PAGE.read_text()
    example: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), example)
    example["delayed_produce"](spark)
