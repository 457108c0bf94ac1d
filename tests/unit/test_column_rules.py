"""Which columns of a table change the texts that they take; Delta's own answers are in `tests/spark`."""

from __future__ import annotations

import pytest
from pyspark.sql import types as T

from spark_purgatory.spark.sink.table.column_rules import is_padded


def column(kind: str) -> T.StructField:
    """As Spark shows a column with char or varchar at any depth; "" is a plain string."""
    return T.StructField("c", T.StringType(), True, {"__CHAR_VARCHAR_TYPE_STRING": kind} if kind else {})


@pytest.mark.parametrize(
    ("staged", "there", "padded"),
    [
        ("", "", False),
        ("", "char(5)", True),
        ("char(4)", "char(5)", True),
        ("char(5)", "char(5)", False),
        ("char(5)", "", False),
        ("", "varchar(5)", False),
        ("", "array<varchar(5)>", False),
        ("", "struct<x:varchar(2),y:array<char(4)>>", True),
    ],
)
def test_a_char_at_any_depth_pads_texts_of_other_lengths(staged: str, there: str, padded: bool) -> None:
    assert is_padded(column(staged), column(there)) is padded
