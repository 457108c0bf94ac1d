"""Queries of one driver that start, stop, are measured and read from many threads: each is as if it were alone."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, is_remote
from pyspark.sql.streaming.query import StreamingQuery

from spark_purgatory import RecordAccumulator, gauges, monitor, pending
from spark_purgatory.config.options import LOG_HOST
from spark_purgatory.errors import ConfigError, StagingError
from spark_purgatory.spark.checkpoint import shard_states
from spark_purgatory.spark.host.requirements import PROVIDER, ROCKSDB
from spark_purgatory.spark.placement import PARTITIONS
from spark_purgatory.spark.sink.accumulator_query import AccumulatorQuery
from spark_purgatory.spark.storage import query_start
from spark_purgatory.spark.storage.spark_access import FORMAT_VERSION, copied_session, own_session, settings
from tests.support.engine_driver import multiset
from tests.support.law_streams import COLUMNS, LawStream, law_stream
from tests.support.sink_queries import wait_until
from tests.support.streams import Landing

pytestmark = pytest.mark.spark

BLOB_HOST = "applyInPandasWithState"
CORES = 2
SEED = 58
SAMPLED_EVERY_SECONDS = 0.02
BY_DELTA = ("spark.databricks.delta.lastCommitVersionInSession", "spark.sql.parquet.fieldId.")
FOR_EACH_START = "spark.connect.session.planCache.enabled"


@dataclass(frozen=True)
class Lane:
    """One query."""

    stream: LawStream
    landing: Landing
    host: str
    began_otherwise: bool  # In a session that had chosen format 1 and three partitions

    def run(self, spark: SparkSession, everything: bool) -> None:
        """Start the query; it ends when it has read all that has landed, or is closed in the middle."""
        accumulator = RecordAccumulator(path=str(self.landing.outcomes), linger="1 second")
        outcomes = self.stream.purgatory(self.host).resolve(*self.landing.frames(spark))
        trigger = {"availableNow": True} if everything else {"processingTime": "500 milliseconds"}

        def start() -> AccumulatorQuery:
            return accumulator.write_stream(outcomes, checkpoint=str(self.landing.checkpoint), trigger=trigger)

        try:
            query = start()
        except PySparkException as error:  # Spark gives a Python worker ten seconds, which a busy machine does not.
            if "failed to connect back" not in str(error):
                raise
            query = start()
        if everything:
            query.awaitTermination()
        else:
            query.processAllAvailable()
            accumulator.close()

    def check(self, spark: SparkSession) -> None:
        """Compare the table with the oracle, and the checkpoint with that of a query alone."""
        written = [row.asDict() for row in spark.read.format("delta").load(str(self.landing.outcomes)).collect()]
        assert multiset(written, *COLUMNS) == +self.stream.expected(self.landing.last_watermark_us)
        last = self.landing.last_batch
        conf = conf_of(self.landing.checkpoint, last)
        commit = (self.landing.checkpoint / "commits" / str(last)).read_text()
        partitions = 3 if self.began_otherwise else min(self.stream.shards, CORES)
        assert (conf[PARTITIONS], conf[PROVIDER]) == (str(partitions), ROCKSDB)
        assert ('"stateUniqueIds":{"' in commit) == (not self.began_otherwise and not is_remote())


def conf_of(checkpoint: Path, batch_id: int) -> dict[str, str]:
    """The settings that a checkpoint keeps of a micro-batch."""
    kept: dict[str, str] = json.loads((checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[1])["conf"]
    return kept


@pytest.fixture
def bare(spark: SparkSession) -> SparkSession:
    """A session in which the user has set nothing that a query may choose."""
    session = copied_session(spark)
    assert session is not None
    for name in (PARTITIONS, PROVIDER, FORMAT_VERSION, "spark.sql.adaptive.enabled"):
        session.conf.unset(name)
    return session


def settings_of(spark: Any) -> frozenset[str]:
    """All settings of a session, in one call."""
    if is_remote():
        known = spark.conf.getAll.items()
        return frozenset(f"{name}={value}" for name, value in known if not name.startswith((*BY_DELTA, FOR_EACH_START)))
    text = str(spark._jsparkSession.sessionState().conf().getAllConfs().mkString("\0"))
    return frozenset(each for each in text.split("\0") if not each.startswith(BY_DELTA))


@contextmanager
def sampled(spark: SparkSession) -> Iterator[list[str]]:
    """Look at a session's settings all the time; the list gets the differences.

    Spark Connect does not show a query's own session, so there they change for the moment of a start.
    """
    seen: list[str] = []
    ended = threading.Event()
    before = settings_of(spark)

    def sample() -> None:
        while not ended.wait(SAMPLED_EVERY_SECONDS):
            seen.extend(settings_of(spark) ^ before)

    thread = threading.Thread(target=sample)
    if not is_remote():
        thread.start()
    try:
        yield seen
    finally:
        ended.set()
        if not is_remote():
            thread.join()
        seen.extend(settings_of(spark) ^ before)


@contextmanager
def beside(*calls: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Repeat each call in a thread of its own; the list gets what they raise."""
    ended, raised = threading.Event(), list[BaseException]()

    def repeat(call: Callable[[], object]) -> None:
        while not ended.wait(1):
            try:
                call()
            except Exception as error:
                raised.append(error)

    threads = [threading.Thread(target=repeat, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    try:
        yield raised
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def lanes_of(spark: SparkSession, folder: Path, count: int) -> list[Lane]:
    """As many queries; every third one has begun in a session that chose format 1 and three partitions."""
    lanes = []
    for at in range(count):
        stream, host = law_stream(SEED + at), (BLOB_HOST, LOG_HOST)[at % 2]
        landing = stream.landed_in_batches(folder / str(at), SEED + at, 6)
        lane = Lane(stream, landing, host, began_otherwise=at % 3 == 1)
        lanes.append(lane)
        if lane.began_otherwise:
            hide(lane, 1)
            with settings(spark, {FORMAT_VERSION: "1", PARTITIONS: "3"}):
                lane.run(spark, everything=True)
    return lanes


def hide(lane: Lane, files: int) -> None:
    """Leave only so many files of a side to be seen, in the order in which they landed."""
    for side in ("operations", "events"):
        folder = lane.landing.folder / side
        for path in sorted(folder.iterdir(), key=lambda path: path.name.strip(".")):
            number = int(path.name.strip(".").partition(".")[0])
            shown = folder / f"{number:05}.parquet"
            path.rename(shown if number < files else folder / f".{shown.name}")


def run_all(spark: SparkSession, lanes: list[Lane], workers: int, runs: int) -> None:
    """Run every query several times, each time with more files, in an order of chance."""

    def whole(lane: Lane) -> None:
        rng = random.Random(lane.stream.shards)
        for run in range(1, runs + 1):
            hide(lane, 2 * run if run < runs else 1_000)
            time.sleep(rng.random())
            lane.run(spark, everything=run != runs - 1)

    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(whole, lane) for lane in lanes]:
            done.result()


def read_once(spark: SparkSession, lane: Lane) -> None:
    """Read the table with its staged rows, twice no row."""
    with suppress(ConfigError, StagingError):  # Nothing has been staged yet, or the table changes all the time.
        accumulator = RecordAccumulator(path=str(lane.landing.outcomes))
        accumulator.read(spark, staged=True, checkpoint=str(lane.landing.checkpoint)).schema  # noqa: B018


def measure(spark: SparkSession, lane: Lane) -> None:
    """Ask for the gauges and what waits, as metrics do."""
    with suppress(ConfigError):  # The query has not begun.
        gauges(spark, checkpoint=str(lane.landing.checkpoint))
        pending(spark, checkpoint=str(lane.landing.checkpoint)).schema  # noqa: B018


@pytest.mark.long
@pytest.mark.connect
@pytest.mark.parametrize(("count", "runs"), [(2, 2), (8, 3)], ids=["two", "eight"])
def test_each_query_is_as_if_it_were_alone_and_the_users_settings_are_untouched(
    bare: SparkSession, tmp_path: Path, count: int, runs: int
) -> None:
    runs = min(runs, 2) if is_remote() else runs  # Each query starts a Python process more there.
    lanes = lanes_of(bare, tmp_path, count)
    own = bare.readStream.format("rate").load().writeStream.format("noop")
    with ExitStack() as stack:
        untouched = stack.enter_context(sampled(bare))
        query = own.option("checkpointLocation", str(tmp_path / "own")).start()
        stack.callback(query.stop)
        stack.callback(monitor(query, lambda sample: None).stop)
        looks = [partial(measure, bare, lane) for lane in lanes[:2]]
        reads = [partial(read_once, bare, lane) for lane in lanes[-2:]]
        raised = stack.enter_context(beside(*looks[: runs - 1], *reads[: runs - 1]))
        run_all(bare, lanes, workers=count, runs=runs)
    assert not untouched
    assert not [f"{type(error).__name__}: {str(error)[:500]}" for error in raised]
    last = max(int(path.name) for path in (tmp_path / "own" / "offsets").iterdir() if path.name.isdigit())
    assert conf_of(tmp_path / "own", last)[PARTITIONS] == "200"
    for lane in lanes:
        lane.check(bare)


@pytest.mark.long
def test_a_spark_that_does_not_show_a_querys_session_gets_the_settings_for_the_moment_of_the_start(
    bare: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_start, "LOGS", (("nowhere",),))
    monkeypatch.setattr(query_start._Starting, "works", True)
    [lane] = lanes_of(bare, tmp_path, 1)
    before = settings_of(bare)
    lane.run(bare, everything=True)
    assert not query_start._Starting.works
    lane.check(bare)
    assert settings_of(bare) == before


def test_a_checkpoint_that_began_without_its_settings_is_refused_and_a_new_one_leaves_the_users_settings_untouched(
    bare: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener that is not called, and a first micro-batch that is planned before the query is stopped."""
    stopped = StreamingQuery.stop

    def stop(query: StreamingQuery) -> None:
        wait_until(lambda: lane.landing.last_batch >= 0, query)
        stopped(query)

    monkeypatch.setattr(query_start._Starting, "works", True)
    [lane] = lanes_of(bare, tmp_path, 1)
    with monkeypatch.context() as patched, pytest.raises(ConfigError, match="began with the session's settings"):
        patched.setattr(query_start._Starting, "onQueryStarted", lambda *_: None)
        patched.setattr(StreamingQuery, "stop", stop)
        lane.run(bare, everything=True)
    lane.landing.checkpoint, lane.landing.outcomes = tmp_path / "new", tmp_path / "table"
    monkeypatch.setattr(query_start._Starting, "works", True)
    with sampled(bare) as changed:
        lane.run(bare, everything=True)
        waits = gauges(bare, checkpoint=str(lane.landing.checkpoint))["pending"]
    assert not changed
    lane.check(bare)
    found = shard_states._operator

    def set_meanwhile(spark: SparkSession, checkpoint: str, purgatory: int) -> tuple[str, int]:
        bare.conf.set(FORMAT_VERSION, "1")
        return found(spark, checkpoint, purgatory)

    bare.conf.set(FORMAT_VERSION, "2")
    monkeypatch.setattr(shard_states, "_operator", set_meanwhile)
    read = gauges(bare, checkpoint=str(lane.landing.checkpoint))
    assert (read["batch_id"], read["pending"]) == (lane.landing.last_batch, waits), "in its own format"


def test_what_reads_in_a_session_of_its_own_leaves_the_users_as_the_active_one(bare: SparkSession) -> None:
    with own_session(bare) as own:
        own.conf.set(PARTITIONS, "7")
        assert own.sparkContext.parallelize([(1,)]).toDF(["a"]).sparkSession is not own
    assert own is not bare
    assert bare.conf.get(PARTITIONS, None) is None
