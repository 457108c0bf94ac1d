"""Which cases of a test run at each commit, and which in `make test-all` and `make crash` alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import hypothesis
import pytest

EVERY_CASE = bool(os.environ.get("EVERY_CASE"))
"""As `make test-all` and `make crash` set it."""


def now_and_then(*cases: Any) -> list[Any]:
    """The cases as parameters that `make test` leaves out, for another one is much like each of them."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long) for case in cases]


def each_commit(cases: Iterable[Any], keeps: Callable[[Any], bool]) -> list[Any]:
    """All cases in their order; those that `keeps` is false for run in `make test-all` alone."""
    return [case if keeps(case) else now_and_then(case)[0] for case in cases]


def examples(some: int, every: int) -> hypothesis.settings:
    """So many random cases of a test at each commit, and so many where every case runs."""
    return hypothesis.settings(
        max_examples=every if EVERY_CASE else some,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
