"""Runs of a stream into an Iceberg table that end at a failpoint, in the process of the test."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from spark_purgatory.spark.sink.drain import actions
from spark_purgatory.spark.sink.table.iceberg_target import IcebergTarget
from tests.support.sink_streams import Stream


class PowerCutError(RuntimeError):
    """Ends a run."""


def cut_at(stream: Stream, failpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file more, and a run that ends at the failpoint; "before pick" lies between the branch and the table."""

    def hook(reached: str) -> None:
        if reached == failpoint:
            actions.hook = None
            raise PowerCutError(failpoint)

    def pick(self: IcebergTarget, spark: SparkSession, written: int) -> None:
        raise PowerCutError("before pick")

    with monkeypatch.context() as patch:
        if failpoint == "before pick":
            patch.setattr(IcebergTarget, "_pick", pick)
        else:
            actions.hook = hook
        try:
            with pytest.raises(Exception, match=failpoint):
                stream.add(1).run(stream.rows())
        finally:
            actions.hook = None


def name(stream: Stream) -> str:
    return str(stream.sink.table)
