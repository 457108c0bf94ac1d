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

from spark_purgatory.accumulator.policy import ExponentialBackoff
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


# --- the engine answers as Kafka does ---------------------------------------------------------------


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
        backoff_ms = ExponentialBackoff(trace.config["retry_backoff_ms"], trace.config["retry_backoff_max_ms"])
        table_ms = trace.config["backoff_table_ms"]
        assert [backoff_ms(retry) for retry in range(len(table_ms))] == table_ms, trace.source


# --- the runner sees what differs -------------------------------------------------------------------

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


# --- what the recorded traces do not hold: threads that wait, splits, epochs ------------------------


def test_blocked_requests_are_compared_by_id() -> None:
    def state(available: int, queued: int, pooled: int = 0) -> dict[str, int]:
        return {"available": available, "unallocated": available - 8 * pooled, "pooled": pooled, "queued": queued}

    served = {"3": {"capacity": 8}, "4": {"err": None, "capacity": 9}}
    steps: list[dict[str, Any]] = [
        {"op": "allocate", "id": 0, "size": 15, "max_block_ms": 0, "err": None, "capacity": 15, **state(5, 0)},
        {"op": "allocate_wait", "id": 1, "size": 21, "blocked": False, "woken": {"1": {"err": "too_large"}}},
        {"op": "allocate_wait", "id": 2, "size": 4, "blocked": False, "woken": {"2": {"err": None, "capacity": 4}}},
        {"op": "allocate_wait", "id": 3, "size": 8, "blocked": True, **state(1, 1)},
        {"op": "allocate_wait", "id": 4, "size": 9, "blocked": True, "woken": {}, **state(1, 2)},
        {"op": "allocate", "id": 5, "size": 2, "max_block_ms": 1, "err": "exhausted", **state(0, 2)},
        {"op": "deallocate", "id": 2, "capacity": 4, "size": 4, **state(0, 2)},
        {"op": "deallocate", "id": 0, "capacity": 15, "size": 15, "woken": served, **state(3, 0)},
        {"op": "deallocate", "id": 3, "capacity": 8, "size": 8, "woken": {}, **state(11, 0, pooled=1)},
        {"op": "allocate_wait", "id": 6, "size": 20, "blocked": True},
        {"op": "close", "woken": {"6": {"err": "closed", "capacity": None}}, **state(11, 0, pooled=1)},
        {"op": "allocate", "id": 7, "size": 1, "max_block_ms": 0, "err": "closed"},
    ]
    content = {"kind": "bufferpool", "config": {"memory": 20, "poolable_size": 8, "has_waiters": True}, "steps": steps}
    outcome = replay(Trace("waiters", content))
    assert outcome.mismatch is None, str(outcome.mismatch)
    assert not outcome.unknown
    steps[7]["woken"] = {"3": {"capacity": 8}}
    spoilt_outcome = replay(Trace("waiters", content)).mismatch
    assert spoilt_outcome is not None and spoilt_outcome.op == "deallocate"


ACCUMULATOR = {
    "partitions": 2,
    "nodes": 2,
    "batch_size": 200,
    "linger_ms": 10,
    "buffer_memory": 400,
    "retry_backoff_ms": 50,
    "retry_backoff_max_ms": 50,
    "backoff_table_ms": [50] * 8,
    "delivery_timeout_ms": 1000,
    "start_ms": 100,
    "leaders": [0, 0],
    "epochs": [1, None],
    "sender_mutes": True,
}


def append(partition: int, size: int, op: str = "append", **answers: Any) -> dict[str, Any]:
    step = {"op": op, "p": partition, "key_size": None, "value_size": size, "ts": 100}
    return {**step, **({"wait_id": 0} if op == "append_wait" else {"max_block_ms": 0}), **answers}


def drained(*batches: dict[str, int]) -> dict[str, Any]:
    muted = [batch["p"] for batch in batches]
    return {"op": "drain", "nodes": [0], "max_size": 10**6, "batches": {"0": list(batches)}, "muted": muted}


def batch(number: int, partition: int, records: int, size: int, attempts: int = 0) -> dict[str, int]:
    return {"b": number, "p": partition, "records": records, "bytes": size, "attempts": attempts, "created": 100}


def test_splits_epochs_and_appends_that_wait_are_replayed() -> None:
    steps: list[dict[str, Any]] = [
        append(0, 50, err=None, full=False, new=True, bytes=118, b=0),
        append(0, 50, err=None, full=False, new=False, bytes=57, b=0),
        append(1, 100, err=None, full=False, new=True, bytes=170, b=1),
        {"op": "flush", "flush_id": 0, "awaits": [1, 0], "flushing": True},
        append(1, 100, "append_wait", blocked=True, queued=1),
        drained(batch(0, 0, 2, 175), batch(1, 1, 1, 170)),
        {"op": "retry", "b": 0, "outcome": "reenqueued", "unmuted": 0},
        {"op": "ready", "nodes": [], "next_ms": 50, "unknown_leader": False},
        {"op": "leader", "p": 0, "node": 0, "epoch": 2},
        {"op": "ready", "nodes": [0], "next_ms": None, "unknown_leader": False},
        drained(batch(0, 0, 2, 175, attempts=1)),
        {
            "op": "split",
            "b": 0,
            "into": [batch(2, 0, 2, 175)],
            "unblocked": {"err": None, "full": False, "new": True, "bytes": 170, "b": 3},
            "unmuted": 0,
            "queued": 0,
        },
        drained(batch(2, 0, 2, 175)),
        {"op": "split", "b": 2, "into": [batch(4, 0, 1, 118), batch(5, 0, 1, 118)], "unmuted": 0, "q": [2, 1]},
        {"op": "complete", "b": 1, "ret": True, "unmuted": 1, "flushing": True},
        drained(batch(3, 1, 1, 170), batch(4, 0, 1, 118)),
        {"op": "abort_incomplete", "aborted": [3, 4, 5], "flushed": [0], "available": 200, "q": [0, 0]},
        {"op": "split", "b": 4, "into": [], "available": 200},
        {"op": "retry", "b": 3, "outcome": "already_done", "available": 400},
        {"op": "close"},
        append(0, 1, "append_wait", blocked=False, unblocked={"wait_id": 0, "err": "closed"}),
    ]
    content = {"kind": "accumulator", "config": ACCUMULATOR, "steps": steps}
    outcome = replay(Trace("by hand", content))
    assert outcome.mismatch is None, str(outcome.mismatch)


# --- the command ------------------------------------------------------------------------------------


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
