"""`python -m tools.metrics_page`: the tables of metrics in docs/metrics.md, made from the catalogue."""

from __future__ import annotations

from spark_purgatory.metrics.catalog import METRICS

SOURCES = {
    "batch": "From each micro-batch:",
    "state": "From the state in the checkpoint, every `gauges_every`:",
    "sink": "From the sink, in each micro-batch:",
}


def reference() -> str:
    """The tables of metrics in docs/metrics.md, one for each source."""
    lines = []
    for source, title in SOURCES.items():
        lines += [title, "", "| Metric | Meaning |", "| --- | --- |"]
        for metric in (each for each in METRICS if each.source == source):
            labels = "".join(f", by `{name}`" for name, _ in metric.labels if "by" not in metric.text)
            kafka = f" Kafka: `{metric.kafka}`." if metric.kafka else ""
            lines.append(f"| `{metric.name}` | {metric.text.removesuffix('.')}{labels}.{kafka} |")
        lines.append("")
    return "\n".join(lines).rstrip()


if __name__ == "__main__":
    print(reference())
