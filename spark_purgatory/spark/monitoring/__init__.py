"""Samples of a running query, for `spark_purgatory.metrics`."""
