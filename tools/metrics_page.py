"""`python -m tools.metrics_page`: the table of metrics in docs/metrics.md, made from the catalogue."""

from __future__ import annotations

from spark_purgatory.metrics.catalog import METRICS


def reference() -> str:
    """The two tables of metrics in docs/metrics.md."""
    lines = ["| Metric | Meaning | Measured |", "| --- | --- | --- |"]
    sources = {"batch": "each micro-batch", "state": "every `gauges_every`", "sink": "each micro-batch, by the sink"}
    for metric in METRICS:
        labels = "".join(f", by `{name}`" for name, _ in metric.labels)
        text = metric.text.removesuffix(".") + labels if metric.labels and "by" not in metric.text else metric.text
        lines.append(f"| `{metric.name}`<br>{metric.kind}, {metric.unit} | {text} | {sources[metric.source]} |")
    lines += ["", "These metrics measure the same as a metric of Kafka:", "", "| Metric | In Kafka |", "| --- | --- |"]
    lines += [f"| `{metric.name}` | `{metric.kafka}` |" for metric in METRICS if metric.kafka]
    return "\n".join(lines)


if __name__ == "__main__":
    print(reference())
