"""Whole streams that are moved between two runs: the table is the oracle's, and what waits is the same."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_purgatory import (
    export_state,
    move_checkpoint,
)
from spark_purgatory.core.engine.outcomes import ORPHAN_FIELDS, OUTCOME_FIELDS
from spark_purgatory.errors import ConfigError, StateMismatchError
from spark_purgatory.spark.move import move
from spark_purgatory.testing.splits import Batch, splits
from tests.support.controlled_streams import CLOSING, CLOSING_US, as_file_row, controlled
from tests.support.lanes import BLOB, LOG, Lane, add, batches_of, contents, with_host
from tests.support.law_streams import COLUMNS, law_stream
from tests.support.law_worlds import draw
from tests.support.oracle import KINDS
from tests.support.streams import Landing

EVIDENCE: Mapping[str, Any] = {"evidence": "all"}


@pytest.fixture
def lane(spark: SparkSession, tmp_path: Path) -> Iterator[Any]:
    """A function that makes a lane."""

    def make(seed: int, sink: str) -> Lane:
        return Lane(spark, tmp_path, law_stream(seed, worlds=20), sink, tmp_path / "checkpoint")

    yield make
    with_host(spark, BLOB)


@pytest.mark.parametrize(
    ("seed", "sink", "stops"),
    [
        pytest.param(2, "parquet", [(BLOB, 7), (LOG, 5), (BLOB, 1)], id="one key"),
        pytest.param(3, "accumulator", [(LOG, 8), (LOG, 2), (BLOB, 4)], id="several keys", marks=pytest.mark.long),
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


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize(("several", "scope"), [(False, None), (True, "region"), (True, None)])
def test_control_events_and_rules_by_row_travel(
    spark: SparkSession, tmp_path: Path, several: bool, scope: str | None
) -> None:
    rng, world, _ = draw(11, "mixed", several, kinds=KINDS, worlds=12, extremes=False)
    made = controlled(several, scope, "all" if scope or not several else False)
    names = [field.name for field in (OUTCOME_FIELDS if not made.orphans else (*OUTCOME_FIELDS, *ORPHAN_FIELDS))]
    lanes = [
        Lane(
            spark,
            tmp_path / name,
            law_stream(2),
            "parquet",
            tmp_path / name / "checkpoint",
            options={"emit": "final"},
            columns=("row", "id", *names),
            controlled=made,
        )
        for name in ("stays", "moves")
    ]
    landings = [Landing(lane.folder, wide=True) for lane in lanes]
    regions = {key: rng.choice(("north", "south")) for key in "abcdefghijklmnopqrstuvwxyz0123456789"}
    stops = iter([(BLOB, 7), (LOG, 2), (BLOB, 4)])
    batches = [*splits(rng, *world, 7), Batch([CLOSING], [{"key": "closing-other", "time": CLOSING_US}], 0)]
    for number, batch in enumerate(batches):
        for lane, landing in zip(lanes, landings, strict=True):
            with_host(spark, lane.host)
            sides = (batch.operations, batch.events)
            # What belongs to one world is in one region.
            landing.add(*([as_file_row(row, regions[_world(row)[0]]) for row in side] for side in sides))
            lane.run()
        if number % 2 == 0 and (stop := next(stops, None)):
            lanes[1].move(*stop)
    with_host(spark, BLOB)
    assert lanes[0].table() == lanes[1].table()
    assert lanes[0].table().total() > 50


def _world(row: Mapping[str, Any]) -> str:
    named = [row.get("id"), row.get("key"), row.get("operation_id"), *(row.get("keys") or [])]
    return next((str(name) for name in named if name), "z")
