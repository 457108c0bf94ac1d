"""The metrics: their names, units, meanings, and Kafka's names if Kafka has them; a sample of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from spark_purgatory.schema import DECIDED, EVENT_REJECTIONS, REJECTIONS

PREFIX = "spark_purgatory_"  # before each name in Prometheus and OpenTelemetry


@dataclass(frozen=True)
class Metric:
    """One metric. A counter only grows while its query runs; a gauge is a current amount."""

    name: str
    unit: str
    text: str
    kafka: str = ""
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()  # labels besides ``query``, each with its values
    source: Literal["batch", "state", "sink"] = "batch"  # per micro-batch, from the checkpoint at times, or by the sink

    @property
    def kind(self) -> Literal["counter", "gauge"]:
        """The kind of metric in Prometheus."""
        return "counter" if self.name.endswith("_total") else "gauge"


METRICS: tuple[Metric, ...] = (
    Metric("operations_received_total", "operations", "Operations that arrived."),
    Metric("outcomes_total", "operations", "Operations that got their outcome.", labels=(("status", DECIDED),)),
    Metric("rejected_total", "operations", "REJECTED operations by reason.", labels=(("reason", REJECTIONS),)),
    Metric("events_received_total", "events", "Events that arrived."),
    Metric("events_late_total", "events", "Events that arrived with a time at or before the watermark."),
    Metric("operations_late_total", "operations", "Operations that arrived at or before the watermark."),
    Metric("events_rejected_total", "events", "Rejected events by reason.", labels=(("reason", EVENT_REJECTIONS),)),
    Metric("batches_total", "micro-batches", "Micro-batches that ran."),
    Metric("batch_duration_ms", "ms", "How long the last micro-batch took."),
    Metric("batch_input_rows", "rows", "Rows that the last micro-batch read."),
    Metric("source_lag_records", "records", "Kafka's records that were not read yet, of all topics.", "records-lag"),
    Metric("state_bytes_written", "bytes", "State that the last micro-batch wrote."),
    Metric("watermark_lag_ms", "ms", "Clock time minus watermark. It grows while a source is silent or behind."),
    Metric("pending", "operations", "Operations that wait.", "NumDelayedOperations", source="state"),
    Metric("watched", "entries", "Entries in all watch lists.", "PurgatorySize", source="state"),
    Metric("state_bytes", "bytes", "Bytes of all shards' states.", source="state"),
    Metric("shards", "shards", "Shards that have a state.", source="state"),
    Metric("largest_shard_state_bytes", "bytes", "Bytes of the largest shard's state.", source="state"),
    Metric("shard_skew", "ratio", "Pending operations of the fullest shard, divided by the mean.", source="state"),
    Metric("oldest_pending_age_ms", "ms", "Watermark minus the earliest created time that waits.", source="state"),
    Metric("next_deadline_ms", "ms", "Time of the next outcome, minus watermark; 0 if due.", source="state"),
    Metric("staged_bytes", "bytes", "Bytes staged for the table.", source="sink"),
    Metric("buffer_available_bytes", "bytes", "Free part of buffer_memory.", "buffer-available-bytes", source="sink"),
    Metric("staged_age_ms", "ms", "Age of the oldest staged rows.", "record-queue-time-max", source="sink"),
    Metric("linger_ms", "ms", "How long rows may wait for their file.", "linger.ms", source="sink"),
    Metric("drain_duration_ms", "ms", "How long the last drain took.", "request-latency-avg", source="sink"),
    Metric("draining_rows", "rows", "Rows of the drain that is running.", source="sink"),
    Metric("drains_total", "drains", "Drains that were committed.", source="sink"),
    Metric("drained_rows_total", "rows", "Rows that these drains committed.", "record-send-total", source="sink"),
    Metric("drained_files_total", "files", "Files that these drains committed.", source="sink"),
    Metric("drained_bytes_total", "bytes", "Bytes of these files.", "outgoing-byte-total", source="sink"),
    Metric("file_bytes_avg", "bytes", "Mean size of a file so far.", "batch-size-avg", source="sink"),
    Metric("drain_retries_total", "drains", "Failed attempts to commit a drain.", "record-retry-total", source="sink"),
)
BY_NAME = {metric.name: metric for metric in METRICS}


Labels = tuple[str, ...]
"""Values of a metric's labels, in the order of the catalogue."""


@dataclass(frozen=True)
class Sample:
    """The metrics of one query at one time.

    Args:
        query: The query's name, or its id if it has no name.
        time_ms: The time in milliseconds since 1970.
        values: Values by metric and by the values of its labels, ``()`` if it has none. Unknown ones are left out.
        batch: The number of the micro-batch in its checkpoint.
    """

    query: str
    time_ms: int
    values: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)
    batch: int = 0

    def __post_init__(self) -> None:
        unknown = set(self.values) - set(BY_NAME)
        assert not unknown, f"bug: metrics that the catalogue lacks: {sorted(unknown)}"

    def flat(self) -> dict[str, float]:
        """Return one number for each name; one with labels is named like ``outcomes_total.completed``."""
        pairs = ((name, labels, value) for name, each in self.values.items() for labels, value in each.items())
        return {".".join((name, *labels)): value for name, labels, value in pairs}


Reporter = Callable[[Sample], None]
"""A function that takes each sample. If it raises, the error is logged and the query continues."""
