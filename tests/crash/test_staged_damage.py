"""A staged file that was removed, emptied, cut or changed in one bit: named, or without effect; never fewer rows."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import StagingError
from spark_purgatory.spark.sink.drain import protocol
from spark_purgatory.spark.sink.drain.actions import Adopted, Work
from spark_purgatory.spark.sink.drain.sender import Sender
from spark_purgatory.spark.sink.staging.ledger import Piece
from spark_purgatory.spark.sink.staging.staged_files import read_files, reading
from spark_purgatory.spark.storage.checkpoint_files import next_batch
from spark_purgatory.spark.storage.spark_access import settings
from tests.support.sink_queries import HOUR, accumulator, staged_files, start, wait_until
from tests.support.sink_streams import Stream, every


@dataclass(frozen=True)
class Staged:
    """A checkpoint whose query was stopped before anything was drained, kept apart to be copied for each trial."""

    spark: SparkSession
    folder: Path

    def files(self) -> list[Path]:
        """Staged files with rows, in a fresh copy of the checkpoint in the place where it was made."""
        checkpoint = self.folder / "checkpoint"
        shutil.rmtree(checkpoint, ignore_errors=True)
        shutil.copytree(self.folder / "kept", checkpoint)
        found = sorted(checkpoint.glob("staging/rows/*/*/*/*.parquet"))
        return [path for path in found if pq.ParquetFile(path).metadata.num_rows]

    def delivered(self) -> str | Counter[str]:
        """What a restart would bring to the table, or the name of the error that stops it."""
        checkpoint = str(self.folder / "checkpoint")
        sender = Sender(SinkOptions(path=str(self.folder / "table"), partition_by=("part",)), checkpoint)
        try:
            ledger, before = sender.open(self.spark), next_batch(self.spark, checkpoint)
            actions, folder = sender.actions, sender.actions.folder.uri
            adopted = Adopted(actions.files.found_before(self.spark, ledger, before))
            protocol.apply(ledger, adopted, Work(self.spark, before), 0)
            pieces = list(ledger.pieces.values())
            actions.files.count_again(self.spark, pieces)
            by_partition: dict[str, list[Piece]] = {}
            for piece in pieces:
                by_partition.setdefault(piece.partition, []).append(piece)
            schema = T.StructType.fromJson(json.loads(ledger.schema or ""))
            rows = read_files(self.spark, folder, schema, list(by_partition.values()), ["part"])
            # A drain names what it cannot read in the same way (`SparkActions.commit`).
            with reading("the staged files", folder):
                return Counter(str(row) for row in rows.collect())
        except StagingError:
            return "StagingError"
        except PySparkException as error:
            return "StagingError" if "a staged row differs from its hash" in str(error) else f"{error}"[:500]


def flip(path: Path, bit: int) -> None:
    """Change one bit of what is not pages: the footer and the indexes before it. Spark's checksum file is gone."""
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    content, start = bytearray(path.read_bytes()), footer_start(path)
    at = start * 8 + bit % ((len(content) - start) * 8)
    content[at // 8] ^= 1 << (at % 8)
    path.write_bytes(content)


def footer_start(path: Path) -> int:
    """Where the last page ends."""
    metadata = pq.ParquetFile(path).metadata
    ends = []
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            ends.append((chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size)
    content = path.read_bytes()
    [length] = struct.unpack("<I", content[-8:-4])
    return min(max(ends), len(content) - 8 - length)


@pytest.mark.slow
def test_a_flipped_bit_of_a_footer_or_index_costs_no_row(spark: SparkSession, tmp_path: Path) -> None:
    stream, rng, wrong = Stream(spark, tmp_path).add(3), random.Random(2), {}
    rows = stream.rows().selectExpr(
        "n", "part", "concat('text ', n) AS text", "timestamp_seconds(n) AS at", "cast(n AS decimal(10, 2)) AS amount",
        "date_from_unix_date(int(n)) AS day", "array(n, n + 1) AS list", "map('k', n) AS tags", "n % 3 = 0 AS third",
    )  # fmt: skip
    query = start(stream, accumulator(stream, **HOUR), rows)
    wait_until(lambda: (stream.checkpoint / "commits" / "2").exists(), query)
    query.stop()
    shutil.copytree(stream.checkpoint, tmp_path / "kept")
    staged = Staged(spark, tmp_path)
    staged.files()
    truth = staged.delivered()
    assert isinstance(truth, Counter) and truth.total() == 30, truth
    for number in range(420):
        files, bit = staged.files(), rng.randrange(1 << 30)
        flip(files[number % len(files)], bit)
        if (found := staged.delivered()) not in ("StagingError", truth):
            wrong[number, bit] = found
    assert not wrong


LENIENT = {"spark.sql.files.ignoreCorruptFiles": "true", "spark.sql.files.ignoreMissingFiles": "true"}
"""Settings of a session that have damaged files skipped: the sink's own reads must not follow them."""


def test_a_damaged_file_stops_a_query_by_name_whatever_the_session_skips_and_the_rows_arrive_once_it_is_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path).add(2)
    query = start(stream, accumulator(stream, **HOUR))
    wait_until(lambda: (stream.checkpoint / "commits" / "1").exists(), query)
    query.stop()
    [file, *_] = [path for path in sorted(staged_files(stream)) if pq.ParquetFile(path).metadata.num_rows]
    content, checksum = file.read_bytes(), file.with_name(f".{file.name}.crc")
    checksum.unlink()
    with settings(spark, LENIENT):
        for damaged in (b"", content[: len(content) // 2], None):
            file.unlink() if damaged is None else file.write_bytes(damaged)
            with pytest.raises(StagingError):
                query.flush()
            assert not stream.sink.table_exists(spark), "nothing was committed"
        file.write_bytes(content)
        query.flush()
    assert stream.numbers() == every(2)


@pytest.mark.long
def test_a_cut_file_of_a_micro_batch_that_spark_has_not_committed_is_not_read(stream: Stream) -> None:
    """As a power loss leaves it, whose record was synchronised. Each start asked for a copy that nobody has."""
    query = start(stream.add(2), accumulator(stream, **HOUR))
    wait_until(lambda: (stream.checkpoint / "commits" / "1").exists(), query)
    query.stop()
    for log, last in (("commits", 0), ("offsets", 1)):  # A micro-batch without rows may follow.
        for path in (stream.checkpoint / log).iterdir():
            if int(path.name.strip(".").removesuffix(".crc")) > last:
                path.unlink()
    for path in (path for path in staged_files(stream) if f"batch={1:020d}" in str(path)):
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert stream.run(stream.rows()).numbers() == every(2)


@pytest.mark.long
def test_a_missing_file_of_the_state_is_named_as_that(spark: SparkSession, tmp_path: Path) -> None:
    """Not as a fault of the staging folder, which is whole."""
    stream = Stream(spark, tmp_path).add(2).run()
    [state, *_] = sorted((stream.checkpoint / "state").rglob("2.delta"))
    shutil.copytree(stream.checkpoint / "state", tmp_path / "copy")
    state.unlink()
    with pytest.raises(
        PySparkException, match=r"StateUnreadableError: the state of the query cannot be read .* 'state'"
    ):
        stream.add(1).run()
    assert stream.numbers() == every(2)
    shutil.copytree(tmp_path / "copy", stream.checkpoint / "state", dirs_exist_ok=True)
    assert stream.run().numbers() == every(3)
