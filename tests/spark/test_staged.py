"""What counts of a staging folder after a restart, and when its files are counted."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_purgatory import RecordAccumulator
from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import ConfigError, ForeignWriterError, StagingError
from spark_purgatory.spark.sink.drain.policy_adapter import MAX_FILES_AHEAD, Backlog
from spark_purgatory.spark.sink.staging.ledger import (
    NO_BATCH,
    Contents,
    EmptyRun,
    Intent,
    Ledger,
    LogEntry,
    Piece,
    Run,
    StagedBatch,
    empty_entry,
    intent_entry,
    record_entry,
    replay,
)
from spark_purgatory.spark.sink.staging.staged_files import (
    PARTITION_HASH,
    ROW_HASH,
    StagedFiles,
    file_at,
    measured,
    read_files,
    row_hash,
)
from spark_purgatory.spark.sink.staging.staging_folder import FORMAT
from spark_purgatory.spark.storage.checkpoint_files import MOVED
from spark_purgatory.spark.storage.spark_access import settings
from tests.support.sink_queries import HOUR, staged_for
from tests.support.sink_streams import Stream, every

DATA = Path(__file__).resolve().parents[1] / "data"
WRITER = "5f0c6a4e-9f5f-4d5e-8f0a-3b1d6f1f9b5a"
FIRST_RUN, NEXT_RUN, TWIN = Run(0, "aaaaaaaa"), Run(1, "bbbbbbbb"), Run(1, "cccccccc")
OTHER = "00000000-9f5f-4d5e-8f0a-3b1d6f1f9b5a"


def piece(batch_id: int, epoch: int = 0, writer: str = WRITER, run: Run = FIRST_RUN) -> Piece:
    path = f"file:/c/staging/{run.batch_path(epoch, batch_id)}/part-00000-{writer}.c000.snappy.parquet"
    return replace(file_at(path), rows=5, checksum=11)


def ledger(*notes: tuple[str, dict[str, Any]]) -> Ledger:
    return replay([LogEntry(name, {**body, "format": FORMAT}) for name, body in notes], "/staging")


def record(of: Piece, rows: int = 5) -> tuple[str, dict[str, Any]]:
    return record_entry(StagedBatch(of.batch_id, of.epoch, 0, of.folder, Contents(rows, of.checksum), 100))[:2]


def empty(first: int, last: int, run: Run = FIRST_RUN) -> tuple[str, dict[str, Any]]:
    return empty_entry(EmptyRun(first, last, run.number))[:2]


# --- what counts --------------------------------------------------------------------------------------------------


def test_a_staged_file_is_known_by_its_path() -> None:
    found = piece(7, epoch=3, run=NEXT_RUN)
    assert (found.batch_id, found.epoch, found.run) == (7, 3, 1)
    assert found.folder == "rows/generation=0/epoch=3/batch=00000000000000000007-000001-bbbbbbbb"
    with pytest.raises(StagingError, match="has not the name of a staged file: move it elsewhere"):
        file_at("file:/c/staging/epoch=0/notes.parquet")


def test_of_a_micro_batch_that_several_runs_have_staged_the_last_ones_folder_counts() -> None:
    earlier, later = piece(0, epoch=1), piece(0, epoch=0, run=NEXT_RUN)
    drained = intent_entry(Intent(0, "uuid", None, "", NO_BATCH, Contents(), (), (), epochs=(0,), run=0))[:2]
    book = ledger(drained, record(earlier), record(later))
    book.adopt([earlier, later], before=1)
    assert [(found.run, found.epoch) for found in book.pieces.values()] == [(1, 0)]
    assert book.run.number == 2, "the run that reads this is a later one"
    with pytest.raises(StagingError, match=r"holds 4 rows .checksum 11. in 1 pieces, but 5 rows"):
        ledger(drained, record(earlier), record(later)).adopt([earlier, replace(later, rows=4)], before=1)
    book = ledger(drained, record(earlier))
    book.adopt([earlier, later], before=1)
    assert [found.run for found in book.pieces.values()] == [0], "the next run died in it, the old one ended it"
    twins = piece(0, run=NEXT_RUN), piece(0, run=TWIN)
    with pytest.raises(ForeignWriterError, match=r"-000001-bbbbbbbb and .*-000001-cccccccc .* two runs of the query"):
        ledger(*map(record, twins)).adopt(twins, before=1)


def test_of_two_runs_that_staged_the_same_rows_either_folder_may_go() -> None:
    """It was "stop one, remove its folder": of other rows nothing shows which the state of the query has."""
    twins = piece(0, run=NEXT_RUN), piece(0, run=TWIN)
    with pytest.raises(ForeignWriterError, match=r"Stop one of them, and move .*, whose rows are the same, elsewhere"):
        ledger(*map(record, twins)).adopt(twins, before=1)
    for kept in twins:
        book = ledger(*map(record, twins))
        book.adopt([kept], before=1)
        assert Contents.of(book.pieces.values()) == Contents(5, 11)
    other = replace(twins[1], rows=6)
    with pytest.raises(ForeignWriterError, match="Stop one of them, and start over with a new checkpoint"):
        ledger(record(twins[0]), record(other, rows=6)).adopt([twins[0], other], before=1)


def test_an_intent_that_is_not_there_is_missed_by_what_came_after_it() -> None:
    for entry in (record(piece(0, epoch=1)), ("done=0", {"number": 0, "table_version": 0, "table_id": "t"})):
        with pytest.raises(StagingError, match=r"entry intent=0 of .* is missing"):
            ledger(entry)


def test_a_later_run_that_found_no_rows_counts_more_than_the_folder_of_an_earlier_one() -> None:
    """The replay of a micro-batch may have other rows, or none: Spark has committed the state of the last run."""
    book = ledger(record(piece(1)), empty(0, 0), empty(1, 1, NEXT_RUN))
    book.adopt([piece(1)], before=2)
    assert (book.pieces, book.last_batch, book.run.number) == ({}, 1, 2)
    book = ledger(record(piece(1, run=NEXT_RUN)), empty(0, 1))
    book.adopt([piece(1, run=NEXT_RUN)], before=2)
    assert [found.run for found in book.pieces.values()] == [1]
    with pytest.raises(ForeignWriterError, match="and a note without rows of the staging folder were"):
        ledger(record(piece(1)), empty(0, 1)).adopt([piece(1)], before=2)


def test_a_run_is_numbered_after_the_one_that_made_the_last_intent_though_its_files_are_gone() -> None:
    intent = Intent(0, "uuid", None, "", NO_BATCH, Contents(), taken=(), left=(), epochs=(0,), run=7)
    book = ledger(intent_entry(intent)[:2])
    book.adopt([], before=0)
    assert book.run.number == 8


@pytest.mark.parametrize(
    ("staged", "notes", "before", "missing"),
    [
        ([], [], 1, 0),
        ([0, 2], [], 3, 1),
        ([0, 1], [], 3, 2),
        ([0], [empty(1, 3), empty(1, 4)], 6, 5),
        ([0, 5], [empty(1, 3), empty(1, 4)], 6, None),
        ([], [empty(0, 2)], 3, None),
    ],
)
def test_a_micro_batch_of_which_nothing_is_known_is_missed(
    staged: list[int], notes: list[tuple[str, dict[str, Any]]], before: int, missing: int | None
) -> None:
    book = ledger(*notes, *(record(piece(batch_id)) for batch_id in staged))
    if missing is None:
        book.adopt(map(piece, staged), before)
        assert book.last_batch == before - 1
        return
    with pytest.raises(StagingError, match=rf"at micro-batch {before}, but .* only up to {missing - 1} "):
        book.adopt(map(piece, staged), before)


def test_empty_micro_batches_in_a_row_are_one_run() -> None:
    book = ledger()
    for batch_id in (0, 1, 2):
        book.stage(StagedBatch(batch_id, 0, 0, ""))
    book.add(3, 0, Contents(5))
    book.stage(StagedBatch(4, 0, 0, ""))
    assert book.empty == [(0, 2, 0), (4, 4, 0)]


def test_a_log_of_format_1_is_read_as_it_was_written() -> None:
    """A golden file: an intent that is done, and what was noted after it."""
    lines = (DATA / "staging_log_v1.jsonl").read_text(encoding="utf-8").splitlines()
    assert {json.loads(line)["format"] for line in lines} == {FORMAT}
    entries = [LogEntry(entry["entry"], json.loads(entry["body"])) for entry in map(json.loads, lines)]
    book = replay(entries, "/staging")
    assert (book.next_drain, book.is_done, book.last_batch, book.table_version, book.table_id) == (
        1, True, 1, 7, "table-id",
    )  # fmt: skip
    assert (book.schema or "").startswith('{"fields":[{"metadata":{},"name":"n"')
    assert book.empty == [(2, 3, 2)]
    assert book.last_contents == Contents(9, 90)
    assert [(left.partition, left.batch_id, left.rows, left.run) for left in book.pieces.values()] == [("B2", 1, 5, 2)]
    assert book.intent is not None and book.intent.taken_rows == 7
    of_four = replace(piece(4, epoch=1, run=Run(2, "0a1b2c3d")), rows=6, checksum=-60)
    book.adopt([of_four], before=5)
    assert book.last_batch == 4


# --- when files are counted ---------------------------------------------------------------------------------------


def test_rows_leave_in_the_order_of_micro_batches_whatever_their_epochs(spark: SparkSession, tmp_path: Path) -> None:
    """And each in the task of its own file."""
    schema = spark.range(0).selectExpr("id AS n", "'a' AS part").schema
    for batch_id, epoch in enumerate((99, 100)):
        rows = spark.range(6 * batch_id, 6 * batch_id + 6, 1, 1).selectExpr(
            "id AS n", "if(id % 2 = 0, 'a', 'b') AS part"
        )
        hashed = rows.select("*", rows.part.alias(PARTITION_HASH), row_hash(schema).alias(ROW_HASH))
        hashed.write.parquet(str(tmp_path / FIRST_RUN.batch_path(epoch, batch_id)))
    paths = [file_at(str(path)) for path in sorted(tmp_path.glob("rows/*/*/*/*.parquet"), reverse=True)]
    files = [[replace(path, partition=part) for path in paths] for part in "ba"]
    found = read_files(spark, str(tmp_path), schema, files, ["part"]).selectExpr(
        "n", "part", "spark_partition_id() AS task"
    )
    assert [row.n for row in found.where("task = 0").collect()] == [1, 3, 5, 7, 9, 11]
    assert [row.n for row in found.where("task = 1").collect()] == [0, 2, 4, 6, 8, 10]
    assert read_files(spark, str(tmp_path), schema, files[:1], ["part"]).count() == 6


def test_files_are_counted_when_one_may_be_full() -> None:
    """The example of the module's first lines."""
    backlog, one = Backlog(), StagedBatch(0, 0, 0, path="", plain_bytes=200)
    assert backlog.could_fill([one], {}, 1.0, 1600), "nothing is known yet"
    quarters = [replace(piece(0), partition=partition, staged_bytes=25) for partition in "abcd"]
    backlog.learn([one], quarters)
    counts = [n for n in range(100) if backlog.could_fill([one] * n, {}, 1.0, 1600)]
    assert counts[0] == 64
    assert backlog.could_fill([one] * 4, {"b": 1500}, 1.0, 1600)
    assert not backlog.could_fill([one] * 3, {"b": 1500}, 1.0, 1600)
    backlog.learn([one], [replace(quarters[0], partition=str(n), staged_bytes=1) for n in range(100)])
    assert not backlog.could_fill([one] * (MAX_FILES_AHEAD - 1), {}, 1.0, 100)
    assert backlog.could_fill([one] * MAX_FILES_AHEAD, {}, 1.0, 100), "all could be a new partition's"


