"""What all worlds of the law share."""

import random
from collections.abc import Iterator
from time import perf_counter

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


@pytest.fixture(scope="module", autouse=True)
def told(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tell what was compared, as the module has counted it in `SEEN`."""
    began = perf_counter()
    yield
    if seen := getattr(request.module, "SEEN", None):
        capture = request.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            name = request.module.__name__.rpartition(".")[2]
            print(f"\n{name}: {seen.total():,} compared, {dict(seen)}, in {perf_counter() - began:.0f} s")
