"""Whole streams that are moved between two runs: the table is the oracle's, and what waits is the same."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.group_ops import PandasGroupedOpsMixin

from spark_purgatory import STATE_STORE_SETTINGS, check_checkpoint, export_state, move_checkpoint, pending
from spark_purgatory.errors import ConfigError, StateMismatchError, StorageError
from spark_purgatory.spark.host.requirements import PROVIDER, ROCKSDB
from spark_purgatory.spark.move import move
from spark_purgatory.spark.storage.checkpoint_files import UNFINISHED
from spark_purgatory.spark.storage.spark_access import FORMAT_VERSION, settings
from tests.support.engine_driver import multiset
from tests.support.lanes import BLOB, LOG, Lane, batches_of, contents, with_host
from tests.support.law_streams import COLUMNS, law_stream, with_file_columns
from tests.support.streams import Landing


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
        pytest.param(2, "parquet", [(LOG, 5)], id="one key, moved once"),
        pytest.param(2, "parquet", [(BLOB, 7), (LOG, 5), (BLOB, 1)], id="one key", marks=pytest.mark.long),
        pytest.param(3, "accumulator", [(LOG, 8), (LOG, 2), (BLOB, 4)], id="several keys", marks=pytest.mark.long),
    ],
)
def test_a_moved_stream_has_the_table_of_the_oracle(lane: Any, seed: int, sink: str, stops: list[Any]) -> None:
    stream = lane(seed, sink)
    batches = iter(batches_of(stream.drawn, seed, 2 * len(stops) + 2))
    for stop in stops:
        for batch in islice(batches, 2):
            stream.add(batch)
        stream.run()
        stream.move(*stop)
    for batch in batches:
        stream.add(batch)
    stream.run()
    assert stream.table() == stream.expected()


@pytest.mark.long
def test_a_checkpoint_of_spark_40_is_refused_elsewhere_and_moved(lane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 4.0 has transformWithStateInPandas alone, which later releases have as well."""
    stream = lane(2, "parquet")
    stream.host = LOG
    with_host(stream.spark, LOG)
    *before, last = batches_of(stream.drawn, 2, 2)
    with monkeypatch.context() as spark_40:
        spark_40.delattr(PandasGroupedOpsMixin, "transformWithState")
        for batch in before:
            stream.add(batch)
        stream.run()
    with pytest.raises(
        StateMismatchError, match=r"was \w+InPandasExec in the Spark .* \w+InPySparkExec .* or move the"
    ):
        check_checkpoint(stream.spark, stream.outcomes(), checkpoint=str(stream.checkpoint))
    stream.move(LOG, 5)
    stream.add(last)
    stream.run()
    assert stream.table() == stream.expected()


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
    stream.add(first)
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
        with pytest.raises(ConfigError, match="is an unfinished move"):
            stream.run()
        stream.sink = "noop"
        with pytest.raises(Exception, match="Unrecognized token 'half_of_a_checkpoint"):
            stream.run()
        stream.sink = "accumulator"
    crashes_at(monkeypatch, None)
    last = stream.folder / "moved_again"
    for to in (target, last):  # Again, because the query of the first one has not run.
        move_checkpoint(stream.spark, stream.outcomes(), source=str(old), target=str(to))
    with pytest.raises(ConfigError, match=r"was moved to '.*moved_again', whose query has its rows now"):
        stream.run()
    stream.checkpoint = last
    for batch in others:
        stream.add(batch)
        stream.run()
    assert stream.table() == stream.expected()
    with pytest.raises(ConfigError, match=r"was moved to '.*moved_again', whose query has run since"):
        move_checkpoint(stream.spark, stream.outcomes(), source=str(old), target=str(stream.folder / "third"))
    stream.checkpoint, stream.shards = old, 3
    with pytest.raises(ConfigError, match=r"was moved to '.*moved_again', whose query has its rows now"):
        stream.run()


