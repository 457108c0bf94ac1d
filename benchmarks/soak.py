"""`python -m benchmarks.soak`: half an hour of the log host with millions waiting, and what it keeps meanwhile.

Workload L, series "follows": batch 0 brings the operations that wait, and every trigger brings one more minute of event
time, in which about as many arrive as end. So what the query keeps should level off. Every few seconds are told: the
memory of the Python workers and of the JVM, the files and bytes of the checkpoint, and the milliseconds of the
last micro-batch. The picture has all of them over time.

Exit code: 0; 1 if an outcome was wrong or if memory or files grew beyond `MOST_GROWTH` in the second half.
"""

from __future__ import annotations

import json as json_format
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import psutil
import typer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import harness
from benchmarks.contenders import Contender
from benchmarks.long_results import write_document
from benchmarks.long_run import contenders, link_inputs
from benchmarks.process_tree import processes, shared_out_bytes, worker_bytes
from benchmarks.report import machine, machine_line
from benchmarks.workload_l import Ended, Shape, ended_at_last, prepared
from benchmarks.workload_w import BATCH_US, COMPLETING, START_US, Draw, Workload

RESULTS = harness.ROOT / "bench-results"
MEAN_WAIT = (1 - COMPLETING) / 2 + COMPLETING / 4
"""Of the longest delay, as an operation of a later batch waits."""
LEVEL_FROM, LEVEL_UNTIL = 0.5, 0.75
"""The third quarter of the time is compared with the last one."""
MOST_GROWTH = 1.1
POLL_S = 0.2


@dataclass(frozen=True)
class Sample:
    """What was seen at a moment."""

    seconds: float
    """Since batch 0 was done."""
    batch: int
    ms: int
    """Of that micro-batch."""
    waiting: int
    worker_bytes: int
    jvm_bytes: int
    checkpoint_files: int
    checkpoint_bytes: int


LEVELLED: dict[str, Callable[[Sample], float]] = {
    "worker memory": lambda at: at.worker_bytes,
    "checkpoint files": lambda at: at.checkpoint_files,
    "checkpoint bytes": lambda at: at.checkpoint_bytes,
}


def shape_of(waiting: int, minutes: float, trigger_seconds: float) -> Shape:
    """As many micro-batches as triggers in that time; as many operations arrive as end."""
    batches = max(round(minutes * 60 / trigger_seconds), 4)
    longest = batches + 3
    return Shape(waiting, max(round(waiting / (MEAN_WAIT * longest)), 1), batches, longest)


def waiting_by_batch(drawn: Draw) -> list[int]:
    """Operations that wait after each batch, if each ends in the batch that has its event or its deadline."""
    end_batch = np.where(drawn.completes, drawn.event_batch, (drawn.deadline_us - START_US) // BATCH_US)
    arrived = np.bincount(drawn.operation_batch, minlength=drawn.batches)
    ended = np.bincount(np.minimum(end_batch, drawn.batches), minlength=drawn.batches)[: drawn.batches]
    return [int(count) for count in np.cumsum(arrived - ended)]


def soak(
    spark: SparkSession,
    contender: Contender,
    workload: Workload,
    shards: int,
    trigger_seconds: float,
    sample_seconds: float,
    folder: Path,
    say: Callable[[Sample], None],
) -> tuple[list[Sample], Ended]:
    """Feed a file a side at every trigger; returns what was sampled, and what ended."""
    link_inputs(workload.folder, folder, 1)
    checkpoint = folder / "checkpoint"
    query = started(spark, contender, folder, checkpoint, shards, trigger_seconds)
    waiting = waiting_by_batch(workload.drawn)
    try:
        wait_for(query, 1)
        begun = fed_at = sampled_at = time.monotonic()
        fed, samples = 1, []
        while fed < workload.drawn.batches or files_read(query) < fed:
            if fed < workload.drawn.batches and time.monotonic() >= fed_at:
                link_inputs(workload.folder, folder, fed + 1)
                fed, fed_at = fed + 1, fed_at + trigger_seconds
            if time.monotonic() >= sampled_at:
                samples.append(sample(query, waiting, checkpoint, time.monotonic() - begun))
                say(samples[-1])
                sampled_at += sample_seconds
            still_runs(query)
            time.sleep(POLL_S)
        query.processAllAvailable()
        counts = harness.counters_of([dict(report) for report in query.recentProgress], harness.OBSERVATION)
    finally:
        query.stop()
    return samples, Ended(*(counts.get(f"{status}{of}", 0) for of in ("", "_numbers") for status in harness.STATUSES))


def started(
    spark: SparkSession, contender: Contender, folder: Path, checkpoint: Path, shards: int, trigger_seconds: float
) -> StreamingQuery:
    """The query, with outcomes counted as all benchmarks count them."""
    number = F.substring("op_id", len("order-") + 1, 20).cast("bigint")
    counters = []
    for status in harness.STATUSES:
        matches = F.col("status") == status
        counters += [F.count_if(matches).alias(status), F.sum(F.when(matches, number)).alias(f"{status}_numbers")]
    return (
        contender.build(spark, folder, shards)
        .observe(harness.OBSERVATION, *counters)
        .writeStream.foreachBatch(harness.to_noop)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=f"{trigger_seconds} seconds")
        .start()
    )


def wait_for(query: StreamingQuery, files: int) -> None:
    """Until so many files a side are read."""
    while files_read(query) < files:
        still_runs(query)
        time.sleep(POLL_S)


def still_runs(query: StreamingQuery) -> None:
    """Raise what ended the query."""
    if not query.isActive:
        raise RuntimeError(f"the query ended: {query.exception()}")


