"""Our engine on workload W, one shard of it, step by step in this process: with a column of the events, or without.

It is given what the exchange gives it, and does what a host does with it, but for Spark:

saved   as the blob host: restored from its bytes before each step, and saved after it
kept    as the log host: it stays in memory, and each step is written as an entry of the log
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from benchmarks.engine_memory import SPEC, packed_events, packed_operations
from benchmarks.harness import WrongOutcomeError
from benchmarks.workload_w import TAIL_BATCHES, Draw, notes
from spark_purgatory.core.arrays.value_column import mix64
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.spec.engine_spec import Evidence
from spark_purgatory.core.state.engine_snapshot import restore, save
from spark_purgatory.core.state.step_log import Step, take_step, write_entry
from spark_purgatory.spark.host.calls import packed
from spark_purgatory.spark.host.exchange import to_blob

HOSTS = ("saved", "kept")
SHARDS = 8
WITH_NOTE = replace(SPEC, evidence=Evidence(), event_columns=pa.schema([pa.field("note", pa.string())]))
"""Outcomes carry a text of 20 random letters of the event that decided."""


@dataclass(frozen=True)
class TimedSteps:
    """A run over all steps."""

    cpu_s: float
    """Of what a host does: read, step, pack, and the state."""
    rows: int
    completed: int
    expired: int
    state_bytes: int
    """The most after a step."""
    kept_events: int
    """How many events that state has."""


def shard_steps(drawn: Draw, with_note: bool) -> list[Step]:
    """What the first of `SHARDS` is given, a step for each micro-batch, those with events only at the end included."""
    numbers = np.flatnonzero(mix64(np.arange(len(drawn))).view(np.uint64) % np.uint64(SHARDS) == 0)
    completing = numbers[drawn.completes[numbers]]
    operation_batch, event_batch = drawn.operation_batch[numbers], drawn.event_batch[completing]
    steps, clock_us = [], 0
    for batch in range(drawn.batches + TAIL_BATCHES):
        mine, events = numbers[operation_batch == batch], completing[event_batch == batch]
        operations = packed_operations(mine, drawn.created_us[mine], drawn.deadline_us[mine])
        table = packed_events(events, drawn.event_us[events])
        if with_note:
            table = table.append_column("p0", notes(len(events)))
        blobs = [[to_blob(each).to_pybytes()] if len(each) else [] for each in (operations, table)]
        steps.append(Step(clock_us // 1000, *blobs))
        if len(mine):
            clock_us = min(int(drawn.created_us[mine].max()), int(drawn.event_us[events].max()))
    return steps


def run_steps(steps: Sequence[Step], with_note: bool, host: str) -> TimedSteps:
    """Take all steps; raises `WrongOutcomeError` where an outcome lacks its event."""
    spec = WITH_NOTE if with_note else SPEC
    engine, blob, decided = EventTimePurgatory(spec), b"", list[pa.RecordBatch]()
    largest, kept_events = 0, 0
    started = time.process_time()
    for step in steps:
        if host == "saved":
            engine = restore(spec, blob, SHARDS) if blob else engine
            outcomes = take_step(engine, step)
            blob = save(engine, SHARDS)
            size = len(blob)
        else:
            outcomes = take_step(engine, step, is_kept=True)
            size = len(write_entry(step))
        packed(outcomes)
        if size > largest:
            largest, kept_events = size, len(engine.events.log)
        decided += outcomes
    cpu_s = time.process_time() - started
    if with_note:
        check_notes(decided)
    completed, expired, *_ = engine.outcomes.tally.by_status
    received = engine.outcomes.tally.received + engine.outcomes.tally.events_received
    return TimedSteps(cpu_s, received, completed, expired, largest, kept_events)


def check_notes(outcomes: Sequence[pa.RecordBatch]) -> None:
    """Raise `WrongOutcomeError` where a COMPLETED outcome has no event with a text, or another one has."""
    for batch in outcomes:
        status, event = batch.column("status"), batch.column("event")
        if (status.to_numpy(zero_copy_only=False) == "COMPLETED").sum() != len(event) - event.null_count:
            raise WrongOutcomeError("an outcome lacks the event that decided: no time is reported")
