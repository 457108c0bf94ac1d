"""Which cases of a test run at each commit, and which in `make test-all` alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def now_and_then(*cases: Any) -> list[Any]:
    """The cases as parameters that `make test` leaves out, for another one is much like each of them."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long) for case in cases]


def each_commit(cases: Iterable[Any], keeps: Callable[[Any], bool]) -> list[Any]:
    """All cases in their order; those that `keeps` is false for run in `make test-all` alone."""
    return [case if keeps(case) else now_and_then(case)[0] for case in cases]
