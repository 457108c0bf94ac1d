"""Every public docstring names each argument and has an example, and the examples run as they are printed."""

from __future__ import annotations

import doctest
import inspect
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chispa
import pytest
from prometheus_client import generate_latest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_purgatory
from spark_purgatory import Completions, Operations, Purgatory, RecordAccumulator, criteria, metrics
from spark_purgatory.config import options
from spark_purgatory.testing import PurgatoryTester, kit, tester

PUBLIC: dict[str, Callable[..., Any]] = {
    "Operations": Operations,
    "Completions": Completions,
    "Purgatory": Purgatory,
    "Purgatory.resolve": Purgatory.resolve,
    "RecordAccumulator": RecordAccumulator,
    "RecordAccumulator.write_stream": RecordAccumulator.write_stream,
    "monitor": spark_purgatory.monitor,
    "metrics.progress": metrics.progress,
    "metrics.prometheus": metrics.prometheus,
    "metrics.opentelemetry": metrics.opentelemetry,
    "check_checkpoint": spark_purgatory.check_checkpoint,
    "RecordAccumulator.table_exists": RecordAccumulator.table_exists,
    "RecordAccumulator.read": RecordAccumulator.read,
    "RecordAccumulator.flush": RecordAccumulator.flush,
    "RecordAccumulator.close": RecordAccumulator.close,
    "gauges": spark_purgatory.gauges,
    "pending": spark_purgatory.pending,
    "PurgatoryTester": PurgatoryTester,
    **{
        f"{module.__name__.rpartition('.')[2]}.{name}": function
        for module in (criteria, kit)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    },
}
ON_SPARK = [name for name, each in PUBLIC.items() if "Example::" in str(each.__doc__)]
SAME_IN_OTHER_UNITS = ("_ms", "_bytes")


@pytest.mark.parametrize("name", PUBLIC)
def test_every_argument_is_described_and_there_is_an_example(name: str) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ""
    arguments = [each for each in inspect.signature(PUBLIC[name]).parameters if each != "self"]
    for argument in arguments:
        described = re.search(rf"^    {argument}: [A-Z\"]", text, re.MULTILINE)
        by_another = "arguments as in" in text or (
            name == "RecordAccumulator" and argument.endswith(SAME_IN_OTHER_UNITS) and "Durations and sizes" in text
        )
        assert described or by_another, argument
    assert re.search(r"^Example:", text, re.MULTILINE)


@pytest.mark.parametrize("module", [criteria, options, tester])
def test_examples_with_prompts_print_what_they_say(module: Any) -> None:
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


@pytest.mark.long
def test_examples_on_spark_run(spark: SparkSession, tmp_path: Path) -> None:
    start = F.lit("2026-11-01 11:00:00").cast("timestamp")
    minutes = F.make_dt_interval(mins=F.col("id").cast("int"))
    orders = spark.range(20).select(F.col("id").alias("order_id"), (start + minutes).alias("ordered_at"))
    payments = spark.range(0, 20, 2).select(F.col("id").alias("order_id"), (start + minutes * 2).alias("paid_at"))
    names: dict[str, Any] = {name: getattr(spark_purgatory, name) for name in spark_purgatory.__all__}
    names |= {name: getattr(kit, name) for name in dir(kit) if not name.startswith("_")}
    names |= {"spark": spark, "orders": orders, "payments": payments, "tmp_path": tmp_path / "first", "chispa": chispa}
    ran = []
    for name in ON_SPARK:
        code = re.findall(r"Example::\n\n((?:    .*\n?|\n)+)", inspect.getdoc(PUBLIC[name]) or "")[0]
        exec(textwrap.dedent(code).replace("/lake", str(tmp_path)).replace("port=9108", "port=0"), names)
        match name:
            case "Purgatory":
                final = {**vars(names["purgatory"]), "emit": "final"}
                names["purgatory"] = Purgatory(**final)
                names["outcomes"] = names["expected"] = names["outcomes"].cache()
                assert names["outcomes"].where("status = 'COMPLETED'").count() == 10
            case "Purgatory.resolve":
                assert 0 < names["late"].count() < 10
                for side, frame in (("orders", orders), ("payments", payments)):
                    frame.write.parquet(str(tmp_path / side))
                streams = [spark.readStream.schema(f.schema).parquet(str(tmp_path / n)) for n, f in
                           (("orders", orders), ("payments", payments))]  # fmt: skip
                names["batch"], names["outcomes"] = names["outcomes"], names["purgatory"].resolve(*streams)
            case "RecordAccumulator":
                names["query"].processAllAvailable()
                names["query"].stop()
            case "metrics.prometheus":
                assert "spark_purgatory_batches_total{" in generate_latest().decode()
            case "monitor" | "metrics.opentelemetry":
                assert names["query_monitor"].last.flat()["batches_total"] > 0
            case "RecordAccumulator.close":
                names["outcomes"] = names["batch"]
            case "gauges":
                assert names["waiting"] > 0
            case "pending":
                assert names["waiting"].count() > 0
        ran.append(name)
    assert set(ran) == set(ON_SPARK) and len(ran) > 10
