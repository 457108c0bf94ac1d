"""`python -m benchmarks.latency`: milliseconds from an event to the outcome of its operation, at 1,000 rows a second.

The shape is that in which Spark's own figure for ``transformWithState`` was measured: 1,000 rows a second over 50,000
keys, micro-batches that follow each other at once. `benchmarks.latency_feed` says what is fed. The way in is stamped
by the wall clock as a row is given to Spark's socket source, so what a row waits for the next micro-batch counts. The
way out is stamped, by the same clock, when ``foreachBatch`` has the micro-batch's outcomes in this process, before
Spark commits it: as a reader of a Kafka topic sees a row that was sent there. Spark's ``rate`` source would not do: it
hands out rows of whole seconds, a second late. Nor would a broker: it would take its share of the same two cores.

| contender | what |
| --- | --- |
| log | `Purgatory`, any_key, emit early, hosted by ``transformWithState`` |
| blob | the same hosted by ``applyInPandasWithState`` |
| blob_heap | the same over the HDFS-backed store, as Spark 4.0 has it |
| timers | Python's ``transformWithState`` by the book: a group, a value and a timer an operation |
| timers_pandas | the same, of ``transformWithStateInPandas`` |
| join | Spark's stream-stream left outer join, in the JVM |

Contenders take turns in rounds, in one session, after a short run each. A time is reported only for a contender whose
table is that of the feed: every operation with an event COMPLETED, every other one EXPIRED whose deadline has passed,
each once. One that cannot keep up has a backlog when the feed ends, and its times grow with the run: that is told as
the milliseconds from the last row to the last outcome, and one that takes `TOO_SLOW_S` to work it off is told as such.
Exit code: 0, or 1 if a table was wrong.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table

from benchmarks import harness
from benchmarks.contenders import ROCKSDB, joined, purgatory_of
from benchmarks.latency_feed import HOST, Feed, Script, Taken, check_outcomes, latencies_ms, percentile
from benchmarks.long_results import write_document
from benchmarks.long_waits import RESULTS, listed
from benchmarks.per_operation import groups_of, with_timers_by_row, with_timers_in_pandas
from benchmarks.process_tree import cpu_seconds
from benchmarks.report import machine, machine_line
from spark_purgatory.spark.host.requirements import STATE_STORE_SETTINGS
from spark_purgatory.spark.storage.spark_access import settings

SPARKS_OWN = "Spark's own figure, transformWithState on the JVM, Kafka to Kafka, 15 cores: p50 319 ms, p99 463 ms"
SHARDS = 2
LONGEST_DELAY_MINUTES = 60
POLL_S = 0.05
TOO_SLOW_S = 600.0


@dataclass(frozen=True)
class Contender:
    """A way from both sides to outcomes."""

    build: Callable[[DataFrame, DataFrame], DataFrame]
    settings: Mapping[str, str] = field(default_factory=dict)
    grace_ms: int = 0
    """How long after its deadline it lets an operation expire."""


CONTENDERS: Mapping[str, Contender] = {
    "log": Contender(purgatory_of(SHARDS, host="transformWithState").resolve, STATE_STORE_SETTINGS),
    "blob": Contender(purgatory_of(SHARDS, host="applyInPandasWithState").resolve, STATE_STORE_SETTINGS),
    "blob_heap": Contender(purgatory_of(SHARDS, host="applyInPandasWithState").resolve),
    "timers": Contender(lambda *sides: with_timers_by_row(groups_of(*sides)), STATE_STORE_SETTINGS),
    "timers_pandas": Contender(lambda *sides: with_timers_in_pandas(groups_of(*sides)), STATE_STORE_SETTINGS),
    "join": Contender(partial(joined, longest_delay_minutes=LONGEST_DELAY_MINUTES), ROCKSDB, grace_ms=1),
}


class TooSlowError(Exception):
    """A contender did not work off what it was fed."""


@dataclass(frozen=True)
class Timed:
    """A run whose table is right; times in milliseconds."""

    contender: str
    round: int
    load: float
    events: int
    """As many were measured."""
    p50: float
    p99: float
    batch: float
    """A micro-batch's, the median of those while rows were measured."""
    drained: float
    """From the last row to the last outcome of an event."""
    cores: float
    """CPU seconds a second while rows were fed, of all processes."""


