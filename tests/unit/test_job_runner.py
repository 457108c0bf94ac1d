"""What a job does while its queries run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_purgatory.job import runner
from spark_purgatory.job.runner import _follow
from spark_purgatory.job.stopping import StopRequest


class Query:
    """A query that ends when it is stopped, or has failed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.isActive = error, error is None

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.isActive = False

    def awaitTermination(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("failed", [0, 1], ids=["the job's", "that of the dead letters"])
def test_a_query_that_fails_ends_the_job_with_its_error(failed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[Any] = [Query(), Query()]
    queries[failed] = Query(RuntimeError("the disk is full"))
    polls = iter(range(100))
    progress: Any = SimpleNamespace(update=lambda query: next(polls), stopping=lambda: None)
    monkeypatch.setattr(runner, "POLL_SECONDS", 0)
    with pytest.raises(RuntimeError, match="the disk is full"):
        _follow(queries[0], queries[1], progress, StopRequest())
    assert failed or not queries[0].isActive
