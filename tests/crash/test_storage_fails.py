"""A disk that takes no byte more, at every write of the sink: named, and nothing lost once it has room again."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from pyspark.errors import PySparkException

from spark_purgatory.errors import PurgatoryError
from spark_purgatory.spark.sink.drain import actions
from tests.support.sink_queries import accumulator, staged_files
from tests.support.sink_streams import Stream, every

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not hasattr(psutil, "RLIMIT_FSIZE"), reason="only Linux limits another process"),
]

FULL_AT = {
    "before stage": r"StagingError: a micro-batch could not be staged in ",
    "before intend": r"StagingError: entry intent=\d could not be written",
    "before commit": r"BufferExhaustedError: table .* took nothing for max_block",
    "before clean up": r"StagingError: entry done=\d could not be written",
    "before return": "File too large",
}
"""By failpoint, from which on nothing can be written: what is said. The last is Spark's own note of the micro-batch."""


@contextmanager
def full_disk_at(failpoint: str, time: int = 1) -> Iterator[None]:
    """From the first, second ... time at a failpoint on, the JVM and this process cannot put a byte into a file."""
    times = 0
    [jvm] = [child for child in psutil.Process().children(recursive=True) if child.name() == "java"]
    both = (jvm, psutil.Process())
    room = jvm.rlimit(psutil.RLIMIT_FSIZE)

    def hook(reached: str) -> None:
        nonlocal times
        times += reached == failpoint
        if times == time:
            for process in both:
                process.rlimit(psutil.RLIMIT_FSIZE, (0, room[1]))

    actions.hook = hook
    try:
        yield
    finally:
        actions.hook = None
        for process in both:
            process.rlimit(psutil.RLIMIT_FSIZE, room)


@pytest.mark.long
def test_a_full_disk_at_every_write_is_named_and_the_rows_arrive_once_it_has_room(stream: Stream) -> None:
    accumulator(stream, max_block="1 second", retry_backoff="100 milliseconds")
    stream.add(1).run(stream.rows())  # The first write unpacks a library to the disk.
    for failpoint, said in FULL_AT.items():
        # The first micro-batch after a drain notes the schema before it is staged.
        time = 1 + (failpoint == "before stage")
        stream.add(time)
        with full_disk_at(failpoint, time), pytest.raises((PySparkException, PurgatoryError)) as raised:
            stream.run(stream.rows())
        assert re.search(said, f"{type(raised.value).__name__}: {raised.value}"), failpoint
    stream.run(stream.rows())
    assert stream.numbers() == every(2 + len(FULL_AT))
    assert staged_files(stream) == []


def test_a_drain_that_fails_is_logged_with_its_cause_and_the_next_attempt_and_so_is_the_recovery(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    accumulator(stream, max_block="1 second", retry_backoff="100 milliseconds")
    caplog.set_level(logging.INFO, "spark_purgatory")
    stream.add(1)
    with full_disk_at("before commit"), pytest.raises((PySparkException, PurgatoryError)):
        stream.run(stream.rows())
    retries = [line for line in caplog.messages if "next attempt in" in line]
    assert re.match(r"drain \d+ to table .* failed \(attempt 1\), next attempt in \d+ ms: .*", retries[0])
    caplog.clear()
    assert stream.run(stream.rows()).numbers() == every(1)
    assert any("drain 0 of an earlier run is not in the table's history" in line for line in caplog.messages)
