"""What commands print on a terminal is whole: lines end between words, a path can be copied, no value is cut. What is
given to a command is handed on.
"""

from __future__ import annotations

import builtins
import io
import json
import os
import re
import subprocess
import sys
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from spark_purgatory import __main__ as module
from spark_purgatory import cli
from spark_purgatory.cli import GROUPS, app
from spark_purgatory.job.commands import FoundPending, PendingRequest, _print, table_of, text_of
from spark_purgatory.terminal import PlainConsole, say, terminal

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
        assert "look first with --dry-run added to this command, then run it with --yes" in done.stderr
        both = CliRunner().invoke(app, [name, *words, "--dry-run", "--yes"])
        assert (both.exit_code, "exclude each other" in both.stderr) == (2, True)
    line = [sys.executable, "-m", "spark_purgatory", name, *words]
    ran = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (ran.returncode, ran.stderr) == (2, done.stderr), "in a process of its own too"


HANDED_TO = (
    "job.doctor.run_doctor", "demo.runner.run_demo", "job.runner.run_file", "job.config_file.check_file",
    "job.status.show_status", "job.run_report.guarded",
)  # fmt: skip


@pytest.mark.parametrize("name", [name for names in GROUPS.values() for name in names if name != "example"])
def test_every_word_of_a_command_reaches_what_carries_it_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[str] = []

    def take(*given: object, **named: object) -> int:
        handed.append(repr((given, named)))
        return 0

    monkeypatch.setattr(cli, "require_spark", lambda *given, **named: None)
    for place in HANDED_TO:
        monkeypatch.setattr(f"spark_purgatory.{place}", take)
    group: Any = typer.main.get_command(app)
    whole, needed, flags, values = [name], [name], list[str](), list[str]()
    for number, each in enumerate(group.commands[name].params, 1000):
        if getattr(each, "is_flag", False):
            flags.append(each.opts[0])
        else:
            values.append({"fail_above": "0.17"}.get(each.name, str(number)))
            words = [values[-1]] if each.param_type_name == "argument" else [each.opts[0], values[-1]]
            whole += words
            needed += words * each.required
    for words in (whole, needed, *([*needed, flag] for flag in flags)):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done
    assert [value for value in values if value not in handed[0]] == []
    assert len(set(handed)) == len(handed), "a flag changes nothing"


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("report checkpoint -o /dev/null/x/page.html", "--output '/dev/null/x/page.html'"),
        ("report checkpoint -o /proc/page.html", "--output '/proc/page.html'"),
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


ROWS = [
    {
        "id": "A-1",
        "missing_keys": ["A-1/stock", "A-1/[bold]credit"],
        "remaining_ms": 1_640_000,
        "at": "2024-03-01T09:00:00.000Z",
    },
    {"id": "A-2", "missing_keys": None, "remaining_ms": -90_000, "at": "2024-03-01T09:19:58.986Z"},
]


def shown_lines(width: int) -> list[str]:
    out = StringIO()
    console = PlainConsole(file=out, width=width)
    console.print(table_of({name: [text_of(row[name]) for row in ROWS] for name in ROWS[0]}))
    return out.getvalue().splitlines()


def test_a_wide_terminal_gets_a_line_for_each_row() -> None:
    lines = shown_lines(width=100)
    [first] = [line for line in lines if "A-1 " in line]
    assert "A-1/stock, A-1/[bold]credit" in first and "1640000" in first
    [second] = [line for line in lines if "A-2 " in line]
    assert "-90000" in second and "None" not in second


def test_a_narrow_one_gets_whole_values_on_several_lines() -> None:
    cells = [re.split(r" {2,}", line.strip()) for line in shown_lines(width=60)]
    assert max(map(len, shown_lines(width=60))) <= 60
    told = " ".join(" ".join(line) for line in cells)
    assert "A-1/stock" in told and "1640000" in told and "..." not in told and "\u2026" not in told


