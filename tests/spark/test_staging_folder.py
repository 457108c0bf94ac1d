"""The staging folder: entries that are all there or named, both ways to write them, and folders that do not grow."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from spark_purgatory import RecordAccumulator
from spark_purgatory.errors import StagingError
from spark_purgatory.spark.sink.staging.ledger import Ledger, epoch_path
from spark_purgatory.spark.sink.staging.staged_files import pieces_below
from spark_purgatory.spark.sink.staging.staging_folder import (
    FORMAT,
    StagingFolder,
    local_folder,
)
from tests.support.sink_queries import HOUR
from tests.support.sink_streams import Stream, every


@pytest.fixture
def elsewhere(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A checkpoint on a file system that only Spark reaches: Hadoop's viewfs, over a folder of this test."""
    (tmp_path / "remote").mkdir()
    authority = f"lake{uuid4().hex[:8]}"
    name = f"fs.viewfs.mounttable.{authority}.link./data"
    spark.conf.set(name, (tmp_path / "remote").as_uri())
    yield f"viewfs://{authority}/data/checkpoint"
    spark.conf.unset(name)


@pytest.fixture(params=["files", "jobs"])
def place(request: pytest.FixtureRequest, elsewhere: str, tmp_path: Path) -> tuple[StagingFolder, Path]:
    """A staging folder written by Python or by Spark, and where it lies."""
    checkpoint = tmp_path / "checkpoint" if request.param == "files" else tmp_path / "remote" / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text('{"id":"a"}', encoding="utf-8")
    folder = StagingFolder(str(checkpoint), checkpoint) if request.param == "files" else StagingFolder(elsewhere)
    return folder, checkpoint


def entry_files(checkpoint: Path) -> list[Path]:
    found = (checkpoint / "staging" / "log").rglob("*")
    return sorted(path for path in found if path.is_file() and not path.name.startswith((".", "_")))


def without_checksum(path: Path) -> Path:
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    return path


def test_an_entry_is_read_as_it_was_written_and_a_note_replaces_the_one_of_its_name(
    spark: SparkSession, place: tuple[StagingFolder, Path]
) -> None:
    folder, checkpoint = place
    assert folder.read_entries(spark) == [], "nothing is there yet"
    folder.write_entry(spark, 0, "intent=0", {"text": 'ü "quoted"\nline'})
    for last in (1, 2, 3):
        folder.write_entry(spark, 17, f"empty=1-{last % 2}", {"first": 1, "last": last}, True)
    found = sorted((entry[:2] for entry in folder.read_entries(spark)), key=str)
    suffix = "f" if folder.local is not None else ""
    assert found == [
        (f"empty=1-0{suffix}", {"first": 1, "last": 2, "format": FORMAT}),
        (f"empty=1-1{suffix}", {"first": 1, "last": 3, "format": FORMAT}),
        ("intent=0", {"text": 'ü "quoted"\nline', "format": FORMAT}),
    ]
    assert len(entry_files(checkpoint)) == 3
    assert (checkpoint / "staging" / "log" / "generation=1" / "epoch=17").is_dir()
    folder.remove(spark, epoch_path(17, "log"))
    assert [name for name, _, _ in folder.read_entries(spark)] == ["intent=0"]
    folder.remove(spark, epoch_path(17, "log"))


def test_an_entry_that_is_not_as_written_is_named(spark: SparkSession, place: tuple[StagingFolder, Path]) -> None:
    folder, checkpoint = place
    folder.write_entry(spark, 0, "intent=0", {"number": 0})
    path = without_checksum(next(path for path in entry_files(checkpoint) if "intent=0" in str(path)))
    text = path.read_text(encoding="utf-8")
    newer = text.replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}')
    for damaged, said in (
        ("", "is damaged: its"),
        (text[: len(text) // 2], "is damaged: its"),
        (text.replace('number\\":0', 'number\\":1'), "is damaged: its"),
        (newer, rf"has format {FORMAT + 1}, .* reads formats up to {FORMAT}"),
    ):
        path.write_text(damaged, encoding="utf-8")
        with pytest.raises(StagingError, match=said) as raised:
            folder.read_entries(spark)
        assert "intent=0-" in str(raised.value), "the file is named"


def test_a_folder_is_local_only_if_it_is_the_same_folder(spark: SparkSession, elsewhere: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "remote" / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text('{"id":"a"}', encoding="utf-8")
    for written in (str(checkpoint), f"file:{checkpoint}", f"file://{checkpoint}"):
        assert local_folder(spark, written) == checkpoint
    assert local_folder(spark, elsewhere) is None, "another file system, the same bytes"
    assert local_folder(spark, str(tmp_path / "none")) is None
    assert local_folder(spark, f"hdfs://nowhere.invalid:9{checkpoint}") is None
    (checkpoint / "metadata").write_text("", encoding="utf-8")
    assert local_folder(spark, str(checkpoint)) is None, "no proof"


def test_folders_that_go_while_they_are_listed_are_named(spark: SparkSession, tmp_path: Path) -> None:
    """A reader of the staged view lists them beside drains, and reads again."""
    (tmp_path / "metadata").write_text("{}", encoding="utf-8")
    epochs = [tmp_path / "staging" / "rows" / "generation=0" / f"epoch={number}" for number in range(25)]
    is_over = Event()

    def come_and_go() -> None:
        while not is_over.is_set():
            for epoch in epochs:
                (epoch / "batch=0").mkdir(parents=True)
            for epoch in epochs:
                shutil.rmtree(epoch)

    drains = Thread(target=come_and_go)
    drains.start()
    try:
        with pytest.raises(StagingError, match="were removed while they were listed"):
            for _ in range(500):  # One of three or four lists meets a removal.
                pieces_below(spark, str(tmp_path / "staging"), Ledger(), 0)
    finally:
        is_over.set()
        drains.join()


@pytest.mark.long
def test_a_checkpoint_that_only_spark_reaches_takes_and_delivers_rows_over_restarts(
    spark: SparkSession, elsewhere: str, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    stream.sink = RecordAccumulator(path=str(tmp_path / "table"), partition_by=["part"], **HOUR)
    for _ in range(2):
        stream.add(2)
        trigger = {"availableNow": True}
        stream.sink.write_stream(stream.rows(), checkpoint=elsewhere, trigger=trigger).awaitTermination()
    assert stream.numbers() == every(4)
    staging = tmp_path / "remote" / "checkpoint" / "staging"
    assert not list(staging.rglob("*.parquet"))
    assert staging.is_dir() and list(staging.rglob("intent=1-*")), "written there"
