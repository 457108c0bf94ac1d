"""What all worlds of the law share."""

import random
from collections.abc import Iterator

import pytest

from spark_purgatory.core.engine import deduplication, shard_events
from spark_purgatory.core.events import event_log
from spark_purgatory.core.kafka import purgatory, timing_wheel

FLOORS = [
    *((module, "FORGET_FLOOR") for module in (event_log, shard_events, deduplication)),
    (purgatory, "COMPACT_FLOOR"),
    (timing_wheel, "DROP_FLOOR"),
]
"""Sizes below which an engine does not tidy up."""


@pytest.fixture(autouse=True)
def engines_tidy_up_at_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Small worlds forget, compact and drop as large ones do: in each test some of it, so that none hides another."""
    rng = random.Random(request.node.nodeid)
    with pytest.MonkeyPatch.context() as patch:
        for module, name in FLOORS:
            if rng.random() < 0.5:
                patch.setattr(module, name, 0)
        yield
