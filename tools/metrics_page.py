"""`python -m tools.metrics_page`: the table of metrics in docs/metrics.md, made from the catalogue."""

from __future__ import annotations

from spark_purgatory.metrics.catalog import METRICS


def reference() -> str:
    """The table of metrics in docs/metrics.md."""
    lines = ["| Metric | Kind | Unit | Meaning | Kafka | Measured |", "| --- | --- | --- | --- | --- | --- |"]
    sources = {"batch": "each micro-batch", "state": "every `gauges_every`", "sink": "each micro-batch, by the sink"}
    for metric in METRICS:
        labels = "".join(f", by `{name}`" for name, _ in metric.labels)
        kafka = f"`{metric.kafka}`" if metric.kafka else ""
        text = metric.text.removesuffix(".") + labels if metric.labels and "by" not in metric.text else metric.text
        lines.append(
            f"| `{metric.name}` | {metric.kind} | {metric.unit} | {text} | {kafka} | {sources[metric.source]} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(reference())