NESTED = (
    "map(timestamp_seconds(n), concat('t', n)) AS by_time",
    "map('at', timestamp_seconds(n), 'none', NULL) AS times",
    "named_struct('m', map(n, named_struct('at', timestamp_seconds(n), 'raw', unhex('00ff')))) AS inner",
    "array(map('k', array(timestamp_seconds(n))), NULL) AS list",
    "map('outer', map('inner', date_from_unix_date(int(n)))) AS maps",
    "to_variant_object(named_struct('at', timestamp_seconds(n), 'd', n / 3, 'b', unhex('00ff'))) AS v",
    "named_struct('v', array(to_variant_object(named_struct('at', timestamp_seconds(n))))) AS variants",
    "map('double', n / 3e5D) AS doubles",
    "CASE WHEN n % 2 = 0 THEN map('a', 1) END AS sometimes",
)
OTHERWISE = {
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.legacy.castComplexTypesToString.enabled": "true",
    "spark.sql.binaryOutputStyle": "BASE64",
    "spark.sql.legacy.allowHashOnMapType": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.jsonGenerator.ignoreNullFields": "false",
    "spark.sql.variant.pushVariantIntoScan": "false",
    "spark.sql.parquet.enableVectorizedReader": "false",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.legacy.setopsPrecedence.enabled": "true",
    "spark.sql.storeAssignmentPolicy": "LEGACY",
}
"""Settings that change a cast, a text or a reader."""