def sides(spark: SparkSession, feed: Feed) -> tuple[DataFrame, DataFrame]:
    """The feed as operations and events, in the columns of workload W."""
    value = F.split("value", ",")
    key, time_, deadline = value[0].alias("key"), F.timestamp_micros(value[1].cast("bigint")), value[2].cast("bigint")
    operations, events = (
        spark.readStream.format("socket").option("host", HOST).option("port", port).load() for port in feed.ports
    )
    operation = (value[0].alias("op_id"), key, time_.alias("created"), F.timestamp_micros(deadline).alias("deadline"))
    return operations.select(*operation, F.lit(1.0).alias("amount")), events.select(key, time_.alias("time"))


def run_once(spark: SparkSession, name: str, script: Script, number: int, work: Path = harness.WORK) -> Timed:
    """One run, its outcomes checked; raises `WrongOutcomeError` and `TooSlowError`."""
    contender, taken, load = CONTENDERS[name], Taken(), os.getloadavg()[0]

    def take(batch: DataFrame, batch_id: int) -> None:
        taken.add(batch.select("op_id", "status").toArrow())

    work.mkdir(parents=True, exist_ok=True)
    with (
        settings(spark, contender.settings),
        TemporaryDirectory(prefix=f"latency-{name}-", dir=work, ignore_cleanup_errors=True) as checkpoint,
        Feed(script) as feed,
    ):
        outcomes = contender.build(*sides(spark, feed))
        query = outcomes.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint).start()
        try:
            feed.preload()
            wait_until_read(query, name, script.waiting)
            begun, cpu_s = time.monotonic(), cpu_seconds()
            first_us = time.time_ns() // 1000
            feed.run()
            seconds, cpu_s, ended_us = time.monotonic() - begun, cpu_seconds() - cpu_s, time.time_ns() // 1000
            wait_until_read(query, name, script.waiting + script.rows)
            query.processAllAvailable()  # The watermark of the last rows expires what is due.
        finally:
            query.stop()
        reports = [dict(report) for report in query.recentProgress]
    check_outcomes(name, script, feed.sent, taken, contender.grace_ms)
    found = latencies_ms(script, feed.sent, taken)
    return Timed(
        contender=name,
        round=number,
        load=load,
        events=len(found),
        p50=percentile(found, 50),
        p99=percentile(found, 99),
        batch=median(batches_ms(reports, first_us, ended_us)),
        drained=max(found[-1], 0.0),
        cores=cpu_s / seconds,
    )


def wait_until_read(query: StreamingQuery, name: str, rows: int) -> None:
    """Until micro-batches that are done have read so many rows; raises `TooSlowError`."""
    until = time.monotonic() + TOO_SLOW_S
    while (read := sum(report["numInputRows"] for report in query.recentProgress)) < rows:
        error = query.exception()
        if error is not None:
            raise error
        if time.monotonic() > until:
            raise TooSlowError(f"{name} read {read:,} of {rows:,} rows in {TOO_SLOW_S:.0f} s")
        time.sleep(POLL_S)


def batches_ms(reports: Sequence[Mapping[str, Any]], first_us: int, last_us: int) -> Iterator[int]:
    """The milliseconds of the micro-batches that began between two microseconds of the wall clock."""
    for report in reports:
        begun = datetime.fromisoformat(report["timestamp"])
        if first_us <= begun.timestamp() * 1e6 <= last_us:
            yield report["durationMs"]["triggerExecution"]


