"""Every trace recorded from Kafka is replayed; and the runner sees an answer that is not Kafka's."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from spark_purgatory.accumulator.policy import exponential_backoff_ms
from tests.conformance.__main__ import main
from tests.conformance.replay import DIAGNOSTICS, LABELS, REPLAYERS, replay
from tests.conformance.traces import Trace, read_file

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT / "tests" / "conformance" / "traces"
RECORDED = {"accumulator": 40, "bufferpool": 40, "purgatory": 40, "wheel": 40}


@cache
def stored(kind: str) -> list[Trace]:
    return list(read_file(TRACES / f"{kind}.jsonl.xz"))


def all_of(kind: str) -> list[Any]:
    marks = [pytest.mark.kafka] if kind == "bufferpool" else []
    return [pytest.param(kind, n, id=f"{kind}-{trace.seed}", marks=marks) for n, trace in enumerate(stored(kind))]


def write(folder: Path, **contents: Any) -> Path:
    """One `.json` file for each name."""
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def first_step_with(content: dict[str, Any], op: str, answer: str) -> dict[str, Any] | None:
    return next((step for step in content["steps"] if step["op"] == op and answer in step), None)


def spoilt(value: Any) -> Any:
    """Another answer of the same type."""
    match value:
        case None:
            return "spoilt"
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return value + "?"
        case list():
            return [*value, 10**6]
        case dict():
            return {**value, "spoilt": {}}
    raise AssertionError(f"an answer of type {type(value)}")


def test_forty_traces_of_each_kind_are_stored() -> None:
    assert {kind: len(stored(kind)) for kind in RECORDED} == RECORDED
    assert {trace.kind for kind in RECORDED for trace in stored(kind)} == RECORDED.keys()


def check_every_answer(kind: str, number: int, batched: bool) -> None:
    outcome = replay(stored(kind)[number], batched=batched)
    assert outcome.mismatch is None, str(outcome.mismatch)
    assert not outcome.unknown, "an answer was compared with nothing"


@pytest.mark.parametrize(("kind", "number"), [parameter for kind in REPLAYERS for parameter in all_of(kind)])
def test_every_answer_is_kafkas(kind: str, number: int) -> None:
    check_every_answer(kind, number, batched=False)


@pytest.mark.parametrize(("kind", "number"), [*all_of("wheel"), *all_of("purgatory")])
def test_every_answer_is_kafkas_when_steps_share_a_call(kind: str, number: int) -> None:
    check_every_answer(kind, number, batched=True)


def test_the_backoff_is_kafkas_in_every_configuration() -> None:
    for trace in stored("accumulator"):
        initial_ms, max_ms = trace.config["retry_backoff_ms"], trace.config["retry_backoff_max_ms"]
        table_ms = trace.config["backoff_table_ms"]
        found_ms = [exponential_backoff_ms(initial_ms, max_ms, retry) for retry in range(len(table_ms))]
        assert found_ms == table_ms, trace.source


ANSWERS = sorted(
    {
        (kind, step["op"], answer)
        for kind, replayer in REPLAYERS.items()
        for trace in stored(kind)
        for step in trace.steps
        for answer in step.keys() - replayer.inputs[step["op"]] - LABELS - DIAGNOSTICS
    }
)


@pytest.mark.parametrize(("kind", "op", "answer"), ANSWERS)
def test_one_spoilt_answer_is_found_at_its_step(kind: str, op: str, answer: str) -> None:
    source = next(trace for trace in stored(kind) if first_step_with(trace.content, op, answer))
    content = copy.deepcopy(source.content)
    step = first_step_with(content, op, answer)
    assert step is not None
    was, step[answer] = step[answer], spoilt(step[answer])
    mismatch = replay(Trace("spoilt", content)).mismatch
    assert mismatch is not None, f"{op} {answer} {was!r} -> {step[answer]!r} was not seen"
    assert (mismatch.number, mismatch.op) == (step["i"], op)
    assert (mismatch.expected, mismatch.got) == ({answer: step[answer]}, {answer: was})


def test_an_answer_left_out_is_found_unless_it_is_nothing() -> None:
    content = copy.deepcopy(stored("purgatory")[0].content)
    step = next(step for step in content["steps"] if step["op"] == "check" and step["completed"])
    del step["completed"]
    mismatch = replay(Trace("shortened", content)).mismatch
    assert mismatch is not None and mismatch.number == step["i"] and mismatch.expected == {"completed": None}


def test_an_unknown_operation_is_passed_over_and_said() -> None:
    content = copy.deepcopy(stored("wheel")[0].content)
    content["steps"].insert(1, {"i": 99, "op": "peek", "next": 7, "size": content["steps"][0]["size"]})
    outcome = replay(Trace("peek", content))
    assert outcome.mismatch is None
    assert dict(outcome.unknown) == {"peek: answer 'next'": 1}


def test_threads_that_wait_splits_and_epochs_are_replayed_as_worked_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """The recorded traces do not hold them."""
    assert main([str(TRACES.parent / "by_hand")]) == 0
    assert capsys.readouterr().out == "conformance: accumulator 1/1 bufferpool 1/1\n"


def test_the_command_replays_folders_and_ends_with_the_counts(tmp_path: Path) -> None:
    nested = tmp_path / "deep" / "deeper"
    nested.mkdir(parents=True)
    write(nested, a=stored("wheel")[0].content, b=stored("wheel")[1].content)
    write(tmp_path, c=stored("purgatory")[0].content, d=stored("accumulator")[0].content)
    command = [sys.executable, "-m", "tests.conformance", str(tmp_path), str(nested)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "conformance: wheel 2/2 purgatory 1/1 accumulator 1/1"


def test_kinds_without_a_replayer_are_said_and_not_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreign = {"kind": "clockwork", "format": 1, "config": {}, "steps": []}
    assert main([str(write(tmp_path, a=foreign, b=stored("wheel")[0].content))]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "clockwork: no replayer yet, 1 traces not replayed",
        "conformance: wheel 1/1",
    ]


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("{", 1, "Expecting property name"),
        ('{"kind": "wheel", "format": 2, "config": {}, "steps": []}', 1, "format 2, only 1 is known"),
        ('{"name": "an index"}', 0, "no object with kind, config and steps, passed over"),
    ],
)
def test_files_that_are_no_traces_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: int, said: str
) -> None:
    (tmp_path / "odd.json").write_text(text, encoding="utf-8")
    assert main([str(write(tmp_path, sound=stored("wheel")[0].content))]) == code
    out = capsys.readouterr().out
    assert said in out and "odd.json" in out
    assert out.splitlines()[-1] == "conformance: wheel 1/1"


def test_nothing_replayed_is_not_a_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().out == "conformance: nothing replayed\n"
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "no such file or folder" in capsys.readouterr().err
