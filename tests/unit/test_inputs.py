"""What is kept of the inputs' columns."""

from __future__ import annotations

from spark_purgatory.config import Operations
from spark_purgatory.spark.operator.inputs import payload_sources


def test_each_kept_field_names_its_columns_so_that_another_column_is_refused_at_a_restart() -> None:
    operations = Operations(id="i", keys=["k", "l"], created="c", deadline="d")
    assert dict(payload_sources(operations, "s")) == {
        "operations.id": ("i",),
        "operations.keys": ("k", "l"),
        "operations.created": ("c",),
        "operations.deadline": ("d",),
        "scope": ("s",),
    }
