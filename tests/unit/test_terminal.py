"""What commands print on a terminal is whole: lines end between words, and a path can be copied."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from spark_purgatory.cli import app
from spark_purgatory.terminal import say

ROOT = Path(__file__).resolve().parents[2]
WORDS = "max_pending, max_state_bytes_per_shard and max_broadcast_bytes are allowed, " * 3
PATH = "/lake/" + "folder/" * 20


def printed(text: str, is_terminal: bool) -> list[str]:
    file = io.StringIO()
    say(Console(file=file, width=80, force_terminal=is_terminal, markup=False, color_system=None), text)
    return file.getvalue().splitlines()


def test_a_terminals_lines_end_between_words() -> None:
    lines = printed(WORDS, is_terminal=True)
    assert max(map(len, lines)) <= 80 and " ".join(lines) == WORDS.strip()


def test_a_path_that_is_longer_than_a_line_stays_whole() -> None:
    assert PATH in printed(f"Written: {PATH}", is_terminal=True)[-1]


def test_in_a_file_a_sentence_is_one_line() -> None:
    assert printed(WORDS, is_terminal=False) == [WORDS]


def test_no_module_prints_sentences_in_a_way_of_its_own() -> None:
    own = {path.name for path in (ROOT / "spark_purgatory").rglob("*.py") if "soft_wrap" in path.read_text("utf-8")}
    assert own == {"progress.py", "terminal.py"}, "call say(); lines of progress are one for each micro-batch"


def test_the_errors_of_a_file_are_whole_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    narrow = Console(file=file, width=80, force_terminal=True, markup=False, color_system=None)
    monkeypatch.setattr("spark_purgatory.job.check_file.terminal", lambda stderr=False: narrow)
    wrong = ["check", str(ROOT / "conf" / "orders.yaml"), "--set", "purgatory.criterium=any_key"]
    assert CliRunner().invoke(app, wrong).exit_code == 2
    lines = file.getvalue().splitlines()
    assert "max_broadcast_bytes," in file.getvalue() and max(map(len, lines)) <= 80 + len(str(ROOT))