def test_staged_rows_are_known_again_in_a_session_of_other_settings(spark: SparkSession, tmp_path: Path) -> None:
    """Maps and variants that hold timestamps were damaged, it said, once the session had another time zone."""
    rows = spark.range(20).selectExpr("id AS n").selectExpr("n", *NESTED)
    path = f"rows/generation=0/epoch=0/batch={0:020d}-000000-abcdef01"
    StagedFiles(str(tmp_path), SinkOptions(path="/t"), ()).stage(rows, path, 0)
    pieces = measured(spark, [f"{tmp_path}/{path}"])
    found = read_files(spark, str(tmp_path), rows.schema, [pieces], ["n"])
    assert found.drop("v", "variants").collect() == rows.drop("v", "variants").collect()
    for setting in ({name: value} for name, value in OTHERWISE.items()):
        with settings(spark, setting):
            assert read_files(spark, str(tmp_path), rows.schema, [pieces], ["n"]).count() == 20, setting
    with settings(spark, OTHERWISE):
        assert read_files(spark, str(tmp_path), rows.schema, [pieces], ["n"]).count() == 20


HASHED_APART = [
    ("struct<a: string, b: string>", "named_struct('a', 'x', 'b', null)", "named_struct('a', null, 'b', 'x')"),
    ("struct<a: array<string>>", "named_struct('a', array(null))", "named_struct('a', array())"),
    ("struct<a: array<string>>", "named_struct('a', array())", "named_struct('a', null)"),
    ("struct<a: struct<b: string>>", "named_struct('a', named_struct('b', null))", "named_struct('a', null)"),
    *(
        (
            "struct<m: map<string, timestamp>>",
            "named_struct('m', map('at', timestamp_seconds(1)))",
            f"named_struct('m', {m})",
        )
        for m in ("map('at', null)", "map()", "null", "map('at', timestamp_seconds(2))")
    ),
]


def test_the_row_hash_sees_where_a_null_is_and_what_a_map_has(spark: SparkSession) -> None:
    for kind, one, other in HASHED_APART:
        rows = spark.sql(f"select inline(array(cast({one} as {kind}), cast({other} as {kind})))")
        hashes = {row[0] for row in rows.select(row_hash(rows.schema)).collect()}
        assert len(hashes) == 2, (one, other)


def test_a_checkpoint_that_was_moved_away_drains_nothing_and_does_not_start(stream: Stream) -> None:
    """A `finally` that closed the old accumulator took the rows from under the new query."""
    sink = stream.sink = RecordAccumulator(path=str(stream.folder / "table"), **HOUR)
    staged_for(stream, sink, stream.add(1).rows())
    new = stream.folder / "new"
    shutil.copytree(stream.checkpoint, new)  # What a move does to staged rows.
    (stream.checkpoint / MOVED).write_text(str(new))
    with pytest.raises(ForeignWriterError, match=r"was moved to .*new, whose query has the staged rows now"):
        sink.close()
    with pytest.raises(ConfigError, match=r"was moved to '.*new', whose query has its rows now"):
        stream.run(stream.rows())
    shutil.rmtree(new)
    sink.close()
    assert stream.numbers() == every(1)
