"""Spark's own files of a checkpoint: what is wrong with them, and what is read of them before a move."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.host.requirements import PROVIDER, ROCKSDB
from spark_purgatory.spark.move import move
from spark_purgatory.spark.move.old_checkpoint import OldCheckpoint
from spark_purgatory.spark.placement import PARTITIONS
from spark_purgatory.spark.storage.checkpoint_files import MOVED, UNFINISHED, faults_of, logs_of, lost_entries, needed

COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


def entry(number: int) -> str:
    return "\n".join(
        ["v1", *(f'{{"path":"{path}","timestamp":1,"batchId":{number}}}' for path in ("file:///in/a", "b"))]
    )


def offsets(*sources: str) -> str:
    return "\n".join(['v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}', *sources])


SOUND = {
    "metadata": '{"id":"6efee18f"}',
    **{f"offsets/{n}": offsets(f'{{"logOffset":{n}}}', "-") for n in range(4)},
    **{f"commits/{n}": COMMIT for n in range(3)},
    **{f"sources/0/{n}": entry(n) for n in range(4)},
}


def told(texts: dict[str, str]) -> list[str]:
    """Faults of a checkpoint with these files, as the product's reader finds them."""
    logs = logs_of([f"file:///lake/a%20b/checkpoint/{path}" for path in texts])
    wanted = {"metadata", *needed(logs)}
    return [str(damage) for damage in faults_of({path: texts[path] for path in wanted if path in texts}, logs)]


def test_a_sound_checkpoint_has_no_fault() -> None:
    assert told(SOUND) == []
    compacted = {**SOUND, **{f"sources/0/{n}": entry(n) for n in range(4, 9)}, "sources/0/9.compact": entry(3)}
    compacted |= {"offsets/4": offsets('{"logOffset":9}', "-")}
    assert told(compacted) == []
    for gone in ("sources/0/0", "sources/0/8", "offsets/0", "commits/0"):
        assert told({path: text for path, text in compacted.items() if path != gone}) == [], gone
    assert told({"metadata": SOUND["metadata"]}) == [], "of a query that never had a micro-batch"
    assert told({"metadata": UNFINISHED, "commits/0": COMMIT}) == [], "half of one that is moved, which others say"
    killed = {path: SOUND[path] for path in ("metadata", "sources/0/0")}
    assert told(killed) == [], "a first start that was killed before its micro-batch"
    [fault] = told({**killed, "sources/0/1": SOUND["sources/0/1"]})
    assert fault.startswith("offsets has no micro-batch, but entry 1 of a source's log was written after others")
    others = offsets('{"topic":{"0":5}}', '{"reservoirVersion":4,"index":-1}', "7")
    assert told({**SOUND, "offsets/3": others}) == [], "other sources"
    assert told({**SOUND, "sources/0/4": entry(4)}) == [], "found, and not planned yet"
    shared = {**SOUND, "offsets/3": offsets('{"logOffset":3}', '{"logOffset":3}')}
    assert told(shared) == [], "one DataFrame for both inputs has one log"


A, B, BEAT, TOPIC = '{"logOffset":3}', '{"logOffset":1}', '{"offset":3,"timestamp":7}', '{"topic":{"0":5}}'


@pytest.mark.parametrize(
    ("lines", "entries"),
    [
        ([A, A, B], {0: 4, 1: 2}),
        ([A, BEAT, A, BEAT, B], {0: 4, 3: 2}),
        ([TOPIC, TOPIC, B], {0: 1, 1: 2}),
        ([B, A, A], {0: 2, 1: 4}),
    ],
)
def test_a_dataframe_that_is_two_inputs_has_one_log_and_later_sources_lower_numbers(
    lines: list[str], entries: dict[int, int]
) -> None:
    logs = {f"sources/{log}/{n}": entry(n) for log, count in entries.items() for n in range(count)}
    sound = {**{path: text for path, text in SOUND.items() if "sources" not in path}, **logs}
    sound["offsets/3"] = offsets(*lines)
    assert told(sound) == []
    for log in (one for one, count in entries.items() if count > 1):
        (said,) = told({path: text for path, text in sound.items() if path != f"sources/{log}/1"})
        assert said.startswith(f"sources/{log}/1 is missing")


def test_a_whole_log_that_is_gone_is_missed_if_the_plan_has_two_sources_with_equal_offsets() -> None:
    logs = logs_of(f"checkpoint/{path}" for path in SOUND)
    assert [each.path for each in lost_entries("offsets/3", [A, A], logs, ["one", "other"])] == ["sources/1/0"]
    beat = [A, A, BEAT]
    assert [each.path for each in lost_entries("offsets/3", beat, logs, ["one", "other"])] == ["sources/1/0"]
    assert lost_entries("offsets/3", beat, logs, ["one", "one"]) == []
    assert lost_entries("offsets/3", [A, A], logs) == [], "the files alone do not tell"


