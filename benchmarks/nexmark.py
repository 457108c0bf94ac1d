"""`python -m benchmarks.nexmark`: query 9 of Nexmark, the winning bid of each auction, on Spark and on Flink.

All contenders read the same files (`benchmarks.nexmark_events`) and give, for each auction that had a bid while it was
open, the bid of the highest price; of equal ones the first, then the one with the smallest bidder. What must come out
is the query in plain SQL over all files, run once by Spark as a batch: as many rows, and the same sum of a hash of each
winner. A time is reported only for a contender with that table.

| contender | what |
| --- | --- |
| blob | `Purgatory`, until_deadline, keep largest |
| log | the same hosted by ``transformWithState`` |
| join | Spark's stream-stream join, then the largest bid of each auction in the window of its end |
| join_rocksdb | the same over Spark's RocksDB store |
| flink_heap, flink_rocksdb | a KeyedProcessFunction (benchmarks/flink/Winning.java), checkpoints each second |

Rates count all events, persons included, from the start of the query or job to its end; CPU seconds are those of all
processes. The steady rate leaves out the first two micro-batches.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from benchmarks import flink_jobs, harness
from benchmarks.contenders import ROCKSDB
from benchmarks.long_results import write_document
from benchmarks.long_waits import RESULTS, listed, numbers
from benchmarks.nexmark_events import IS_AUCTION, IS_BID, Events, prepared
from benchmarks.process_tree import cpu_seconds
from benchmarks.rates import FIRST_STEADY_BATCH
from benchmarks.report import machine, machine_line
from spark_purgatory import Completions, Operations, Purgatory, criteria
from spark_purgatory.spark.host.requirements import STATE_STORE_SETTINGS
from spark_purgatory.spark.storage.spark_access import settings

DDL = (
    "kind tinyint, auction bigint, time timestamp, expires timestamp, item_name string, description string, "
    "initial_bid bigint, reserve bigint, seller bigint, category bigint, extra string, bidder bigint, price bigint, "
    "bid_extra string"
)
AUCTION = (
    "auction as id", "item_name", "description", "initial_bid", "reserve", "time as opened", "expires", "seller",
    "category", "extra",
)  # fmt: skip
BID = ("auction", "bidder", "price", "time as bid_time", "bid_extra")
COLUMNS = tuple(name.rpartition(" ")[2] for name in (*AUCTION, *BID))
"""Of the query's table."""
QUERY_9 = """
    SELECT * EXCEPT (place) FROM (
        SELECT *, row_number() OVER (PARTITION BY id ORDER BY price DESC, bid_time, bidder, bid_extra) AS place
        FROM auctions JOIN bids ON id = auction AND bid_time BETWEEN opened AND expires
    ) WHERE place = 1
"""
LONGEST_MS = 400
"""No auction is open for so long, which the join has to be told."""
WARM_UP_EVENTS = 20_000
CHECKPOINT_MS = 1000
"""Between Flink's checkpoints."""
FLINKS = {"flink_heap": "heap", "flink_rocksdb": "rocksdb"}


@dataclass(frozen=True)
class Contender:
    """A way to run the query on Spark."""

    build: Callable[[DataFrame, DataFrame], DataFrame]
    """Of auctions and bids."""
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Winners:
    """What a contender's table adds up to."""

    rows: int
    fingerprint: int
    """The sum of a hash of id, bidder, price and time of each row."""


@dataclass(frozen=True)
class Turn:
    """A run that gave the right table."""

    contender: str
    events: int
    round: int
    seconds: float
    cpu_s: float
    steady_rate: float | None = None

    @property
    def rate(self) -> float:
        """Events a second."""
        return self.events / self.seconds

    @property
    def cpu_s_a_million(self) -> float:
        """CPU seconds a million events."""
        return 1e6 * self.cpu_s / self.events


def purgatory(host: Any = "applyInPandasWithState") -> Purgatory:
    """Query 9 as an operation with its deadline."""
    return Purgatory(
        operations=Operations(id="id", keys="id", created="opened", deadline="expires", watermark="0 seconds"),
        completions=Completions(
            key="auction", time="bid_time", value="price", columns=["bidder", "bid_extra"], watermark="0 seconds"
        ),
        criterion=criteria.until_deadline(),
        evidence_order="value",
        host=host,
    )


def ours(auctions: DataFrame, bids: DataFrame, host: str = "applyInPandasWithState") -> DataFrame:
    """The library as its users call it."""
    won = purgatory(host).resolve(auctions, bids).where("status = 'COMPLETED'")
    event = {"auction": "id", "bidder": "event.bidder", "price": "event.value", "bid_time": "event.time"}
    return won.withColumns(
        {**{name: F.col(given) for name, given in event.items()}, "bid_extra": F.col("event.bid_extra")}
    )


