"""Metrics of a running query for Prometheus, OpenTelemetry or a function, without Spark.

`spark_purgatory.monitor` takes the samples.
"""

from spark_purgatory.metrics.catalog import METRICS, Metric, Reporter, Sample
from spark_purgatory.metrics.reporters import opentelemetry, progress, prometheus

__all__ = ["METRICS", "Metric", "Reporter", "Sample", "opentelemetry", "progress", "prometheus"]
