"""Every metric once: its name, its unit, what it means, and Kafka's name where Kafka has one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spark_purgatory.schema import EVENT_REJECTIONS, REJECTIONS

PREFIX = "spark_purgatory_"
"""Before each name in Prometheus and OpenTelemetry."""


@dataclass(frozen=True)
class Metric:
    """One metric; a counter only grows while its query runs, a gauge says how much there is."""

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    text: str
    kafka: str = ""
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Labels beside ``query``, each with its values."""
    source: Literal["batch", "state", "sink"] = "batch"
    """Measured in each micro-batch, read from the checkpoint at intervals, or kept by the sink."""


STATUS = (("status", ("completed", "expired", "failed", "cancelled", "duplicate", "rejected")),)
METRICS: tuple[Metric, ...] = (
    Metric("operations_received_total", "counter", "operations", "Operations that arrived."),
    Metric("outcomes_total", "counter", "operations", "Operations that got their outcome.", labels=STATUS),
    Metric(
        "rejected_total", "counter", "operations", "REJECTED operations by reason.", labels=(("reason", REJECTIONS),)
    ),
    Metric("events_received_total", "counter", "events", "Events that arrived."),
    Metric("events_late_total", "counter", "events", "Events whose time was at or before the watermark."),
    Metric("operations_late_total", "counter", "operations", "Operations that arrived at or behind the watermark."),
    Metric(
        "events_rejected_total", "counter", "events", "Rejected events by reason.",
        labels=(("reason", EVENT_REJECTIONS),),
    ),
    Metric("batches_total", "counter", "micro-batches", "Micro-batches that ran."),
    Metric("batch_duration_ms", "gauge", "ms", "How long the last micro-batch took."),
    Metric("batch_input_rows", "gauge", "rows", "Rows that the last micro-batch read."),
    Metric(
        "source_lag_records", "gauge", "records", "Records of Kafka that were there and not read yet, of all topics.",
        "records-lag",
    ),
    Metric("state_bytes_written", "gauge", "bytes", "State that the last micro-batch wrote."),
    Metric(
        "watermark_lag_ms", "gauge", "ms", "Clock time minus watermark. It grows while a source is silent or behind."
    ),
    Metric("pending", "gauge", "operations", "Operations that wait.", "NumDelayedOperations", source="state"),
    Metric("watched", "gauge", "entries", "Entries in the lists of watchers.", "PurgatorySize", source="state"),
    Metric("state_bytes", "gauge", "bytes", "Bytes of all shards' states.", source="state"),
    Metric("shards", "gauge", "shards", "Shards that have a state.", source="state"),
    Metric("largest_shard_state_bytes", "gauge", "bytes", "Bytes of the largest shard's state.", source="state"),
    Metric(
        "shard_skew", "gauge", "ratio", "Pending operations of the fullest shard, divided by the mean.", source="state"
    ),
    Metric(
        "oldest_pending_age_ms", "gauge", "ms", "Watermark minus the first created time that waits.", source="state"
    ),
    Metric(
        "next_deadline_ms", "gauge", "ms", "Until the next outcome is due, by the watermark; 0: it is due.",
        source="state",
    ),
    Metric("staged_bytes", "gauge", "bytes", "Bytes staged for the table.", source="sink"),
    Metric(
        "buffer_available_bytes", "gauge", "bytes", "What buffer_memory has left.", "buffer-available-bytes",
        source="sink",
    ),
    Metric("staged_age_ms", "gauge", "ms", "Age of the oldest staged rows.", "record-queue-time-max", source="sink"),
    Metric("linger_ms", "gauge", "ms", "How long rows may wait for their file.", "linger.ms", source="sink"),
    Metric("drain_duration_ms", "gauge", "ms", "How long the last drain took.", "request-latency-avg", source="sink"),
    Metric("draining_rows", "gauge", "rows", "Rows of the drain that is under way.", source="sink"),
    Metric("drains_total", "counter", "drains", "Drains that were committed.", source="sink"),
    Metric("drained_rows_total", "counter", "rows", "Rows that they brought.", "record-send-total", source="sink"),
    Metric("drained_files_total", "counter", "files", "Files that they brought.", source="sink"),
    Metric("drained_bytes_total", "counter", "bytes", "Bytes of these files.", "outgoing-byte-total", source="sink"),
    Metric("file_bytes_avg", "gauge", "bytes", "Mean size of a file so far.", "batch-size-avg", source="sink"),
    Metric(
        "drain_retries_total", "counter", "drains", "Drains that failed and are tried again.", "record-retry-total",
        source="sink",
    ),
)  # fmt: skip
BY_NAME = {metric.name: metric for metric in METRICS}