def join(auctions: DataFrame, bids: DataFrame) -> DataFrame:
    """A join on key and time range, then the largest of each auction, once the window of its end has passed.

    Spark chains an aggregation to a join by one time column, so the bid's loses its mark.
    """
    left = auctions.withWatermark("expires", "0 seconds")
    right = bids.withWatermark("bid_time", "0 seconds")
    condition = (
        "id = auction AND bid_time >= opened AND bid_time <= expires "
        f"AND bid_time >= expires - INTERVAL {LONGEST_MS / 1000} SECONDS"
    )
    joined = left.join(right, F.expr(condition))
    joined = joined.withColumn("bid_time", F.col("bid_time").alias("bid_time", metadata={}))
    best = F.struct("price", -F.unix_micros("bid_time"), -F.col("bidder"))
    winner = F.max_by(F.struct(*COLUMNS), best).alias("winner")
    return joined.groupBy(F.window("expires", "100 milliseconds"), "id").agg(winner).select("winner.*")


CONTENDERS = {
    "blob": Contender(ours, STATE_STORE_SETTINGS),
    "log": Contender(partial(ours, host="transformWithState"), STATE_STORE_SETTINGS),
    "join": Contender(join),
    "join_rocksdb": Contender(join, ROCKSDB),
}


def sides(spark: SparkSession, folder: Path, streaming: bool) -> tuple[DataFrame, DataFrame]:
    """Auctions and bids, each a stream of its own over the same files, or all of them."""
    reader: Any = spark.readStream.option("maxFilesPerTrigger", 1) if streaming else spark.read
    read = [reader.schema(DDL).parquet(str(folder)) for _ in range(2)]
    return (
        read[0].where(f"kind = {IS_AUCTION}").selectExpr(*AUCTION),
        read[1].where(f"kind = {IS_BID}").selectExpr(*BID),
    )


def winners(spark: SparkSession, folder: Path) -> DataFrame:
    """The query in plain SQL over all files."""
    auctions, bids = sides(spark, folder, streaming=False)
    return spark.sql(QUERY_9.replace("auctions", "{auctions}").replace("bids", "{bids}"), auctions=auctions, bids=bids)


def counters() -> list[Any]:
    """What a table adds up to, as an observation counts it."""
    hashed = F.xxhash64("id", "bidder", "price", F.unix_micros("bid_time")).cast("decimal(20, 0)")
    return [F.count(F.lit(1)).alias("rows"), F.coalesce(F.sum(hashed), F.lit(0)).alias("fingerprint")]


def expected(spark: SparkSession, events: Events) -> Winners:
    """What the table must add up to."""
    row = winners(spark, events.folder).agg(*counters()).first()
    assert row is not None, "bug: an aggregate gives one row"
    return Winners(int(row["rows"]), int(row["fingerprint"]))


def run_spark(spark: SparkSession, name: str, events: Events, due: Winners, number: int) -> Turn:
    """One checked run."""
    contender = CONTENDERS[name]
    checkpoint = tempfile.mkdtemp(prefix=f"nexmark-{name}-", dir=harness.WORK)
    started, cpu_s = time.monotonic(), cpu_seconds()
    try:
        with settings(spark, contender.settings):
            table = contender.build(*sides(spark, events.folder, streaming=True))
            query = (
                table.observe(harness.OBSERVATION, *counters())
                .writeStream.foreachBatch(harness.to_noop)
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            progress = [dict(report) for report in query.recentProgress]
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)
    seconds, cpu_s = time.monotonic() - started, cpu_seconds() - cpu_s
    found = harness.counters_of(progress, harness.OBSERVATION)
    check(name, Winners(found["rows"], found["fingerprint"]), due)
    return Turn(name, events.count, number, seconds, cpu_s, steady_rate(events, progress))


def steady_rate(events: Events, progress: Sequence[Mapping[str, Any]]) -> float | None:
    """Events a second from the third micro-batch to the last that brings some; None if there are too few."""
    last = len(events.rows_by_batch)
    ms = sum(
        report["durationMs"]["triggerExecution"]
        for report in progress
        if FIRST_STEADY_BATCH <= report["batchId"] < last
    )
    rows = sum(events.rows_by_batch[FIRST_STEADY_BATCH:])
    return 1000 * rows * events.count / events.rows / ms if ms else None


def check(name: str, found: Winners, due: Winners) -> None:
    """Raise `WrongOutcomeError` unless the table is the one of the SQL query."""
    if found != due:
        raise harness.WrongOutcomeError(f"{name}: {found} came out, {due} was expected; no time is reported")


def measure(
    spark: SparkSession,
    counts: Sequence[int],
    batches: int,
    names: Sequence[str],
    rounds: int,
    flink: Flink | None,
    say: Callable[[str], None],
) -> Iterator[Turn]:
    """Each contender in turn, after one small run of each."""
    few = prepared(WARM_UP_EVENTS, 4, harness.SEED, harness.WORK)
    due = expected(spark, few)
    for name in (name for name in names if name in CONTENDERS):
        run_spark(spark, name, few, due, 0)
    for count in counts:
        events = prepared(count, batches, harness.SEED, harness.WORK)
        due = expected(spark, events)
        say(f"{count:,} events: plain SQL finds {due.rows:,} winning bids")
        for number in range(1, rounds + 1):
            first = (number - 1) % len(names)
            for name in [*names[first:], *names[:first]]:
                try:
                    turns = _turns(spark, name, events, due, number, flink)
                except harness.ContenderDiedError as error:
                    say(f"{count:,} events, round {number}/{rounds}  {name} died: {error}")
                    continue
                for turn in turns:
                    say(line_of(turn, rounds))
                    yield turn


