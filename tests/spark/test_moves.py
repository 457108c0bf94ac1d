"""Whole streams that are moved between two runs: the table is the oracle's, and what waits is the same."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_purgatory import (
    TRANSFORM_WITH_STATE_SETTINGS,
    Purgatory,
    RecordAccumulator,
    export_state,
    move_checkpoint,
    pending,
)
from spark_purgatory.errors import ConfigError, StateMismatchError
from spark_purgatory.spark.move import move
from spark_purgatory.testing.splits import Batch, splits
from tests.support.engine_driver import multiset
from tests.support.law_streams import COLUMNS, LawStream, law_stream, with_file_columns
from tests.support.streams import Landing

BLOB, LOG = "applyInPandasWithState", "transformWithState"
EVIDENCE: Mapping[str, Any] = {"evidence": "all"}
WAITS = ("row", "created_at", "deadline_at", "held_until", "matched", "missing_keys", "progress")


@dataclass
class Lane:
    """A stream that is run, stopped, and moved."""

    spark: SparkSession
    folder: Path
    drawn: LawStream
    sink: str
    checkpoint: Path
    host: str = BLOB
    shards: int | None = 3
    moves: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] = COLUMNS

    def outcomes(self) -> DataFrame:
        frames = Landing(self.folder).frames(self.spark)
        return self.purgatory().resolve(*frames)

    def purgatory(self) -> Purgatory:
        whole = self.drawn.purgatory(self.host)
        return replace(whole, **{"shards": self.shards, **self.options})

    def run(self) -> None:
        outcomes, trigger = self.outcomes(), {"availableNow": True}
        if self.sink == "accumulator":
            query: Any = self.accumulator.write_stream(outcomes, checkpoint=str(self.checkpoint), trigger=trigger)
        else:
            writer = outcomes.writeStream.format(self.sink).option("checkpointLocation", str(self.checkpoint))
            query = writer.option("path", str(self.folder / "table")).trigger(**trigger).start()
        query.awaitTermination()

    @property
    def accumulator(self) -> RecordAccumulator:
        return RecordAccumulator(path=str(self.folder / "table"), linger="1 hour", delivery_timeout="1 hour")

    def move(self, host: str, shards: int | None, partitions: int | None = None) -> None:
        before, old = self.waiting(), self.checkpoint
        files = contents(old)
        self.moves += 1
        self.host, self.shards, self.checkpoint = host, shards, self.folder / f"moved-{self.moves}"
        with_host(self.spark, host)
        moved = move_checkpoint(
            self.spark, self.outcomes(), source=str(old), target=str(self.checkpoint), partitions=partitions
        )
        print(moved)
        assert contents(old) == files, "the old checkpoint is only read"
        assert self.waiting() == before
        assert moved.operations == sum(before.values())

    def waiting(self) -> Any:
        return multiset([row.asDict() for row in pending(self.spark, str(self.checkpoint)).collect()], *WAITS)

    def table(self) -> Any:
        rows = self.accumulator.read(self.spark) if self.sink == "accumulator" else self.read()
        return Counter(rows.select(*self.columns).toJSON().collect()) if self.options else self.rows(rows)

    @staticmethod
    def rows(rows: DataFrame) -> Any:
        return multiset((row.asDict() for row in rows.collect()), *COLUMNS)

    def read(self) -> DataFrame:
        return self.spark.read.format(self.sink).load(str(self.folder / "table"))


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder, but for the checksums that reading writes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def with_host(spark: SparkSession, host: str) -> None:
    """The settings that a host needs, or none of them."""
    for name, value in TRANSFORM_WITH_STATE_SETTINGS.items():
        if host == BLOB:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


@pytest.fixture
def lane(spark: SparkSession, tmp_path: Path) -> Iterator[Any]:
    """A function that makes a lane."""

    def make(seed: int, sink: str) -> Lane:
        return Lane(spark, tmp_path, law_stream(seed, worlds=20), sink, tmp_path / "checkpoint")

    yield make
    with_host(spark, BLOB)


def batches_of(drawn: LawStream, seed: int, count: int) -> list[Batch]:
    delays = {"operations_delay_us": drawn.delays_us["created"], "events_delay_us": drawn.delays_us["time"]}
    return splits(random.Random(seed), *drawn.world, count, **delays)


def add(landing: Landing, batch: Batch) -> None:
    landing.add(*([with_file_columns(row) for row in side] for side in (batch.operations, batch.events)))


@pytest.mark.parametrize(
    ("seed", "sink", "stops"),
    [
        pytest.param(2, "parquet", [(BLOB, 7), (LOG, 5), (BLOB, 1)], id="one key"),
        pytest.param(3, "accumulator", [(LOG, 8), (LOG, 2), (BLOB, 4)], id="several keys"),
    ],
)
def test_a_moved_stream_has_the_table_of_the_oracle(lane: Any, seed: int, sink: str, stops: list[Any]) -> None:
    stream = lane(seed, sink)
    batches = batches_of(stream.drawn, seed, 2 * len(stops) + 2)
    landing, moves = Landing(stream.folder), iter(stops)
    for number, batch in enumerate(batches):
        add(landing, batch)
        stream.run()
        if number % 2 and (stop := next(moves, None)):
            stream.move(*stop)
    landing.checkpoint = stream.checkpoint
    assert stream.table() == stream.drawn.expected(landing.last_watermark_us)


class Killed(Exception):
    """Stands for a crash."""


def crashes_at(monkeypatch: pytest.MonkeyPatch, failpoint: str | None) -> None:
    def reached(name: str) -> None:
        if name == failpoint:
            raise Killed

    monkeypatch.setattr(move, "reached", reached)


def test_a_move_that_stops_anywhere_leaves_what_refuses_to_start_and_can_be_repeated(
    lane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = lane(2, "accumulator")
    first, *others = batches_of(stream.drawn, 2, 3)
    landing = Landing(stream.folder)
    add(landing, first)
    stream.run()
    old, files = stream.checkpoint, contents(stream.checkpoint)
    target = stream.folder / "moved"
    stream.shards = 5
    for failpoint in move.FAILPOINTS:
        crashes_at(monkeypatch, failpoint)
        with pytest.raises(Killed):
            move_checkpoint(stream.spark, stream.outcomes(), source=str(old), target=str(target))
        assert contents(old) == files, failpoint
        stream.checkpoint = target
        with pytest.raises(ConfigError, match="half of a checkpoint, because its move did not end"):
            stream.run()
        stream.sink = "noop"
        with pytest.raises(Exception, match="Unrecognized token 'half_of_a_checkpoint"):
            stream.run()
        stream.sink = "accumulator"
    crashes_at(monkeypatch, None)
    move_checkpoint(stream.spark, stream.outcomes(), source=str(old), target=str(target))
    for batch in others:
        add(landing, batch)
        stream.run()
    landing.checkpoint = target
    assert stream.table() == stream.drawn.expected(landing.last_watermark_us)
    stream.checkpoint, stream.shards = old, 3
    with pytest.raises(StreamingQueryException, match="ForeignWriterError"):
        stream.run()


def test_what_cannot_be_moved_is_refused_before_anything_is_written(lane: Any) -> None:
    stream = lane(2, "parquet")
    add(Landing(stream.folder), batches_of(stream.drawn, 2, 1)[0])
    outcomes, target = stream.outcomes(), stream.folder / "moved"

    def refused(what: str, **changed: Any) -> None:
        given: dict[str, Any] = {"source": str(stream.checkpoint), "target": str(target)} | changed
        with pytest.raises((ConfigError, StateMismatchError), match=what):
            move_checkpoint(stream.spark, given.pop("outcomes", outcomes), **given)
        assert not target.exists()

    refused("no micro-batch is committed there")
    stream.run()
    refused("is not empty", target=str(stream.folder / "operations"))
    refused("lie in each other", target=str(stream.checkpoint / "moved"))
    refused("no purgatory is in this stream", outcomes=stream.spark.range(3))
    frames = Landing(stream.folder).frames(stream.spark)
    refused("emit: .*'early'", outcomes=replace(stream.purgatory(), emit="early").resolve(*frames))
    refused("there is no table 'counts'", tables=str(stream.folder / "operations"))
    dry = move_checkpoint(stream.spark, outcomes, source=str(stream.checkpoint), target=str(target), dry_run=True)
    assert not target.exists()
    assert "would move" in str(dry)
    last = stream.checkpoint / "commits" / str(dry.batch_id)
    last.rename(stream.folder / "put away")
    refused("start the old query once more")


def test_operations_are_taken_out_of_what_waits(lane: Any) -> None:
    stream = lane(3, "parquet")
    first, *others = batches_of(stream.drawn, 3, 3)
    landing = Landing(stream.folder)
    add(landing, first)
    stream.run()
    counts = export_state(stream.spark, str(stream.checkpoint), str(stream.folder / "export"))
    waits = stream.spark.read.parquet(str(stream.folder / "export" / "operations"))
    assert waits.count() == counts["operations"] == sum(stream.waiting().values()) > 1
    gone = waits.orderBy("id").first()["operation"]["row"]
    waits.where(f"operation.row <> '{gone}'").write.parquet(str(stream.folder / "edited" / "operations"))
    for name in ("events", "ids", "counts"):
        shutil.copytree(stream.folder / "export" / name, stream.folder / "edited" / name)
    old, stream.checkpoint = stream.checkpoint, stream.folder / "moved"
    tables = str(stream.folder / "edited")
    move_checkpoint(stream.spark, stream.outcomes(), source=str(old), target=str(stream.checkpoint), tables=tables)
    assert sum(stream.waiting().values()) == counts["operations"] - 1
    for batch in others:
        add(landing, batch)
        stream.run()
    landing.checkpoint = stream.checkpoint
    expected = stream.drawn.expected(landing.last_watermark_us)
    assert stream.table() == Counter({row: n for row, n in expected.items() if row[0] != gone})


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "sink", "options", "stops"),
    [
        pytest.param(2, "delta", {"emit": "early"}, [(BLOB, 8), (LOG, 2)], id="early, into Delta"),
        pytest.param(3, "parquet", {"emit": "early"}, [(BLOB, 1), (BLOB, 6)], id="early, several keys"),
        pytest.param(4, "parquet", {"shards": None}, [(BLOB, None), (LOG, None)], id="a group for each key"),
        pytest.param(0, "accumulator", {"orphans": "all"}, [(LOG, 4), (BLOB, 2)], id="orphans"),
        pytest.param(2, "parquet", EVIDENCE, [(LOG, 4), (BLOB, 2)], id="evidence"),
        pytest.param(5, "accumulator", EVIDENCE, [(BLOB, 9), (LOG, 3)], id="evidence, several keys"),
        pytest.param(4, "delta", {}, [(LOG, 5), (LOG, 7)], id="other partitions"),
        pytest.param(1, "accumulator", {}, [(BLOB, 16), (LOG, 1)], id="any of several keys"),
    ],
)
def test_a_lane_that_is_moved_has_the_table_of_the_lane_that_stays(
    spark: SparkSession, tmp_path: Path, seed: int, sink: str, options: Mapping[str, Any], stops: list[Any]
) -> None:
    drawn = law_stream(seed, worlds=20)
    columns = drawn_columns(options)
    lanes = [
        Lane(spark, tmp_path / name, drawn, sink, tmp_path / name / "checkpoint", options=options, columns=columns)
        for name in ("stays", "moves")
    ]
    landings, moves = [Landing(lane.folder) for lane in lanes], iter(stops)
    for number, batch in enumerate(batches_of(drawn, seed, 2 * len(stops) + 2)):
        for lane, landing in zip(lanes, landings, strict=True):
            with_host(spark, lane.host)
            add(landing, batch)
            lane.run()
        if number % 2 and (stop := next(moves, None)):
            lanes[1].move(*stop, partitions=1 + number % 3)
    with_host(spark, BLOB)
    assert lanes[0].table() == lanes[1].table()


def drawn_columns(options: Mapping[str, Any]) -> tuple[str, ...]:
    return (*COLUMNS, "late", "reason", *(("event", "events") if "evidence" in options else ()))
