"""What all worlds of the law share."""

from collections.abc import Iterator

import pytest

from spark_purgatory.core.engine import ended_ranges, seen_ids
from spark_purgatory.core.events import event_log


@pytest.fixture(autouse=True, scope="module")
def engines_forget_at_once() -> Iterator[None]:
    """Small worlds forget events and ids as large ones do, and not from a thousand on."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (event_log, ended_ranges, seen_ids):
            patch.setattr(module, "FORGET_FLOOR", 0)
        yield
