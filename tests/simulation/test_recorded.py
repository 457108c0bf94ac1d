"""Crashes recorded on Spark by `tests/crash/test_recorded_crashes.py`: the simulation ends with the same table."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.simulation.judge import Wrong
from tests.simulation.recorded import Recording, replayed

FILE = Path(__file__).parents[1] / "data" / "recorded_crashes.jsonl.gz"
RECORDINGS = [Recording.of(json.loads(line)) for line in gzip.decompress(FILE.read_bytes()).splitlines()]


@pytest.mark.parametrize("recording", RECORDINGS, ids=[f"{each.host}, {each.emit}" for each in RECORDINGS])
def test_recorded_crashes_end_with_the_same_table(recording: Recording) -> None:
    assert len([run for run in recording.runs if run.crashed_at]) >= 12
    assert replayed(recording, f"kept {recording.host} {recording.emit}") == recording.table


def test_a_run_that_comes_to_another_end_than_on_spark_is_told() -> None:
    recording = RECORDINGS[0]
    first = recording.runs[1]._replace(committed=7)
    with pytest.raises(Wrong, match=r"run 1, .*on Spark with"):
        replayed(recording._replace(runs=[recording.runs[0], first, *recording.runs[2:]]), "another end")
