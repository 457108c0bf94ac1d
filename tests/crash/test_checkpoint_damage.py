"""A file of a checkpoint that is missing, empty, cut or changed: told at the start by file, fault and remedy."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_purgatory.errors import ForeignWriterError, StagingError, StorageError
from spark_purgatory.spark.storage.checkpoint_files import damages
from tests.support.now_and_then import each_commit
from tests.support.sink_streams import Stream, every


@pytest.fixture(scope="module")
def drained(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    """Three micro-batches with rows, and one drain."""
    stream = Stream(spark, tmp_path_factory.mktemp("checkpoint")).add(3)
    stream.run(stream.rows())
    for name in ("checkpoint", "table"):
        shutil.copytree(stream.folder / name, stream.folder / f"{name} kept")
    return stream


def fresh(stream: Stream) -> Path:
    for name in ("checkpoint", "table"):
        shutil.rmtree(stream.folder / name)
        shutil.copytree(stream.folder / f"{name} kept", stream.folder / name)
    return stream.checkpoint


def crc(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


def emptied(path: Path) -> None:
    path.write_bytes(b"")
    crc(path).unlink()


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    crc(path).unlink()


def cut(path: Path) -> None:
    """The checksum of the former bytes stays."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def removed(path: Path) -> None:
    path.unlink()
    crc(path).unlink()


def older(path: Path) -> None:
    """The copy of the one before it."""
    path.write_bytes(path.with_name(str(int(path.name) - 1)).read_bytes())
    crc(path).unlink()


def last(checkpoint: Path, folder: str) -> str:
    return f"{folder}/{max(int(path.name) for path in (checkpoint / folder).iterdir() if path.name.isdigit())}"


CASES = [
    ("offsets", cut, r"cannot be read \(.*Checksum"),
    ("offsets", removed, "is missing, but its micro-batch is committed"),
    ("commits", emptied, "is empty.*remove it: Spark then runs that micro-batch again"),
    ("sources/0", halved, "is cut or damaged"),
    ("sources/0", removed, "is missing, but offsets/.* counts it.*silently drop new ones"),
    ("sources/0", older, "is cut or damaged"),
    ("metadata", removed, "is missing"),
]


@pytest.mark.parametrize(
    ("folder", "damage", "said"),
    each_commit(CASES, lambda case: case[:2] == ("sources/0", removed)),
)
def test_a_file_of_sparks_own_is_named(drained: Stream, folder: str, damage: Callable[[Path], None], said: str) -> None:
    checkpoint = fresh(drained)
    name = folder if folder == "metadata" else last(checkpoint, folder)
    copies = {path: path.read_bytes() for path in (checkpoint / name, crc(checkpoint / name))}
    damage(checkpoint / name)
    with pytest.raises(StorageError, match=rf"is damaged\. Nothing was started\. {name} {said}"):
        drained.run(drained.rows())
    if (folder, damage) != ("metadata", removed):  # To doctor that is a folder in which no query has begun.
        found = damages(drained.spark, str(checkpoint))
        assert [damage.path for damage in found] == [name], "and doctor says so"
        assert "bring it back from a copy" in found[0].remedy
    if name.startswith("commits"):  # As the remedy has it: each row is there once.
        copies = {}
        (checkpoint / name).unlink()
    for path, content in copies.items():
        path.write_bytes(content)
    assert drained.run(drained.rows()).numbers() == every(3)


def test_logs_that_are_gone_as_a_whole_are_named(drained: Stream) -> None:
    """Spark began with micro-batch 0, and said that its folder should be empty, or advised a new checkpoint."""
    checkpoint = fresh(drained)
    for folder in ("offsets", "commits", "sources"):
        shutil.rmtree(checkpoint / folder)
    with pytest.raises(StorageError, match=r"is damaged\. Nothing was started\. offsets has no micro-batch, but"):
        drained.run(drained.rows())
    fresh(drained)
    shutil.rmtree(checkpoint / "commits")
    removed(checkpoint / "metadata")
    with pytest.raises(StorageError, match=r"is damaged\. Nothing was started\. metadata is missing"):
        drained.run(drained.rows())
    fresh(drained)
    assert drained.run(drained.rows()).numbers() == every(3)


@pytest.mark.long
def test_a_metadata_file_that_names_another_query_is_named(drained: Stream) -> None:
    """It was "the table was replaced"."""
    path = fresh(drained) / "metadata"
    text = path.read_text(encoding="utf-8")
    query_id = json.loads(text)["id"]
    path.write_text(text.replace(query_id, query_id[:-1] + ("0" if query_id[-1] != "0" else "1")), encoding="utf-8")
    crc(path).unlink()
    with pytest.raises(Exception, match=r"StagingError: .*/metadata names the query .*write that id") as told:
        drained.run(drained.rows())
    path.write_text(re.findall(r'\{"id":"[^"]*"\}', str(told.value))[0], encoding="utf-8")
    drained.run(drained.rows())
    assert drained.numbers() == every(3)


@pytest.mark.long
def test_a_checkpoint_that_lost_all_but_its_metadata_is_named(drained: Stream) -> None:
    """It was "another run of the query"."""
    checkpoint = fresh(drained)
    for path in checkpoint.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    with pytest.raises(Exception, match=r"files of this checkpoint, .* are missing, bring the whole checkpoint back"):
        drained.run(drained.rows())
    shutil.rmtree(checkpoint)
    shutil.copytree(drained.folder / "checkpoint kept", checkpoint)
    assert drained.run(drained.rows()).numbers() == every(3)


def test_an_intent_that_was_removed_is_named(drained: Stream) -> None:
    """It was "another run of the query ... stop the other writer"."""
    log = fresh(drained) / "staging" / "log"
    copies = {path: path.read_bytes() for path in log.rglob("*") if path.is_file()}
    for path in log.rglob("intent=*"):
        path.unlink()
    with pytest.raises(StagingError, match=r"entry intent=0 of .*/staging/log is missing.*Bring the file back"):
        drained.run(drained.rows())
    for path in [path for path in log.rglob("*") if path.is_file()]:
        path.unlink()
    with pytest.raises(Exception, match=r"entry intent=0 was removed|folder 'staging' was removed") as told:
        drained.run(drained.rows())
    assert not isinstance(told.value, ForeignWriterError)
    for path, content in copies.items():
        path.write_bytes(content)
    assert drained.run(drained.rows()).numbers() == every(3)
