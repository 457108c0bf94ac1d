"""The package is typed: a user's file passes ``mypy --strict``, and wrong uses are errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from spark_purgatory import AccumulatorQuery

ROOT = Path(__file__).resolve().parents[2]
USER = ROOT / "tests" / "house" / "typing_user.py"
WRONG = {
    'Operations(id="a", keys="b", created="c", timeouts="1 s")': "Unexpected keyword argument",
    'Operations(keys="b", created="c", timeout="1 s")': "Missing named argument",
    'Operations(id=3, keys="b", created="c", timeout="1 s")': "incompatible type",
    'Completions(key="k", time=4)': "incompatible type",
    'RecordAccumulator(path="p", batch_size=5.5)': "incompatible type",
    'RecordAccumulator(path="p", linger=True)': "incompatible type",
    'criteria.quorum("2")': "incompatible type",
    'RecordAccumulator(path="p").write_stream(1, checkpoint="c")': "incompatible type",
    "q.recent": "has no attribute",
    "q.stop(1, 2)": "Too many arguments",
    "Purgatory(operations=1, completions=2, criterion=3)": "incompatible type",
    'Purgatory(operations=o, completions=c, criterion=criteria.any_key(), emit="last")': "incompatible type",
}


def strict(*files: Path) -> str:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--config-file",
        str(ROOT / "pyproject.toml"),
    ]
    return subprocess.run([*command, *map(str, files)], cwd=ROOT, capture_output=True, text=True, check=False).stdout


def test_a_query_has_every_name_of_sparks() -> None:
    own = {name for name in vars(AccumulatorQuery) if not name.startswith("_")}
    assert {name for name in vars(StreamingQuery) if not name.startswith("_")} < own


@pytest.mark.long
def test_a_users_file_passes_and_every_wrong_use_is_refused(tmp_path: Path) -> None:
    lines = [
        "from spark_purgatory import AccumulatorQuery, Completions, Operations, Purgatory, RecordAccumulator, criteria",
        'o = Operations(id="a", keys="b", created="c", timeout="1 s")',
        'c = Completions(key="k", time="t")',
        "q: AccumulatorQuery",
        *WRONG,
    ]
    wrong = tmp_path / "wrong.py"
    wrong.write_text("\n".join(lines) + "\n", encoding="utf-8")
    said = strict(USER, wrong)
    assert "typing_user.py" not in said, said
    for number, (line, message) in enumerate(WRONG.items(), 5):
        assert any(f"wrong.py:{number}: " in error and message in error for error in said.splitlines()), (line, said)
