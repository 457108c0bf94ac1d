"""What tests wait for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], seconds: float = 600) -> None:
    """Wait for what another thread or process does; AssertionError if it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not reached"
        time.sleep(0.05)
