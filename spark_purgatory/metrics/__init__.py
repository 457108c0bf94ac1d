"""What is measured of a running query, and where it goes: Prometheus, OpenTelemetry, JSON lines, or a function.

`spark_purgatory.monitor` takes the samples; this package imports no Spark.
"""

from spark_purgatory.metrics.catalog import METRICS, Metric
from spark_purgatory.metrics.reporters import json_lines, opentelemetry, progress, prometheus
from spark_purgatory.metrics.sample import Reporter, Sample

__all__ = ["METRICS", "Metric", "Reporter", "Sample", "json_lines", "opentelemetry", "progress", "prometheus"]