def _turns(
    spark: SparkSession, name: str, events: Events, due: Winners, number: int, flink: Flink | None
) -> list[Turn]:
    if name in CONTENDERS:
        return [run_spark(spark, name, events, due, number)]
    assert flink is not None, "bug: Flink's jars are there if it is a contender"
    turns = []
    runs = flink_jobs.run_q9(flink.path, events.folder, FLINKS[name], CHECKPOINT_MS, flink.runs, flink.memory)
    for place, run in enumerate(runs):
        check(name, Winners(run.rows, run.fingerprint), due)
        turns.append(
            Turn(f"{name}, {'warm' if place else 'first run'}", events.count, number, run.ms / 1000, run.cpu_s)
        )
    return turns


@dataclass(frozen=True)
class Flink:
    """How Flink is run."""

    path: str
    runs: int
    memory: str


def line_of(turn: Turn, rounds: int) -> str:
    """A run in one line."""
    steady = "" if turn.steady_rate is None else f", steady {turn.steady_rate:,.0f}"
    return (
        f"{turn.events:,} events, round {turn.round}/{rounds}  {turn.contender:24s} {turn.rate:>10,.0f} events/s"
        f"{steady}, {turn.cpu_s_a_million:.1f} CPU s a million (table right)"
    )


def table_of(turns: Sequence[Turn], base: str) -> Table:
    """A row a contender and size; ratios are of the same round."""
    table = Table(title="Nexmark query 9: medians over the rounds", title_justify="left")
    for name in ("events", "contender", "events/s", "lowest .. highest", "steady", "CPU s a million", f"{base} / it"):
        table.add_column(name, justify="left" if name == "contender" else "right", no_wrap=True)
    for count, name in dict.fromkeys((turn.events, turn.contender) for turn in turns):
        mine = [turn for turn in turns if (turn.events, turn.contender) == (count, name)]
        bases = {turn.round: turn for turn in turns if (turn.events, turn.contender) == (count, base)}
        ratios = [bases[turn.round].rate / turn.rate for turn in mine if turn.round in bases]
        rates, steady = [turn.rate for turn in mine], [turn.steady_rate for turn in mine if turn.steady_rate]
        table.add_row(
            f"{count:,}",
            name,
            f"{median(rates):,.0f}",
            f"{min(rates):,.0f} .. {max(rates):,.0f}",
            f"{median(steady):,.0f}" if steady else "",
            f"{median(turn.cpu_s_a_million for turn in mine):.1f}",
            f"{median(ratios):.2f}" if ratios else "",
        )
    return table


def main(
    events: Annotated[str, typer.Option(help="How many events, one or several numbers.")] = "1000000",
    batches: Annotated[int, typer.Option(min=3, help="Micro-batches.")] = 10,
    rounds: Annotated[int, typer.Option(min=1, help="Times that each contender has its turn.")] = 3,
    contenders: Annotated[str, typer.Option(help=f"Some of {', '.join((*CONTENDERS, *FLINKS))}.")] = (
        "blob,log,join,flink_heap,flink_rocksdb"
    ),
    runs: Annotated[int, typer.Option(min=1, help="Runs in each JVM of Flink.")] = 2,
    memory: Annotated[str, typer.Option(help="Heap of each JVM.")] = "3g",
    json: Annotated[Path, typer.Option(help="Where the numbers go.")] = RESULTS / "nexmark.json",
) -> None:
    """Run Nexmark's query 9 through all contenders, in turn, and compare."""
    names = listed(contenders, (*CONTENDERS, *FLINKS), "--contenders")
    console = Console(highlight=False)
    console = Console(highlight=False, width=max(console.width, 130))
    facts = machine()
    console.print(machine_line(facts), soft_wrap=True)
    flink = Flink(flink_jobs.classpath(), runs, memory) if set(names) & set(FLINKS) else None
    spark = harness.session(memory)
    harness.WORK.mkdir(parents=True, exist_ok=True)
    say = partial(console.print, soft_wrap=True)
    try:
        turns = list(measure(spark, numbers(events, "--events"), batches, names, rounds, flink, say))
    except harness.WrongOutcomeError as error:
        console.print(f"wrong outcomes: {error}", soft_wrap=True)
        raise typer.Exit(1) from error
    finally:
        spark.stop()
    console.print(table_of(turns, "log" if "log" in names else names[0]))
    write_document(json, {"machine": facts, "turns": [asdict(turn) for turn in turns]})
    console.print(f"numbers: {json}", soft_wrap=True)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
