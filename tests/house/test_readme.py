"""The README's example runs, and its numbers of rows and columns are what it says."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.mark.spark
def test_the_first_example_gives_every_order_one_outcome(spark: SparkSession, tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[0]
    assert len(code.strip().splitlines()) <= 20
    start = datetime(2024, 5, 1, tzinfo=UTC)
    orders = [("paid", start, "Łódź"), ("unpaid", start, None), ("clock", start + timedelta(hours=2), "Roma")]
    payments = [("paid", start + timedelta(minutes=7)), ("nobody", start + timedelta(hours=2))]
    for folder, rows, names in (
        ("orders", orders, ("order_id", "ordered_at", "city")),
        ("payments", payments, ("order_id", "paid_at")),
    ):
        (tmp_path / folder).mkdir()
        table = pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)})
        pq.write_table(table, tmp_path / folder / "0.parquet", coerce_timestamps="us")
    example: dict[str, Any] = {}
    exec(code, example)
    outcomes = example["outcomes_of"](spark, str(tmp_path))
    query = outcomes.writeStream.format("memory").queryName("readme").trigger(availableNow=True).start()
    query.awaitTermination()
    rows = {row.order_id: row for row in spark.table("readme").collect()}
    assert {name: row.status for name, row in rows.items()} == {"paid": "COMPLETED", "unpaid": "EXPIRED"}
    assert (rows["paid"].wait_ms, rows["paid"].city, rows["unpaid"].missing_keys) == (420_000, "Łódź", ["unpaid"])


def test_every_make_target_that_the_readme_names_exists() -> None:
    makefile = (README.parent / "Makefile").read_text()
    for target in set(re.findall(r"make (\w+)", README.read_text())):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