def files_read(query: StreamingQuery) -> int:
    """Files a side of the micro-batches that are done: Spark numbers them from 0."""
    progress = query.lastProgress
    if progress is None:
        return 0
    ends = [source["endOffset"] for source in progress["sources"]]
    return min(int(json_format.loads(end)["logOffset"]) + 1 if end else 0 for end in ends)


def sample(query: StreamingQuery, waiting: Sequence[int], checkpoint: Path, seconds: float) -> Sample:
    """What is there now."""
    progress: Any = query.lastProgress
    files, size = files_below(checkpoint)
    return Sample(
        seconds=round(seconds, 1),
        batch=progress["batchId"],
        ms=progress["durationMs"]["triggerExecution"],
        waiting=waiting[files_read(query) - 1],
        worker_bytes=worker_bytes(),
        jvm_bytes=jvm_bytes(),
        checkpoint_files=files,
        checkpoint_bytes=size,
    )


def files_below(folder: Path) -> tuple[int, int]:
    """How many files, and their bytes."""
    count = total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(path, name)).st_size
            except FileNotFoundError:  # Spark removed it meanwhile.
                continue
            count += 1
    return count, total


def jvm_bytes() -> int:
    """Memory of the JVM below this process."""
    total = 0
    for process in processes()[1:]:
        try:
            if process.name() == "java":
                total += shared_out_bytes(process)
        except psutil.Error:
            continue
    return total


def growth(samples: Sequence[Sample]) -> dict[str, float]:
    """The median of the last quarter of the time over that of the third one."""
    end = samples[-1].seconds
    third = [at for at in samples if LEVEL_FROM * end <= at.seconds < LEVEL_UNTIL * end]
    last = [at for at in samples if at.seconds >= LEVEL_UNTIL * end]
    return {name: median(map(of, last)) / max(median(map(of, third)), 1) for name, of in LEVELLED.items()}


def line_of(at: Sample) -> str:
    """A sample, for the terminal."""
    return (
        f"{at.seconds:>7,.0f} s  micro-batch {at.batch:>4}  {at.ms:>6,} ms  {at.waiting:>9,} wait  workers "
        f"{at.worker_bytes / 1e6:>6,.0f} MB  JVM {at.jvm_bytes / 1e6:>6,.0f} MB  checkpoint {at.checkpoint_files:>6,} "
        f"files {at.checkpoint_bytes / 1e6:>7,.1f} MB"
    )


def draw_picture(path: Path, samples: Sequence[Sample]) -> None:
    """Four panels over the minutes, without micro-batch 0, which brings all that waits at first."""
    from matplotlib import rc_context  # Only those who want a picture need it.
    from matplotlib.figure import Figure

    from tools.pictures import TEXT_STYLE, save

    samples = samples[1:]
    minutes = [at.seconds / 60 for at in samples]
    panels: list[tuple[str, list[float]]] = [
        ("operations that wait, millions", [at.waiting / 1e6 for at in samples]),
        ("a micro-batch, seconds", [at.ms / 1000 for at in samples]),
        ("Python workers, GB", [at.worker_bytes / 1e9 for at in samples]),
        ("files of the checkpoint", [at.checkpoint_files for at in samples]),
    ]
    with rc_context(TEXT_STYLE):
        figure = Figure(figsize=(10, 6), layout="constrained")
        for axes, (title, values) in zip(figure.subplots(2, 2, sharex=True).flat, panels, strict=True):
            axes.plot(minutes, values, color="#1f6f8b", linewidth=1)
            axes.set_title(title, fontsize=10, loc="left")
            axes.set_ylim(0, max(values) * 1.15)
            axes.grid(True, linewidth=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        for axes in figure.axes[2:]:
            axes.set_xlabel("minutes")
        save(figure, path)


def main(
    waiting: Annotated[int, typer.Option(min=1, help="How many operations wait.")] = 2_000_000,
    minutes: Annotated[float, typer.Option(help="How long it runs.")] = 30,
    trigger: Annotated[float, typer.Option(help="Seconds from one micro-batch to the next.")] = 2,
    shards: Annotated[int, typer.Option(min=1)] = 8,
    host: Annotated[str, typer.Option(help="log or blob.")] = "log",
    memory: Annotated[str, typer.Option(help="Heap of the JVM.")] = "3g",
    json: Annotated[Path, typer.Option(help="Where all numbers go.")] = RESULTS / "soak.json",
    picture: Annotated[Path, typer.Option(help="Where the picture goes.")] = RESULTS / "soak.svg",
) -> None:
    """Run, and see whether memory and files level off."""
    shape = shape_of(waiting, minutes, trigger)
    workload = prepared(shape, harness.SEED, harness.WORK)
    facts = machine()
    print(machine_line(facts))
    print(f"{shape.batches} micro-batches with {shape.operations:,} operations each, one every {trigger:g} s")
    contender = contenders(shape.minutes)[host]
    spark = harness.session(memory, settings={**harness.local_sockets(), **contender.settings})
    say = partial(print, flush=True)
    try:
        with TemporaryDirectory(prefix="soak-", dir=harness.WORK) as folder:
            samples, found = soak(
                spark, contender, workload, shards, trigger, 10 * trigger, Path(folder), lambda at: say(line_of(at))
            )
    finally:
        spark.stop()
    due = ended_at_last(workload.drawn, contender.grace_ms)
    grown = growth(samples)
    write_document(json, {"machine": facts, "growth": grown, "samples": [asdict(at) for at in samples]})
    draw_picture(picture, samples)
    for name, ratio in grown.items():
        print(f"{name}: the last quarter of the time is {ratio:.2f} of the third one")
    print(f"numbers: {json}\npicture: {picture}")
    if found != due:
        print(f"wrong outcomes: {found} came out, {due} was expected")
    raise typer.Exit(int(found != due or max(grown.values()) > MOST_GROWTH))


if __name__ == "__main__":
    typer.run(main)
