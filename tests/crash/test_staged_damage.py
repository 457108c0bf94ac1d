"""A staged file that was removed, emptied, cut or changed in one bit: named, or without effect; never fewer rows."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterator
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
from tests.support.now_and_then import now_and_then
from tests.support.sink_queries import HOUR, accumulator, staged_files, start, wait_until
from tests.support.sink_streams import Stream, every

BATCHES = 3
LENIENT = {"spark.sql.files.ignoreCorruptFiles": "true", "spark.sql.files.ignoreMissingFiles": "true"}
"""Settings of a session that have damaged files skipped: the sink's own reads must not follow them."""


@dataclass(frozen=True)
class Staged:
    """A checkpoint whose query was stopped before anything was drained, kept apart to be copied for each trial."""

    spark: SparkSession
    folder: Path
    truth: Counter[str]

    def copy(self) -> Path:
        """A fresh copy of the checkpoint, in the place where it was made."""
        checkpoint = self.folder / "checkpoint"
        shutil.rmtree(checkpoint, ignore_errors=True)
        shutil.copytree(self.folder / "kept", checkpoint)
        return checkpoint

    def files(self) -> list[Path]:
        """Staged files with rows, in the copy."""
        found = sorted((self.folder / "checkpoint" / "staging").glob("rows/*/*/*/*.parquet"))
        return [path for path in found if pq.ParquetFile(path).metadata.num_rows]

    def delivered(self) -> str | Counter[str]:
        """What a restart would bring to the table, or the name of the error that stops it."""
        checkpoint = str(self.folder / "checkpoint")
        sender = Sender(SinkOptions(path=str(self.folder / "table"), partition_by=("part",)), checkpoint)
        try:
            ledger, before = sender.open(self.spark), next_batch(self.spark, checkpoint)
            actions, folder = sender.actions, sender.actions.folder.uri
            adopted = Adopted(actions.find(self.spark, ledger, before))
            protocol.apply(ledger, adopted, Work(self.spark, before), 0)
            pieces = list(ledger.pieces.values())
            if ledger.first_missing is not None:
                return "StagingError"
            actions.check_pieces(self.spark, ledger, pieces)
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

    def trial(self, damage: Callable[[Path], None], number: int, keeps_checksum: bool) -> str:
        """Damage a file of a copy; "" if that was named or without effect, else what came of it."""
        self.copy()
        files = self.files()
        path = files[number % len(files)]
        checksum = path.with_name(f".{path.name}.crc")
        if not keeps_checksum:
            checksum.unlink(missing_ok=True)
        damage(path)
        found = self.delivered()
        if found in ("StagingError", self.truth):
            return ""
        return found if isinstance(found, str) else f"{sum((self.truth - found).values())} rows lost or changed"


@pytest.fixture(scope="module")
def staged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Staged:
    folder = tmp_path_factory.mktemp("damage")
    stream = Stream(spark, folder).add(BATCHES)
    rows = stream.rows().selectExpr(
        "n", "part", "concat('text ', n) AS text", "timestamp_seconds(n) AS at", "cast(n AS decimal(10, 2)) AS amount",
        "date_from_unix_date(int(n)) AS day", "array(n, n + 1) AS list", "map('k', n) AS tags", "n % 3 = 0 AS third",
    )  # fmt: skip
    sink = accumulator(stream, **HOUR)
    query = start(stream, sink, rows)
    wait_until(lambda: (stream.checkpoint / "commits" / str(BATCHES - 1)).exists(), query)
    query.stop()
    shutil.copytree(stream.checkpoint, folder / "kept")
    found = Staged(spark, folder, Counter())
    found.copy()
    truth = found.delivered()
    assert isinstance(truth, Counter) and sum(truth.values()) == 10 * BATCHES, truth
    return Staged(spark, folder, truth)


@pytest.fixture(params=[*now_and_then("strict"), "lenient"])
def session(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    for name, value in LENIENT.items() if request.param == "lenient" else ():
        spark.conf.set(name, value)
    yield
    for name in LENIENT:
        spark.conf.unset(name)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(bit: int) -> Callable[[Path], None]:
    """Change one bit of what is not pages: the footer and the indexes before it."""

    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        start = footer_start(path)
        at = start * 8 + bit % ((len(content) - start) * 8)
        content[at // 8] ^= 1 << (at % 8)
        path.write_bytes(content)

    return damage


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


@pytest.mark.long
def test_every_file_emptied_cut_or_removed_is_named(staged: Staged, session: None) -> None:
    staged.copy()
    several = len(staged.files())
    for damage in (empty, cut, Path.unlink):
        for number in range(several):
            for keeps_checksum in (True, False):
                staged.copy()
                assert staged.trial(damage, number, keeps_checksum) == "", (damage, number)
                assert staged.delivered() == "StagingError", (damage, number)


@pytest.mark.long
def test_a_cut_file_of_a_micro_batch_that_spark_has_not_committed_is_not_read(staged: Staged) -> None:
    """As a power loss leaves it, whose record was synchronised. Each start asked for a copy that nobody has."""
    commits = staged.copy() / "commits"
    for path in commits.iterdir():  # Micro-batches without rows follow.
        if int(path.name.strip(".").removesuffix(".crc")) >= BATCHES - 1:
            path.unlink()
    for path in (path for path in staged.files() if f"batch={BATCHES - 1:020d}" in str(path)):
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    found = staged.delivered()
    assert isinstance(found, Counter) and found <= staged.truth and found.total() == (BATCHES - 1) * 10


@pytest.mark.slow
def test_a_flipped_bit_of_a_footer_or_index_costs_no_row(staged: Staged) -> None:
    rng, wrong = random.Random(2), {}
    for number in range(420):
        bit = rng.randrange(1 << 30)
        if found := staged.trial(flip(bit), number, keeps_checksum=False):
            wrong[(number, bit)] = found
    assert not wrong


def test_a_damaged_file_stops_a_real_query_by_name_and_the_rows_arrive_once_it_is_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path).add(2)
    query = start(stream, accumulator(stream, **HOUR))
    wait_until(lambda: (stream.checkpoint / "commits" / "1").exists(), query)
    [file, *_] = [path for path in sorted(staged_files(stream)) if pq.ParquetFile(path).metadata.num_rows]
    content, checksum = file.read_bytes(), file.with_name(f".{file.name}.crc")
    checksum.unlink()
    query.stop()
    for damage in (empty, cut):
        damage(file)
        with pytest.raises(StagingError):
            query.flush()
        assert not stream.sink.table_exists(spark), "nothing was committed"
        file.write_bytes(content)
    query.flush()
    assert stream.numbers() == every(2)


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
