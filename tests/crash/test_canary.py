"""What rows hold is nobody's business: not in an error, not in a metric, not in the name of a file."""

from __future__ import annotations

import json
import shutil
import tempfile
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
from tests.support.canary_child import CANARY as PURGATORY_CANARY
from tests.support.children import run_module
from tests.support.sink_queries import wait_until
from tests.support.sink_streams import Stream
from tests.support.stream_rows import event, operation, purgatory
from tests.support.streams import Landing

CANARY = "canary-7f3a"


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path).add(1)


@pytest.mark.long
def test_rows_that_pass_leave_no_trace_in_progress_or_names_of_files(stream: Stream) -> None:
    rows = stream.rows().selectExpr("n", f"concat('{CANARY}', n) AS text")
    sink = RecordAccumulator(path=str(stream.folder / "table"))
    query = sink.write_stream(rows, checkpoint=str(stream.checkpoint), trigger={"availableNow": True})
    query.awaitTermination()
    assert sink.read(stream.spark).where(f"text like '{CANARY}%'").count() == 10
    progress = query.recentProgress
    assert progress
    assert CANARY not in str(progress)
    names = [str(path.relative_to(stream.folder)) for path in stream.folder.rglob("*")]
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


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("host", ["applyInPandasWithState", "transformWithState"])
def test_a_purgatory_leaves_no_trace_of_ids_keys_and_payload(host: str, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="sp") as temporary:  # A path that is short enough for sockets.
        printed = run_module("tests.support.canary_child", host, str(tmp_path), TMPDIR=temporary)
    assert json.loads((tmp_path / "told.json").read_text(encoding="utf-8")) == {"COMPLETED": 4, "EXPIRED": 4}
    assert "max_pending_per_shard" in printed and "numInputRows" in printed and "operations_received_total" in printed
    assert "MicroBatchExecution" in printed, "Spark's log at INFO"
    assert "/state/" in printed and "outcomes/part-" in printed, "names of files"
    assert PURGATORY_CANARY not in printed
