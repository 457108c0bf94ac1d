"""What is read of a checkpoint before its move, from files without Spark."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.host.requirements import PROVIDER, ROCKSDB
from spark_purgatory.spark.move.old_checkpoint import OldCheckpoint
from spark_purgatory.spark.placement import PARTITIONS
from spark_purgatory.spark.storage.checkpoint_files import MOVED, UNFINISHED


class LocalFiles:
    """Files of this machine."""

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def names(self, folder: str, folders_only: bool = False) -> list[str]:
        return sorted(each.name for each in Path(folder).glob("*") if each.is_dir() or not folders_only)

    def read(self, path: str) -> str:
        return Path(path).read_text(encoding="utf-8")


FILES: Any = LocalFiles()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Micro-batches 0 and 1 are committed, 2 was begun."""
    (tmp_path / "metadata").write_text(json.dumps({"id": "q"}))
    conf = {PARTITIONS: "4", PROVIDER: ROCKSDB}
    for folder, count, line in (("commits", 2, {}), ("offsets", 3, {"conf": conf})):
        (tmp_path / folder).mkdir()
        for number in range(count):
            (tmp_path / folder / str(number)).write_text(f"v1\n{json.dumps(line)}\n")
    return tmp_path


def test_a_query_that_goes_on_during_a_move_is_seen(checkpoint: Path) -> None:
    old = OldCheckpoint.read(FILES, str(checkpoint))
    assert (old.query_id, old.batch_id, old.partitions, sorted(old.offsets)) == ("q", 1, 4, [0, 1, 2])
    assert (old.provider, old.state_format) == (ROCKSDB, "1")
    old.check_rests(FILES)
    for folder, number in (("offsets", 3), ("commits", 2)):
        written = checkpoint / folder / str(number)
        written.write_text((checkpoint / folder / "0").read_text())
        with pytest.raises(ConfigError, match="is still running: stop it, then run the move again"):
            old.check_rests(FILES)
        written.unlink()


@pytest.mark.parametrize("written", ["commits/2", "offsets/3", "staging/log/generation=0/epoch=0/intent=0-uuid"])
def test_a_checkpoint_is_not_moved_again_once_a_query_has_run_where_it_was_moved_to(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, written: str
) -> None:
    """The second one stopped as a foreign writer, and the first one was forgotten."""
    new, newer = (tmp_path_factory.mktemp(name) for name in ("new", "newer"))
    for folder in (new, newer):
        shutil.copytree(checkpoint, folder, dirs_exist_ok=True)
    (checkpoint / MOVED).write_text(str(new))
    (new / MOVED).write_text(str(newer))
    old = OldCheckpoint.read(FILES, str(checkpoint))
    assert old.check_alone(FILES) == [str(new), str(newer)]
    (newer / written).parent.mkdir(parents=True, exist_ok=True)
    (newer / written).write_text((checkpoint / "commits" / "0").read_text())
    with pytest.raises(ConfigError, match=f"was moved to '{newer}', whose query has run since .* Start with that one"):
        old.check_alone(FILES)
    shutil.rmtree(newer)
    assert old.check_alone(FILES) == [str(new)]


@pytest.mark.parametrize("damaged", ["metadata", "commits/1", "offsets/1", "offsets/0"])
def test_a_checkpoint_whose_files_cannot_be_read_is_not_moved(checkpoint: Path, damaged: str) -> None:
    (checkpoint / damaged).write_text("v1\n")
    if damaged == "offsets/0":
        (checkpoint / damaged).unlink()
    with pytest.raises(ConfigError, match=r"is damaged: .* Bring the folder back from a copy"):
        OldCheckpoint.read(FILES, str(checkpoint))


def test_an_unfinished_move_and_a_query_that_has_not_run_are_refused(checkpoint: Path) -> None:
    (checkpoint / "metadata").write_text(UNFINISHED)
    with pytest.raises(ConfigError, match="is an unfinished move and lacks state"):
        OldCheckpoint.read(FILES, str(checkpoint))
    with pytest.raises(ConfigError, match="has no committed micro-batch"):
        OldCheckpoint.read(FILES, str(checkpoint / "elsewhere"))
