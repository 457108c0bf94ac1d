"""`python -m benchmarks.many_keys`: operations with 1, 2, 4 and 8 keys, in each way to bring events to them.

| contender | what it is |
| --- | --- |
| broadcast | `Purgatory` as it comes: every shard gets every event; with one key a plain column, and no broadcast |
| scope | the same with ``scope``, where the keys share an attribute (world ``own`` alone) |
| broadcast_log, scope_log | both with ``host="transformWithState"`` |
| by_shard | watchers by shard of keys, chained to the purgatory by operation (`chained`) |
| by_key | watchers by key, a group each, chained likewise |

Workload M (`workload_m`), read with availableNow, RocksDB for all, each run with a checkpoint of its own. Shuffles
are read from Spark's event log, state from the checkpoint's folder: what all versions of it took, by micro-batch. A
run is a number only if its outcomes are the expected ones. Exit code: 0, or 1 if some were not.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from benchmarks import chained, harness, report
from benchmarks.contenders import ROCKSDB
from benchmarks.rates import FIRST_STEADY_BATCH
from benchmarks.workload_m import CHECK_MODULO, FACTOR, WORLDS, Draw, expected, prepared
from benchmarks.workload_w import START_US
from spark_purgatory import TRANSFORM_WITH_STATE_SETTINGS, Completions, Operations, Purgatory, criteria
from spark_purgatory.spark.storage.spark_access import settings

OPERATIONS_DDL = "op string, n bigint, keys array<string>, created timestamp, deadline timestamp"
EVENTS_DDL = "key string, time timestamp, op string"
BY_KEY_ROWS = 12_000
"""Rows that a group a key does in less than a minute."""
WARM_UP_OPERATIONS = 500


@dataclass(frozen=True)
class Measured:
    """One run with the expected outcomes."""

    contender: str
    n_keys: int
    operations: int
    rows: int
    seconds: float
    rate: float
    """Rows a second from the third micro-batch on."""
    micro_batches: int
    shuffled_bytes: int
    shuffled_records: int
    """As Spark counts them: a blob is one."""
    sent_rows: int
    """Rows that went through shuffles, those in blobs, and each copy of a broadcast."""
    state_bytes: int
    """Written into the checkpoint."""
    load: float


def broadcast(operations: DataFrame, events: DataFrame, n_keys: int, **more: Any) -> DataFrame:
    """The library as its users call it."""
    return _purgatory(n_keys, **more).resolve(operations, events.select("key", "time"))


def scope(operations: DataFrame, events: DataFrame, n_keys: int, **more: Any) -> DataFrame:
    """Keys within the operation that they belong to, which events name."""
    return _purgatory(n_keys, scope="op", **more).resolve(operations, events)


def _purgatory(n_keys: int, **more: Any) -> Purgatory:
    return Purgatory(
        operations=Operations(
            id="op",
            keys="keys" if n_keys > 1 else F.col("keys")[0],
            created="created",
            deadline="deadline",
            watermark="0 seconds",
        ),
        completions=Completions(key="key", time="time", watermark="0 seconds"),
        criterion=criteria.all_keys(),
        shards=chained.SHARDS,
        max_broadcast_bytes=1 << 31,
        **more,
    )


CONTENDERS: dict[str, Callable[[DataFrame, DataFrame, int], DataFrame]] = {
    "broadcast": broadcast,
    "scope": scope,
    "broadcast_log": partial(broadcast, host="transformWithState"),
    "scope_log": partial(scope, host="transformWithState"),
    "by_shard": lambda operations, events, n_keys: chained.by_shard(operations, events),
    "by_key": lambda operations, events, n_keys: chained.by_key(operations, events),
}


class EventLog:
    """What shuffles wrote, from the log that Spark keeps of its tasks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read_to = 0

    def shuffled(self) -> tuple[int, int]:
        """(bytes, records) since the last call."""
        size = -1
        while size != (size := self._path().stat().st_size):
            time.sleep(1)  # the listener is asynchronous
        with self._path().open(encoding="utf-8") as log:
            log.seek(self.read_to)
            tasks = [json.loads(line) for line in log if line.startswith('{"Event":"SparkListenerTaskEnd"')]
            self.read_to = log.tell()
        writes = [(task.get("Task Metrics") or {}).get("Shuffle Write Metrics", {}) for task in tasks]
        names = ("Shuffle Bytes Written", "Shuffle Records Written")
        n_bytes, n_records = (sum(write.get(name, 0) for write in writes) for name in names)
        return n_bytes, n_records

    def _path(self) -> Path:
        return next(path for path in self.folder.iterdir() if not path.name.endswith(".crc"))


