"""What rows hold is nobody's business: not in an error, not in a metric, not in the name of a file."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_purgatory import (
    Completions,
    Operations,
    Purgatory,
    RecordAccumulator,
    criteria,
    metrics,
    monitor,
    pending,
)
from tests.support.sink_queries import wait_until
from tests.support.stream_rows import event, operation, purgatory
from tests.support.streams import Landing

CANARY = "canary-7f3a"


@pytest.mark.long
def test_rows_that_pass_leave_no_trace_in_progress_or_names_of_files(spark: SparkSession, tmp_path: Path) -> None:
    ids = [f"{CANARY}-{n}" for n in range(8)]
    landing = Landing(tmp_path).add([operation(id, 1, 90, row=f"row of {id}") for id in ids], [event(ids[0], 2)])
    sink = RecordAccumulator(path=str(tmp_path / "table"))
    outcomes, trigger = purgatory().resolve(*landing.frames(spark)), {"availableNow": True}
    query = sink.write_stream(outcomes, checkpoint=str(landing.checkpoint), trigger=trigger)
    query.awaitTermination()
    assert sink.read(spark).where(f"id like '{CANARY}%' and row like '%{CANARY}%'").count() == 1
    progress = query.recentProgress
    assert progress
    assert CANARY not in str(progress)
    names = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")]
    assert len(names) > 10
    assert not [name for name in names if CANARY in name]


def test_a_limit_of_the_purgatory_names_no_payload(spark: SparkSession) -> None:
    rows = spark.range(10).selectExpr(f"concat('{CANARY}', id) AS text", "timestamp_seconds(id) AS at")
    purgatory = Purgatory(
        operations=Operations(id="text", keys="text", created="at", timeout="1 minute", watermark="0 seconds"),
        completions=Completions(key="text", time="at", watermark="0 seconds"),
        criterion=criteria.any_key(),
        max_pending_per_shard=1,
        shards=1,
    )
    outcomes = purgatory.resolve(rows, rows.where("at is null"))
    with pytest.raises(PySparkException, match="max_pending_per_shard") as raised:
        outcomes.collect()
    assert CANARY not in "".join(traceback.format_exception(raised.value))


def cut(checkpoint: Path) -> None:
    for path in [*checkpoint.glob("state/0/*/*.delta"), *checkpoint.glob("state/0/*/*.snapshot")]:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


HARMS: dict[str, Callable[[Path], object]] = {
    "its folder 'state' is gone or empty": lambda checkpoint: shutil.rmtree(checkpoint / "state"),
    "cannot be read from its checkpoint: ": lambda checkpoint: shutil.rmtree(checkpoint / "state" / "0" / "0"),
    "could not be read for its metrics: ": cut,
}


def keep_canaries(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """State of a query that is not ours, and looks like it."""
    state.update((CANARY.encode() * 9,))
    yield pd.DataFrame({"id": [f"{CANARY} {len(list(frames))}"]})


def run_to_end(outcomes: DataFrame, checkpoint: Path) -> Any:
    writer = outcomes.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


@pytest.mark.long
def test_no_log_line_of_a_monitor_shows_a_row(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"{CANARY}-{n}" for n in range(8)]
    landing = Landing(tmp_path / "rows").add(
        [operation(name, 1, 90, row=f"O'{CANARY} 7") for name in names],
        [event(name, 2) for name in (*names[:2], f"{CANARY}-unknown")],
    )
    query = run_to_end(purgatory().resolve(*landing.frames(spark)), landing.checkpoint)
    assert (
        pending(spark, checkpoint=str(landing.checkpoint), columns=["row"]).where(f"row like '%{CANARY}%'").count() == 6
    )

    def broken(sample: metrics.Sample) -> None:
        raise RuntimeError("the disk is full")

    def told(query: Any, checkpoint: Path, expected: str) -> str:
        """What the log has once it has that."""
        caplog.clear()
        samples: list[metrics.Sample] = []
        monitor(query, samples.append, broken, checkpoint=str(checkpoint))
        wait_until(lambda: expected in caplog.text and "the disk is full" in caplog.text, query)
        return f"{caplog.text} {[sample.flat() for sample in samples]}"

    said = [told(query, landing.checkpoint, "a reporter of query")]
    for number, (expected, harm) in enumerate(HARMS.items()):
        copy = tmp_path / str(number)
        shutil.copytree(landing.checkpoint, copy)
        harm(copy)
        said.append(told(query, copy, expected))
    groups = landing.frames(spark)[0].groupBy("key")
    strange = groups.applyInPandasWithState(keep_canaries, "id string", "blob binary", "append", "NoTimeout")
    query = run_to_end(strange, tmp_path / "strange")
    said.append(told(query, tmp_path / "strange", "so it is damaged, or of another program"))
    leaks = [line for lines in said for line in lines.splitlines() if CANARY[:8] in line]
    assert not leaks, leaks[:5]
