"""What workers send each other for a step of an engine that one of them holds: a line of JSON, then blobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from spark_purgatory import errors
from spark_purgatory.core.state.step_log import Step
from spark_purgatory.errors import PurgatoryError


@dataclass(frozen=True)
class Request:
    """A step, and the engine that it is meant for."""

    shard_id: str
    token: str
    next_token: str
    """What the engine has after the step."""
    spec_digest: str
    step: Step
    shards: int
    max_warm_bytes: int
    wants_snapshot: bool = False


@dataclass(frozen=True)
class Answer:
    """What a step led to."""

    outcomes: bytes | None
    counted: dict[str, int]
    """What it added to `calls.counts_of`."""
    due_ms: int | None
    gauges: dict[str, Any]
    tally: dict[str, Any]
    warm_bytes: int
    """What the engine takes in memory."""
    holder: str = ""
    """Address of the worker that holds the engine after the step; empty: none does."""
    snapshot: bytes | None = None


def send_request(connection: Connection, request: Request) -> None:
    """Ask."""
    step = request.step
    counts = (step.watermark_ms, len(step.operations), len(step.events))
    _send(connection, {**vars(request), "step": counts}, [*step.operations, *step.events])


def receive_request(connection: Connection) -> Request:
    """What is asked."""
    fields = json.loads(connection.recv_bytes())
    watermark_ms, *counts = fields["step"]
    operations, events = ([connection.recv_bytes() for _ in range(count)] for count in counts)
    return Request(**{**fields, "step": Step(watermark_ms, operations, events)})


def send_answer(connection: Connection, answer: Answer | PurgatoryError | None) -> None:
    """Answer; None: a miss."""
    if answer is None:
        _send(connection, {"missed": True}, [])
    elif isinstance(answer, PurgatoryError):
        _send(connection, {"error": type(answer).__name__, "message": str(answer)}, [])
    else:
        blobs = {name: getattr(answer, name) for name in ("outcomes", "snapshot")}
        given = [name for name, blob in blobs.items() if blob is not None]
        fields = {name: value for name, value in vars(answer).items() if name not in blobs}
        _send(connection, {"answer": fields, "blobs": given}, [blobs[name] for name in given])


def receive_answer(connection: Connection) -> Answer | None:
    """The answer, None for a miss. Raises the error that the step raised."""
    fields = json.loads(connection.recv_bytes())
    if "error" in fields:
        raise _raised(fields["error"], fields["message"])
    if "missed" in fields:
        return None
    blobs: dict[str, bytes] = {name: connection.recv_bytes() for name in fields["blobs"]}
    return Answer(**fields["answer"], outcomes=blobs.get("outcomes"), snapshot=blobs.get("snapshot"))


def _raised(name: str, message: str) -> PurgatoryError:
    """The error that the holder's step raised."""
    error: PurgatoryError = getattr(errors, name).__new__(getattr(errors, name))
    error.args = (message,)
    return error


def _send(connection: Connection, fields: dict[str, Any], blobs: Sequence[bytes]) -> None:
    connection.send_bytes(json.dumps(fields).encode())
    for blob in blobs:
        connection.send_bytes(blob)