def run_once(spark: SparkSession, log: EventLog, contender: str, drawn: Draw, files: Path) -> Measured:
    """One contender over a workload."""
    n, n_keys = drawn.keys.shape
    checkpoint = tempfile.mkdtemp(prefix=f"checkpoint-{contender}-", dir=harness.WORK)
    reader = spark.readStream.option("maxFilesPerTrigger", 1)
    operations = reader.schema(OPERATIONS_DDL).parquet(str(files / "operations"))
    events = reader.schema(EVENTS_DDL).parquet(str(files / "events"))
    resolved_us = F.unix_micros("resolved_at") - F.lit(START_US)
    mixed = (F.col("n") * FACTOR + resolved_us + (F.col("status") == "COMPLETED").cast("int")) % CHECK_MODULO
    load = os.getloadavg()[0]
    log.shuffled()
    started = time.monotonic()
    with settings(spark, TRANSFORM_WITH_STATE_SETTINGS if contender.endswith("_log") else {}):
        counted = CONTENDERS[contender](operations, events, n_keys).observe(
            harness.OBSERVATION,
            F.count_if(F.col("status") == "COMPLETED").alias("completed"),
            F.count_if(F.col("status") == "EXPIRED").alias("expired"),
            F.sum(mixed).alias("checksum"),
        )
        query = counted.writeStream.format("noop").option("checkpointLocation", checkpoint)
        running = query.trigger(availableNow=True).start()
        running.awaitTermination()
    seconds = time.monotonic() - started
    reports = [dict(progress) for progress in running.recentProgress]
    n_bytes, n_records = log.shuffled()
    state_bytes = sum(path.stat().st_size for path in Path(checkpoint, "state").rglob("*") if path.is_file())
    shutil.rmtree(checkpoint, ignore_errors=True)
    found = harness.counters_of(reports, harness.OBSERVATION)
    if found != asdict(expected(drawn)):
        raise harness.WrongOutcomeError(f"{contender}, {n_keys} keys: {found} came out, not {expected(drawn)}")
    received = harness.counters_of(reports, chained.COUNTED)
    watched = n * n_keys + len(drawn.event_us) if contender in ("by_shard", "by_key") else 0
    batches = [sum(pair) for pair in zip(*(side.tolist() for side in drawn.by_batch()), strict=True)]
    steady = list(zip(reports, batches, strict=False))[FIRST_STEADY_BATCH:]
    steady_ms = sum(progress["durationMs"]["triggerExecution"] for progress, _ in steady)
    return Measured(
        contender=contender,
        n_keys=n_keys,
        operations=n,
        rows=drawn.rows,
        seconds=seconds,
        rate=sum(rows for _, rows in steady) * 1000 / steady_ms,
        micro_batches=len(reports),
        shuffled_bytes=n_bytes,
        shuffled_records=n_records,
        sent_rows=received["received"] + received["events_received"] + watched,
        state_bytes=state_bytes,
        load=load,
    )


