"""What workers send each other for a step of an engine that one of them holds: a line of JSON, then blobs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from spark_purgatory import errors
from spark_purgatory.core.state.step_log import Step
from spark_purgatory.errors import PurgatoryError

MOST_LINE_BYTES = 1 << 20
MOST_BLOB_BYTES = (1 << 31) - 1
"""The longest binary value that Spark has."""


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
    with _understood():
        fields = json.loads(connection.recv_bytes(MOST_LINE_BYTES))
        watermark_ms, *counts = fields["step"]
        operations, events = ([connection.recv_bytes(MOST_BLOB_BYTES) for _ in range(count)] for count in counts)
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
    with _understood():
        fields = json.loads(connection.recv_bytes(MOST_LINE_BYTES))
        if "missed" in fields:
            return None
        if "error" not in fields:
            blobs = {name: connection.recv_bytes(MOST_BLOB_BYTES) for name in fields["blobs"]}
            return Answer(**fields["answer"], outcomes=blobs.get("outcomes"), snapshot=blobs.get("snapshot"))
        error: PurgatoryError = PurgatoryError.__new__(getattr(errors, fields["error"]))
        error.args = (str(fields["message"]),)
    raise error


@contextmanager
def _understood() -> Iterator[None]:
    """Raise OSError for a message that is not one of these: its sender counts as lost."""
    try:
        yield
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise OSError(f"a message of another worker cannot be understood ({type(error).__name__})") from error


def _send(connection: Connection, fields: dict[str, Any], blobs: Sequence[bytes]) -> None:
    connection.send_bytes(json.dumps(fields).encode())
    for blob in blobs:
        connection.send_bytes(blob)
