"""`python -m tools.configuration_page`: docs/configuration.md, made from the declared options."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

from spark_purgatory import Purgatory, RecordAccumulator
from spark_purgatory.config import Completions, Operations
from spark_purgatory.config.declared import ColumnLike, Columns, Names, TimeOut, choices_of, options_of
from spark_purgatory.config.units import Duration, Size
from spark_purgatory.core.spec.criteria import ByRow, Criterion

HEAD = """# Configuration

An option has the same name in Python and in the job's YAML file. A column is a name or, in Python, also a `Column`
expression. A duration is text such as "30 minutes", or a `timedelta`. A size is text such as "128 MiB", or a number of
bytes. Python's None is `null` in YAML. [Criteria](criteria.md) shows criteria in YAML.
"""
PARTS = (
    ("Operations", "operations", Operations),
    ("Completions", "completions", Completions),
    ("Purgatory", "purgatory", Purgatory),
    ("RecordAccumulator", "output", RecordAccumulator),
)

REST = """
## The rest of a job's file

| Section | Meaning |
| --- | --- |
| `name`<br>text (await_completion) | The query's name, in logs and metrics. |
| `checkpoint`<br>text (required) | The query's checkpoint. |
| `trigger`<br>`processingTime: 10 seconds` (default), `availableNow: true` | When a micro-batch starts. |
| `metrics`<br>`prometheus_port`, `opentelemetry`, `gauges_every` | Where [metrics](metrics.md) go. |
| `dead_letters`<br>`path` or `table`, `format`, `checkpoint` | A table of [rows that cannot be read](operations.md). |
| `state_store`<br>hdfs, rocksdb (default) | Where Spark keeps the state ([State store](choosing.md#state-store)). |
| `packages`<br>list of texts | Maven coordinates, such as those of Kafka's source. |
| `spark`<br>settings by name | Settings of the Spark session. |
| `summary`<br>true (default), false | The run ends with a table of its outcomes. |
| `heartbeats`<br>true (default), false | Set false while `idle_after` inputs read a backlog. |
| `complete_until`<br>`completions: 2026-11-28` | The time to which an input has brought all its rows. |

`operations` and `completions` also have a `source`, the place of their rows: [Sources](sources.md), [From Kafka
topics](how-to/kafka.md). Instead of a table, `output` takes a `topic` and the `options` of its producer.
"""
PAGE, LINK = re.compile(r"\bdocs/([\w/-]+\.md)"), r"[\1](\1)"
TAKES: dict[Any, str] = {
    ColumnLike: "column",
    Columns: "columns",
    Names: "names",
    TimeOut: "duration or column",
    Duration: "duration",
    Size: "size",
    int: "count",
    str: "text",
    Operations: "part",
    Completions: "part",
    Criterion | ByRow: "criterion",
}
"""What the page calls each type of option."""


def reference() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, section, declared in PARTS:
        texts = texts_of(declared)
        parts.append(f"\n## {name} (`{section}`)\n\n| Option | Meaning |\n| --- | --- |\n")
        for option_name, option in options_of(declared).items():
            takes = _takes(option.kind, option.default)
            parts.append(f"| `{option_name}`<br>{takes} | {PAGE.sub(LINK, texts[option_name])} |\n")
    return "".join([*parts, REST])


def texts_of(declared: type) -> dict[str, str]:
    """What the docstring of a class says about each of its arguments."""
    section = (inspect.getdoc(declared) or "").partition("Args:\n")[2].partition("\n\n")[0]
    parts = re.split(r"^ {4}(\w+): ", section.replace("``", "`"), flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def _takes(kind: Any, default: object) -> str:
    """The type of an option, with its default in brackets; without any if the option may be left out."""
    known = (True, False) if kind is bool else choices_of(kind)
    choices = [f'"{each}"' if isinstance(each, str) else str(each).lower() for each in known]
    shown = _default(default, kind)
    if shown in choices:
        return ", ".join(f"{each} (default)" if each == shown else each for each in choices)
    return (", ".join(choices) or TAKES[kind]) + (f" ({shown})" if shown else "")


def _default(value: object, kind: Any) -> str:
    if value is dataclasses.MISSING:
        return "required"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value in choices_of(kind):
        return f'"{value}"'  # One of them is "none".
    if value is None or value == ():
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    print(reference(), end="")