@pytest.mark.parametrize("path", ["metadata", "offsets/3", "offsets/2", "commits/2", "sources/0/3", "sources/0/0"])
@pytest.mark.parametrize("size", [0, 0.2, 0.5, 0.8])
def test_a_file_that_is_empty_or_cut_is_named(path: str, size: float) -> None:
    text = SOUND[path]
    (said,) = told({**SOUND, path: text[: int(len(text) * size)]})
    assert said.startswith(f"{path} is {'empty' if not size else 'cut'}")
    assert ("remove it" in said) == (path == "commits/2") and "from a copy" in said


@pytest.mark.parametrize("gone", [["3"], ["2"], ["2", "3"], ["0"]])
def test_an_entry_of_a_sources_log_that_is_gone_is_named(gone: list[str]) -> None:
    """Spark reads into that number again what it finds next, and skips it: 125 outcomes were missing."""
    left = {path: text for path, text in SOUND.items() if path.removeprefix("sources/0/") not in gone}
    (said,) = told(left)
    assert said.startswith(f"sources/0/{gone[0]} is missing") and "offsets/3 counts it" in said
    assert ("1 more" in said) == (len(gone) > 1)


def test_offsets_of_a_committed_micro_batch_that_are_gone_are_named() -> None:
    for gone in (("offsets/3", "offsets/2"), ("offsets/2",)):
        left = {path: text for path, text in SOUND.items() if path not in gone}
        assert told(left)[0].startswith("offsets/2 is missing, but its micro-batch is committed")


def test_a_commit_that_is_gone_is_named_if_spark_would_not_find_the_state_of_the_micro_batch_after_it() -> None:
    """Spark ran the last micro-batch all the same, and the error was that its state is missing."""
    ids = (f'v1\n{{"nextBatchWatermarkMs":0,"stateUniqueIds":{{"0":[["{n}"]]}}}}' for n in range(3))
    named = {**SOUND, **{f"commits/{n}": text for n, text in enumerate(ids)}}
    assert told(named) == []
    left = {path: text for path, text in named.items() if path != "commits/2"}
    (said,) = told(left)
    assert said.startswith("commits/2 is missing, but offsets/3 was written after it: bring it back from a copy")
    assert "each file after offsets/2:" in said
    assert told({path: text for path, text in left.items() if path != "offsets/3"}) == [], "its remedy"
    (said,) = told({**named, "commits/2": ""})
    assert "remove it and offsets/3:" in said


def test_a_last_commit_that_is_an_older_ones_copy_is_named() -> None:
    """Spark ran the next micro-batch on the older one's states, did not find them, and named a file of the state."""
    ids = [f'v1\n{{"nextBatchWatermarkMs":0,"stateUniqueIds":{{"0":[["{n}"]]}}}}' for n in range(3)]
    named = {**SOUND, **{f"commits/{n}": ids[n] for n in range(3)}}
    assert told(named) == []
    (said,) = told({**named, "commits/2": ids[1]})
    assert said.startswith("commits/2 is a copy of commits/1, whose states are older: bring it back from a copy, or")
    assert "remove it and offsets/3:" in said
    left = {path: text for path, text in named.items() if path not in ("commits/2", "offsets/3")}
    assert told(left) == [], "its remedy"
    assert told({**named, "commits/1": ""}) == [], "Spark does not read it"
    stateless = {f"commits/{n}": 'v1\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{}}' for n in range(3)}
    assert told({**SOUND, **stateless}) == [], "the commits of a query without state are alike"


class LocalFiles:
    """Files of this machine."""

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def names(self, folder: str, folders_only: bool = False) -> list[str]:
        return sorted(each.name for each in Path(folder).glob("*") if each.is_dir() or not folders_only)

    def read(self, path: str) -> str:
        return Path(path).read_text(encoding="utf-8")

    def write(self, path: str, text: str) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")


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


def test_a_move_completes_no_checkpoint_whose_query_goes_on_to_the_end_of_it(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, target = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("target")
    for folder in ("commits", "offsets", "state"):
        (made / folder).mkdir()
    for log in ("commits/0", "offsets/0"):
        shutil.copy(checkpoint / log, made / log)
    monkeypatch.setattr(move, "reached", lambda failpoint: shutil.copy(made / "offsets/0", checkpoint / "offsets/3"))
    with pytest.raises(ConfigError, match="is still running: stop it, then run the move again"):
        move.assemble_checkpoint(FILES, OldCheckpoint.read(FILES, str(checkpoint)), str(made), str(target))
    assert not (target / "metadata").exists()


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