def session(memory: str, log_folder: Path) -> SparkSession:
    """As the other benchmarks', over RocksDB, with an event log of one plain file."""
    more = {
        **ROCKSDB,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": log_folder.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    return harness.session(memory, settings=more)


def sized(contender: str, world: str, operations: int, n_keys: int) -> int:
    """Operations that a contender is given: all but where a group a key would take too long."""
    if contender != "by_key" or world == "shared":
        return operations
    return min(operations, BY_KEY_ROWS // (2 * n_keys))


def table_of(runs: list[Measured], world: str) -> Table:
    """Contenders by number of keys; bytes and rows for each row that was read."""
    table = Table(title=f"Many keys, world {world}, {chained.SHARDS} shards", title_justify="left")
    table.add_column("keys", justify="right")
    table.add_column("contender", no_wrap=True)
    names = ("operations", "rows", "rows/s", "of broadcast", "rows sent", "shuffled bytes", "records", "state bytes")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    rates = {run.n_keys: run.rate for run in runs if run.contender == "broadcast"}
    for run in sorted(runs, key=lambda run: run.n_keys):
        base = rates.get(run.n_keys)
        table.add_row(
            str(run.n_keys),
            run.contender,
            f"{run.operations:,}",
            f"{run.rows:,}",
            f"{run.rate:,.0f}",
            f"{run.rate / base:.2f}" if base else "",
            f"{run.sent_rows / run.rows:.2f}",
            f"{run.shuffled_bytes / run.rows:.0f}",
            f"{run.shuffled_records / run.micro_batches:,.0f} a batch",
            f"{run.state_bytes / run.rows:.0f}",
        )
    return table


def main(
    operations: Annotated[int, typer.Option(min=1000, help="Operations of the workload.")] = 50_000,
    keys: Annotated[str, typer.Option(help="Numbers of keys to run with.")] = "1,2,4,8",
    world: Annotated[str, typer.Option(help=f"One of {', '.join(WORLDS)}.")] = "own",
    contenders: Annotated[str, typer.Option(help=f"Some of {', '.join(CONTENDERS)}.")] = ",".join(CONTENDERS),
    batches: Annotated[int, typer.Option(min=FIRST_STEADY_BATCH + 1, help="Micro-batches with operations.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, help="Times that each contender runs, in turn; the best counts.")] = 1,
    memory: Annotated[str, typer.Option(help="Heap of the Spark process.")] = "3g",
) -> None:
    """Run workload M through the contenders, in turn, and compare."""
    names = contenders.split(",")
    if unknown := [name for name in (*names, world) if name not in (*CONTENDERS, *WORLDS)]:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join((*CONTENDERS, *WORLDS))}")
    if world == "shared":
        names = [name for name in names if not name.startswith("scope")]
    console = Console(highlight=False, width=report.TABLE_WIDTH + 20)
    harness.WORK.mkdir(parents=True, exist_ok=True)
    workload = partial(prepared, world, seed=harness.SEED, root=harness.WORK)
    pairs = [(n_keys, name) for n_keys in map(int, keys.split(",")) for name in names]
    sizes = [(n_keys, name, sized(name, world, operations, n_keys)) for n_keys, name in pairs]
    for n_keys, _, count in sizes:
        workload(count, n_keys, batches)  # drawn and written before anything is measured
    with tempfile.TemporaryDirectory(prefix="event-log-", dir=harness.WORK) as log_folder:
        spark = session(memory, Path(log_folder))
        log = EventLog(Path(log_folder))
        console.print(report.facts_line(report.machine_facts(spark)), soft_wrap=True)
        for name in names:
            run_once(spark, log, name, *workload(WARM_UP_OPERATIONS, 2, FIRST_STEADY_BATCH + 1))
        best: dict[tuple[int, str], Measured] = {}
        for n_keys, name, count in sizes * rounds:
            run = run_once(spark, log, name, *workload(count, n_keys, batches))
            said = f"{run.rows:,} rows in {run.seconds:.1f} s, {run.rate:,.0f} rows/s, load {run.load:.1f}"
            console.print(f"{n_keys} keys, {name}: {said}; outcomes right", soft_wrap=True)
            best[n_keys, name] = max(best.get((n_keys, name), run), run, key=lambda run: run.rate)
        spark.stop()
    console.print(table_of(list(best.values()), world))


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
