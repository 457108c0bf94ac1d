"""`python -m benchmarks.user_run`: what users get next to what the benchmarks' session gets, for the same streams.

| stream | as its users start it |
| --- | --- |
| readme | README's five orders, `write_stream` into Delta, in the session of its ``pyspark`` line |
| orders | ``run conf/orders.yaml`` over the demo's landing files |
| small | workload W in the session of readme, 20 micro-batches of 1,000 operations, `write_stream` into Delta |
| w | the same, 4 micro-batches of 50,000 operations |

The other contender is the same stream in the session of `benchmarks.sinks`. Each run is a process of its own: it runs
the stream ``WARM`` times to get warm, and then once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from delta import configure_spark_with_delta_pip
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from benchmarks import sinks
from benchmarks.contenders import ours
from benchmarks.harness import LOCAL_CHECKPOINT, MASTER, ROOT, SEED, WORK, ContenderDiedError, last_words
from benchmarks.process_tree import cpu_seconds
from benchmarks.workload_w import prepared
from spark_purgatory import Completions, Operations, Purgatory, RecordAccumulator, criteria
from spark_purgatory.demo.landing import write_landing
from spark_purgatory.job.config_file import load_config
from spark_purgatory.job.runner import run
from spark_purgatory.job.session import build_session
from spark_purgatory.job.stopping import StopRequest
from spark_purgatory.spark.host.requirements import TRANSFORM_WITH_STATE_SETTINGS
from spark_purgatory.spark.sink.table.delta_target import LEAN_SETTINGS

WARM = {"readme": 3, "orders": 1, "small": 1, "w": 1}
SHARDS = 8
CONTENDERS = ("user", "harness")
ORDERS = [("o-1", "09:00"), ("o-2", "09:05"), ("o-3", "09:10"), ("o-4", "10:20"), ("o-5", "10:30")]
PAYMENTS = [("o-1", "09:07"), ("o-3", "09:45"), ("o-4", "10:25")]


def users_session() -> SparkSession:
    """Return the session of README's ``pyspark`` line, whose workers find the package in this checkout."""
    builder: Any = SparkSession.builder.appName("spark_purgatory user").master(MASTER)
    for name in ("spark.ui.showConsoleProgress", "spark.ui.enabled"):
        builder = builder.config(name, "false")
    builder = builder.config("spark.executorEnv.PYTHONPATH", str(ROOT)).config("spark.log.level", "ERROR")
    builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    catalog = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    spark: SparkSession = configure_spark_with_delta_pip(
        builder.config("spark.sql.catalog.spark_catalog", catalog)
    ).getOrCreate()
    return spark


def orders_config(folder: Path) -> Any:
    """Return conf/orders.yaml with its places below the folder."""
    text = (ROOT / "conf" / "orders.yaml").read_text(encoding="utf-8").replace(".demo/", f"{folder}/")
    (folder / "orders.yaml").write_text(text, encoding="utf-8")
    return load_config(folder / "orders.yaml", [f"spark.spark.master={MASTER}", "summary=false"])


def readme(spark: SparkSession, folder: Path) -> None:
    """Run README's stream."""
    sides = []
    for name, rows, column in (("orders", ORDERS, "ordered_at"), ("payments", PAYMENTS, "paid_at")):
        frame = spark.createDataFrame([(key, f"2024-05-01 {at}") for key, at in rows], "order_id string, at string")
        frame = frame.selectExpr("order_id", f"timestamp(at) as {column}")
        frame.write.parquet(str(folder / name))
        sides.append(spark.readStream.schema(frame.schema).parquet(str(folder / name)))
    purgatory = Purgatory(
        operations=Operations(
            id="order_id", keys="order_id", created="ordered_at", timeout="30 minutes", watermark="10 minutes"
        ),
        completions=Completions(key="order_id", time="paid_at", watermark="10 minutes"),
        criterion=criteria.any_key(),
    )
    write(purgatory.resolve(*sides), folder)


def write(outcomes: DataFrame, folder: Path) -> None:
    """Write a stream into a Delta table."""
    accumulator = RecordAccumulator(path=str(folder / "outcomes"))
    query = accumulator.write_stream(outcomes, checkpoint=str(folder / "checkpoint"), trigger={"availableNow": True})
    query.awaitTermination()


def orders(spark: SparkSession, folder: Path) -> None:
    """Run the job of conf/orders.yaml."""
    write_landing(folder / "landing", operations=20_000, seed=SEED)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        run(spark, orders_config(folder), Console(file=nowhere), StopRequest())


def workload(spark: SparkSession, folder: Path, operations: int, batches: int) -> None:
    """Run workload W."""
    write(ours(spark, prepared(operations, batches, SEED, WORK).folder, SHARDS), folder)


STREAMS: dict[str, Callable[[SparkSession, Path], None]] = {
    "readme": readme,
    "orders": orders,
    "small": partial(workload, operations=20_000, batches=20),
    "w": partial(workload, operations=200_000, batches=4),
}


def run_one(stream: str, contender: str) -> dict[str, float]:
    """Run a stream until it is warm, and then once; return what the last one took."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with TemporaryDirectory(prefix="user-", dir=WORK) as work:
        if contender == "harness":
            spark = sinks.session("3g", {**LOCAL_CHECKPOINT, **LEAN_SETTINGS, **TRANSFORM_WITH_STATE_SETTINGS})
        elif stream == "orders":
            spark = build_session(orders_config(Path(work)))
        else:
            spark = users_session()
        for number in range(WARM[stream] + 1):
            folder = Path(work) / str(number)
            folder.mkdir()
            began_s, began_cpu_s = time.monotonic(), cpu_seconds()
            STREAMS[stream](spark, folder)
            took = {"s": time.monotonic() - began_s, "CPU s": cpu_seconds() - began_cpu_s}
        spark.stop()
    return took


def main(
    streams: Annotated[str, typer.Option(help=f"Some of {', '.join(STREAMS)}.")] = ",".join(STREAMS),
    rounds: Annotated[int, typer.Option(min=1, help="How often both run in turn.")] = 2,
    one: Annotated[str, typer.Option(help="Run this contender in this process, and print what it took.")] = "",
) -> None:
    """Run the contenders in turn, and print what users take over what the benchmarks take."""
    WORK.mkdir(parents=True, exist_ok=True)
    if one:
        print(json.dumps(run_one(streams, one)))
        return
    for stream in streams.split(","):
        ratios: dict[str, list[float]] = {"s": [], "CPU s": []}
        for number in range(rounds):
            took = {}
            for contender in CONTENDERS[:: 1 if number % 2 else -1]:
                command = [sys.executable, "-m", "benchmarks.user_run", "--streams", stream, "--one", contender]
                done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
                if done.returncode:
                    raise ContenderDiedError(last_words(done))
                took[contender] = json.loads(done.stdout.splitlines()[-1])
                print(f"{stream}, {contender}: {took[contender]}, load {os.getloadavg()[0]:.0f}", flush=True)
            for name, each in ratios.items():
                each.append(took["user"][name] / took["harness"][name])
        told = (f"{name} {median(each):.2f} ({min(each):.2f} .. {max(each):.2f})" for name, each in ratios.items())
        print(f"{stream}: user over harness: {', '.join(told)}", flush=True)


if __name__ == "__main__":
    typer.run(main)