def measure(
    spark: SparkSession,
    names: Sequence[str],
    script: Script,
    warm_up: Script,
    rounds: int,
    say: Callable[[str], None],
    work: Path = harness.WORK,
) -> list[Timed]:
    """All contenders ``rounds`` times in turn; raises `WrongOutcomeError`."""
    left = list(names)
    runs: list[Timed] = []
    for number in range(rounds + 1):
        # Another one first in each round, so that none always follows the same neighbour.
        first = number % len(left) if left else 0
        for name in [*left[first:], *left[:first]]:
            try:
                run = run_once(spark, name, script if number else warm_up, number, work)
            except TooSlowError as error:
                left.remove(name)
                say(f"too slow: {error}")
                continue
            if number:
                runs.append(run)
                say(
                    f"round {number}/{rounds}  {name:14s} p50 {run.p50:>7,.0f} ms, p99 {run.p99:>7,.0f} ms, "
                    f"{run.events:,} events, {run.cores:.2f} cores, load {run.load:.1f} (table right)"
                )
        if not number:
            say(f"warm-up: the same table of {', '.join(left)}")
    return sorted(runs, key=lambda run: (run.round, list(names).index(run.contender)))


def table_of(runs: Sequence[Timed]) -> Table:
    """A row a contender: medians over the rounds, with lowest and highest."""
    table = Table(title="Milliseconds from an event to its outcome, medians over the rounds", title_justify="left")
    table.add_column("contender", no_wrap=True)
    for column in ("p50", "lowest .. highest", "p99", "lowest .. highest", "a micro-batch", "last row", "cores"):
        table.add_column(column, justify="right", no_wrap=True)
    for name in dict.fromkeys(run.contender for run in runs):
        mine = [run for run in runs if run.contender == name]
        table.add_row(
            name,
            *spread([run.p50 for run in mine]),
            *spread([run.p99 for run in mine]),
            f"{median(run.batch for run in mine):,.0f}",
            f"{median(run.drained for run in mine):,.0f}",
            f"{median(run.cores for run in mine):.2f}",
        )
    return table


def spread(values: Sequence[float]) -> tuple[str, str]:
    """The median, and the lowest and highest."""
    return f"{median(values):,.0f}", f"{min(values):,.0f} .. {max(values):,.0f}"


def main(
    rate: Annotated[int, typer.Option(min=10, help="Rows a second.")] = 1000,
    keys: Annotated[int, typer.Option(min=10, help="Operations that wait, each with a key of its own.")] = 50_000,
    seconds: Annotated[float, typer.Option(min=1, help="How long rows are measured.")] = 30,
    warm_up: Annotated[float, typer.Option(min=0, help="Seconds before that, in each run.")] = 10,
    rounds: Annotated[int, typer.Option(min=1, help="Times that each contender runs.")] = 3,
    contenders: Annotated[str, typer.Option(help=f"Some of {', '.join(CONTENDERS)}.")] = "log,blob,timers,join",
    memory: Annotated[str, typer.Option(help="Heap of the Spark process.")] = "3g",
    json: Annotated[Path, typer.Option(help="Where the numbers go.")] = RESULTS / "latency.json",
) -> None:
    """Feed rows by the clock to the contenders, in turn, and compare."""
    names = listed(contenders, tuple(CONTENDERS), "--contenders")
    script = Script(keys, rate, round(rate * (warm_up + seconds)), round(rate * warm_up))
    first = Script(min(keys, 2000), rate, 5 * rate)
    console = Console(highlight=False)
    console = Console(highlight=False, width=max(console.width, 130))
    say = partial(console.print, soft_wrap=True)
    facts = machine()
    say(machine_line(facts))
    say(f"{rate:,} rows/s, {keys:,} keys, {seconds:g} s after {warm_up:g} s, {harness.MASTER}")
    spark = harness.session(memory, settings=harness.local_sockets())
    try:
        runs = measure(spark, names, script, first, rounds, say)
    except harness.WrongOutcomeError as error:
        say(f"wrong outcomes: {error}")
        raise typer.Exit(1) from error
    finally:
        spark.stop()
    console.print(table_of(runs))
    say(SPARKS_OWN)
    write_document(json, {"machine": facts, "script": asdict(script), "runs": [asdict(run) for run in runs]})
    say(f"numbers: {json}")


if __name__ == "__main__":
    typer.run(main)