HOSTILE = "order:key:[red]1\x1b[2J\x9b31m\x07\x7f\u202e"
SHOWN = r"order:key:[red]1\u001b[2J\u009b31m\u0007\u007f\u202e"


def test_a_text_is_printed_as_it_is_and_its_control_characters_are_escaped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say(terminal(), HOSTILE)
    terminal().out(HOSTILE, highlight=False)
    terminal().print(table_of({"id": [text_of(HOSTILE + "\n")]}))
    out = capsys.readouterr().out
    assert out.count(SHOWN) == 3 and SHOWN + r"\n " in out and not set(out) & set("\x1b\x9b\x07\x7f\u202e")


def test_a_stream_of_few_characters_gets_the_others_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = BytesIO()
    monkeypatch.setattr("sys.stdout", TextIOWrapper(raw, encoding="ascii"))
    say(terminal(), "caf\u00e9 \udcff")
    sys.stdout.flush()
    assert raw.getvalue() == b"caf\\xe9 \\udcff\n"


def pending_text(width: int, texts: list[str], **asked: Any) -> list[str]:
    """What ``pending`` prints of orders."""
    columns = asked.get("columns") or list(json.loads(texts[0]))
    out = StringIO()
    request = PendingRequest("ck", "true", "remaining_ms", asked.pop("columns", None), 5, None, "", False, [], **asked)
    times = [name for name in ("ordered_at", "created_at", "deadline_at") if name in columns]
    found = FoundPending(columns, times, texts, 1884, 1_709_284_798_000, 32)
    _print(found, request, PlainConsole(file=out, width=width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def waiting(number: int, **own: Any) -> str:
    order, since = f"order-{number}", f"2024-03-01T09:09:{number % 60:02}.986000Z"
    return json.dumps(
        {
            "order_id": order, "ordered_at": since, **own, "watch_keys": [order], "missing_keys": [order], "matched": 0,
            "criterion": "any_key", "reached": 0.0, "needed": 1.0, "progress": "0 of 1", "created_at": since,
            "deadline_at": "2024-03-01T09:19:58.986000Z", "age_ms": 599_000, "remaining_ms": number * 32,
        }
    )  # fmt: skip


def test_what_waits_begins_with_the_total_and_is_a_line_a_row_in_80_columns() -> None:
    lines = pending_text(80, [waiting(n, method="card", note="a remark of forty characters, or so") for n in (1, 95)])
    assert lines[0] == "1,884 wait   watermark 2024-03-01 09:19:58 UTC   next in 32 ms"
    assert [line.split("  ")[0].strip(" \u2500") for line in lines[1:5]] == ["", "order_id", "", "order-1"]
    head, row = lines[2], lines[5]
    assert head.split() == "order_id progress missing waits since (UTC) left".split()
    assert row.split() == "order-95 0 of 1 order-95 2024-03-01 09:09:35 3.0 s".split()
    assert "2 of 1,884 shown.   --limit 5   --columns a,b" in lines[-2]
    assert max(map(len, lines)) <= 80 and len(lines) == 9


def test_no_java_is_one_sentence_and_an_exit_code(tmp_path: Path) -> None:
    environment = {**os.environ, "JAVA_HOME": str(tmp_path)}
    for command, code in (("demo", 1), ("doctor", 1)):
        ran = subprocess.run(
            [sys.executable, "-m", "spark_purgatory", command],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=environment,
            check=False,
        )
        assert ran.returncode == code
        assert "Traceback" not in ran.stderr
        assert "openjdk-17-jre-headless" in ran.stderr + ran.stdout
        assert command == "doctor" or ran.stderr.count("\n") == 1


def test_a_setting_without_a_value_is_a_wrong_argument() -> None:
    command = [sys.executable, "-m", "spark_purgatory", "doctor", "--conf", "spark.a=b", "--conf", "spark.key hunter2"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ran.returncode == 2
    assert "--conf must be NAME=VALUE" in ran.stderr and "number 2 of 2 is not" in ran.stderr
    assert "hunter2" not in ran.stdout + ran.stderr
