"""What commands print on a terminal is whole: lines end between words, and a path can be copied."""

from __future__ import annotations

import builtins
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from spark_purgatory import __main__ as module
from spark_purgatory.cli import GROUPS, app
from spark_purgatory.terminal import say

ROOT = Path(__file__).resolve().parents[2]
WORDS = "max_pending, max_state_bytes_per_shard and max_broadcast_bytes are allowed, " * 3


def printed(text: str, is_terminal: bool) -> list[str]:
    file = io.StringIO()
    say(Console(file=file, width=80, force_terminal=is_terminal, markup=False, color_system=None), text)
    return file.getvalue().splitlines()


def test_a_terminals_lines_end_between_words() -> None:
    lines = printed(WORDS, is_terminal=True)
    assert max(map(len, lines)) <= 80 and " ".join(lines) == WORDS.strip()


def test_no_module_prints_sentences_in_a_way_of_its_own() -> None:
    own = {path.name for path in (ROOT / "spark_purgatory").rglob("*.py") if "soft_wrap" in path.read_text("utf-8")}
    assert own == {"progress.py", "terminal.py"}, "call say(); lines of progress are one for each micro-batch"


def test_help_shows_every_command_and_every_default_in_80_columns() -> None:
    """Against docs/command_line.md, which is read as a person reads it."""
    reference = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    asked = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).stdout
    assert max(map(len, asked.splitlines())) <= 80 + len("https://github.com") and "Examples" in asked
    head = reference.partition("\n## ")[0]
    sections = dict(re.findall(r"^## (\S+)\n\n(.*?)(?=^## |\Z)", reference, re.MULTILINE | re.DOTALL))
    assert sections.keys() == {name for names in GROUPS.values() for name in names}
    for name, section in sections.items():
        assert re.search(rf"^  {name} +{re.escape(section.splitlines()[0])}$", asked, re.MULTILINE), name
        shown = " ".join(CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "80"}).stdout.split())
        options = re.findall(r"^\| `(--[\w-]+)`.*? \| (.*?)(?: Default: (.*?)\.)? \|$", section, re.MULTILINE)
        usage = re.findall(r"\[(--[\w-]+)\]", section)
        assert all(option in shown and f"| `{option}` | " in head for option in usage), name
        for option, meaning, default in options:
            plain = re.sub(" (?:May be repeated|It must be given)\\.$", "", meaning)
            assert option in shown and plain in shown, (name, option)
            assert not default or f"[default: {default.strip('`')}" in shown, option


def test_a_command_that_writes_is_refused_where_nobody_can_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without starting Spark; the answer has the lines to type."""
    given = {
        "repair": [str(tmp_path)],
        "move": [str(ROOT / "conf" / "orders.yaml"), "--from", str(tmp_path / "c")],
    }
    for name, words in given.items():
        monkeypatch.setattr(sys, "argv", ["spark-purgatory", name, *words])
        done = CliRunner().invoke(app, [name, *words])
        assert done.exit_code == 2, done
        for way in ("--dry-run", "--yes"):
            assert f"spark-purgatory {name} {' '.join(words)} {way}" in done.stderr
        both = CliRunner().invoke(app, [name, *words, "--dry-run", "--yes"])
        assert (both.exit_code, "exclude each other" in both.stderr) == (2, True)
    line = [sys.executable, "-m", "spark_purgatory", name, *words]
    ran = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (ran.returncode, ran.stderr) == (2, done.stderr), "in a process of its own too"


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("report checkpoint table -o /dev/null/x/page.html", "--output '/dev/null/x/page.html'"),
        ("report checkpoint table -o /proc/page.html", "--output '/proc/page.html'"),
        ("demo --dir /dev/null/x", "--dir '/dev/null/x'"),
        (f"run {ROOT}/conf/orders.yaml --spark-log /dev/null/x/spark.log", "--spark-log '/dev/null/x/spark.log'"),
    ],
)
def test_a_place_that_cannot_be_written_is_told_in_a_sentence_before_spark_starts(words: str, option: str) -> None:
    done = CliRunner().invoke(app, words.split())
    assert (done.exit_code, type(done.exception)) == (2, SystemExit), done
    [said] = [line for line in (done.stderr + done.stdout).splitlines() if line.startswith(option)]
    assert f"{option} cannot be written (" in said and "give a place that exists or can be made" in said


def test_on_a_runtime_with_a_spark_of_its_own_no_spark_is_advised(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = builtins.__import__

    def without_typer(name: str, *given: object, **named: object) -> object:
        if name == "spark_purgatory.cli":
            raise ModuleNotFoundError("No module named 'typer'", name="typer")
        return taken(name, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without_typer)
    assert module.main() == 1
    assert capsys.readouterr().err == "typer is not installed: pip install 'spark-purgatory[cli]'\n"


def test_a_second_ctrl_c_cuts() -> None:
    code = (
        "import os, signal; from spark_purgatory.job.stopping import StopRequest; stop = StopRequest(); stop.listen()\n"
        "for _ in range(2): os.kill(os.getpid(), signal.SIGINT)\nprint('went on', flush=True)"
    )
    cut = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (cut.returncode, cut.stderr) == (130, "") and "went on" not in cut.stdout
    assert "Cut by a second ctrl-C. Nothing is lost: a rerun continues from the checkpoint." in cut.stdout
