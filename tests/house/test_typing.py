"""A query of the accumulator is as one of Spark's. That the package is typed, `make lint` shows by typing_user.py."""

from __future__ import annotations

from pyspark.sql.streaming.query import StreamingQuery

from spark_purgatory import AccumulatorQuery


def test_a_query_has_every_name_of_sparks() -> None:
    own = {name for name in vars(AccumulatorQuery) if not name.startswith("_")}
    assert {name for name in vars(StreamingQuery) if not name.startswith("_")} < own