def test_what_cannot_be_moved_is_refused_before_anything_is_written(lane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = lane(2, "parquet")
    stream.add(batches_of(stream.drawn, 2, 1)[0])
    outcomes, target = stream.outcomes(), stream.folder / "moved"

    def refused(what: str, **changed: Any) -> None:
        given: dict[str, Any] = {"source": str(stream.checkpoint), "target": str(target)} | changed
        with pytest.raises((ConfigError, StateMismatchError, StorageError), match=what):
            move_checkpoint(stream.spark, given.pop("outcomes", outcomes), **given)
        assert not target.exists()

    refused("has no committed micro-batch")
    stream.run()
    refused("is not empty", target=str(stream.folder / "operations"))
    refused("overlap", target=str(stream.checkpoint / "moved"))
    refused("outcomes do not come out of a purgatory", outcomes=stream.spark.range(3))
    frames = stream.landing.frames(stream.spark)
    refused("emit: .*'early'", outcomes=replace(stream.purgatory(), emit="early").resolve(*frames))
    refused("where='nothing = 1' is no condition .*Use the columns .*operation.row", where="nothing = 1")
    refused("where='id' is no condition", where="id")
    refused("where='id =' is no condition", where="id =")
    for partitions in (0, True, "5"):
        refused(f"partitions={partitions!r} must be a whole number from 1", partitions=partitions)
    refused("contains ' '", target=str(stream.folder / "a place"))
    refused("target='nowhere://lake/moved' cannot be read", target="nowhere://lake/moved")
    refused("source='nowhere://lake/old' cannot be read", source="nowhere://lake/old")
    dry = move_checkpoint(stream.spark, outcomes, source=str(stream.checkpoint), target=str(target), dry_run=True)
    assert not target.exists()
    assert "would move" in str(dry) and "drop" not in str(dry)
    assert (dry.before.shards, dry.operations) == (3, sum(stream.waiting().values()))
    begun, survey = stream.checkpoint / "offsets" / str(dry.batch_id + 1), move.survey
    with monkeypatch.context() as during:
        during.setattr(move, "survey", lambda *given: begun.write_text("v1\n") and survey(*given))
        refused("is still running: stop it, then run the move again")
    begun.unlink()
    copy = stream.folder / "copy"
    shutil.copytree(stream.checkpoint, copy)
    for checksum in copy.rglob(".*.crc"):
        checksum.unlink()
    (copy / "sources" / "0" / "0").unlink()
    refused(r"^source=.* is damaged\. Nothing was written\. sources/0/0 is missing, but offsets/", source=str(copy))
    (copy / "offsets" / str(dry.batch_id)).write_text("v1\n")
    refused("is damaged: .* of its last micro-batch", source=str(copy))
    (copy / "metadata").write_text(UNFINISHED)
    refused("is an unfinished move", source=str(copy))
    query = outcomes.writeStream.format("noop").option("checkpointLocation", str(stream.checkpoint)).start()
    refused("its query is running in this session")
    query.stop()
    last = stream.checkpoint / "commits" / str(dry.batch_id)
    last.rename(stream.folder / "put away")
    refused("start the old query once more")


@pytest.mark.long
@pytest.mark.parametrize("host", [BLOB, LOG])
def test_a_checkpoint_goes_on_after_sparks_own_repartition_and_can_be_moved(lane: Any, host: str) -> None:
    stream = lane(2, "accumulator")
    stream.host, spark = host, stream.spark
    first, second, third, *others = batches_of(stream.drawn, 2, 4)
    with settings(spark, STATE_STORE_SETTINGS):
        stream.add(first)
        stream.run()
        waits, rows = stream.waiting(), stream.staged()
        spark._streamingCheckpointManager.repartition(str(stream.checkpoint), 5)
        assert stream.waiting() == waits
        assert stream.staged() == rows, "what is staged can be read before the query has gone on"
        stream.add(second)
        stream.run()
        spark._streamingCheckpointManager.repartition(str(stream.checkpoint), 3)
        inside = str(stream.folder / "table" / "moved")
        with pytest.raises(ConfigError, match="lies in the table's folder"):
            move_checkpoint(spark, stream.outcomes(), source=str(stream.checkpoint), target=inside)
        new = str(stream.folder / "new")
        with pytest.raises(ConfigError, match=r"is Spark's own repartition.*start the old query once more"):
            move_checkpoint(spark, stream.outcomes(), source=str(stream.checkpoint), target=new)
        stream.add(third)
        stream.run()
        stream.move(host, 4, partitions=5)
        for batch in others:
            stream.add(batch)
            stream.run()
    assert stream.table() == stream.expected()


@pytest.mark.long
def test_a_query_keeps_the_format_of_its_states_and_a_move_gives_it_the_newer_one(lane: Any) -> None:
    stream = lane(3, "accumulator")
    first, second, *others = batches_of(stream.drawn, 3, 4)
    with settings(stream.spark, {FORMAT_VERSION: "1"}):
        stream.add(first)
        stream.run()
    with settings(stream.spark, {FORMAT_VERSION: "2"}):
        stream.add(second)
        stream.run()
    assert not list(stream.checkpoint.glob("state/0/0/[0-9]*_*"))
    stream.move(BLOB, 4)
    assert {len(list(path.glob("*_*.zip"))) for path in stream.checkpoint.glob("state/0/[0-9]")} == {1}
    for batch in others:
        stream.add(batch)
        stream.run()
    assert list(stream.checkpoint.glob("state/0/0/[0-9]*_*.changelog"))
    assert stream.table() == stream.expected()


@pytest.mark.long
@pytest.mark.parametrize(("host", "sink"), [(BLOB, "foreachBatch"), (LOG, "parquet")])
def test_a_moved_query_with_another_sink_starts_with_the_settings_that_it_had(
    spark: SparkSession, tmp_path: Path, host: str, sink: str
) -> None:
    session, drawn, table = spark.newSession(), law_stream(2), str(tmp_path / "table")
    for name in STATE_STORE_SETTINGS:
        session.conf.unset(name)
    if host == LOG:
        session.conf.set(PROVIDER, ROCKSDB)
    landing = Landing(tmp_path)
    batches = batches_of(drawn, 2, 4)

    def outcomes(shards: int) -> DataFrame:
        return replace(drawn.purgatory(host), shards=shards).resolve(*landing.frames(session))

    def run(shards: int, checkpoint: str) -> None:
        for batch in (batches.pop(0), batches.pop(0)):
            landing.add(*([with_file_columns(row) for row in side] for side in (batch.operations, batch.events)))
        writer = outcomes(shards).writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        if sink == "parquet":
            query = writer.format(sink).start(table)
        else:
            query = writer.foreachBatch(lambda rows, _: rows.write.mode("append").parquet(table)).start()
        query.awaitTermination()

    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    run(3, old)
    batch_id = move_checkpoint(session, outcomes(2), source=old, target=new).batch_id
    with pytest.raises(ConfigError, match=f"keeps only the micro-batches {batch_id} to {batch_id}: give"):
        pending(session, checkpoint=new, batch_id=batch_id - 1)
    with pytest.raises(ConfigError, match=r"was moved to '.*new', whose query has its rows now"):
        check_checkpoint(session, outcomes(3), checkpoint=old)
    run(2, new)
    landing.checkpoint = Path(new)
    written = (row.asDict() for row in session.read.parquet(table).collect())
    assert multiset(written, *COLUMNS) == +drawn.expected(landing.last_watermark_us)


@pytest.mark.long
def test_operations_are_taken_out_of_what_waits(lane: Any) -> None:
    stream = lane(3, "parquet")
    first, *others = batches_of(stream.drawn, 3, 3)
    stream.add(first)
    stream.run()
    counts = export_state(stream.spark, checkpoint=str(stream.checkpoint), folder=str(stream.folder / "export"))
    with pytest.raises(ConfigError, match="overlap"):
        export_state(stream.spark, checkpoint=str(stream.checkpoint), folder=str(stream.checkpoint / "export"))
    waits = stream.spark.read.parquet(str(stream.folder / "export" / "operations"))
    assert waits.count() == counts["operations"] == sum(stream.waiting().values()) > 1
    gone = waits.orderBy("id").first()["operation"]["row"]
    old, stream.checkpoint = stream.checkpoint, stream.folder / "moved"
    given = {"source": str(old), "target": str(stream.checkpoint), "where": f"operation.row <> '{gone}'"}
    dry = move_checkpoint(stream.spark, stream.outcomes(), **given, dry_run=True)
    assert "dropped: 1 operations that wait" in str(dry) and not stream.checkpoint.exists()
    moved = move_checkpoint(stream.spark, stream.outcomes(), **given)
    assert (moved.operations, moved.dropped) == (dry.operations, 1)
    assert sum(stream.waiting().values()) == counts["operations"] - 1
    for batch in others:
        stream.add(batch)
        stream.run()
    assert stream.table() == Counter({row: n for row, n in stream.expected().items() if row[0] != gone})
