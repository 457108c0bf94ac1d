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

The same option has the same name in Python and in the job's YAML file. A column is given by its name or, in Python
only, also as a `Column` expression. A duration is text such as "30 minutes", or in Python a `timedelta`. A size is text
such as "128 MiB", or a whole number of bytes. Python's None is `null` in YAML.

In YAML the criterion is `any_key`, `{quorum: 2}`, `{sum_at_least: "100.00"}` (in quotes: an exact decimal), or
`{by_row: {rule: rule, need: need, levels: levels}}` with names of columns.
"""
PARTS = (
    ("Operations", "operations", Operations),
    ("Completions", "completions", Completions),
    ("Purgatory", "purgatory", Purgatory),
    ("RecordAccumulator", "output", RecordAccumulator),
)

REST = """
## The rest of a job's file

| Section | Default | Meaning |
| --- | --- | --- |
| `name`<br>text | await_completion | The query's name, in logs and metrics. |
| `checkpoint`<br>text | must be given | The query's checkpoint. |
| `trigger`<br>`processingTime: 10 seconds` or `availableNow: true` | 10 seconds | When a micro-batch starts. |
| `metrics`<br>`prometheus_port`, `json_lines`, `opentelemetry`, `gauges_every` | none | [Their places](metrics.md). |
| `dead_letters`<br>`path`, `checkpoint` | none | A Delta table of [rows that cannot be read](operations.md). |
| `state_store`<br>hdfs or rocksdb | rocksdb | Where Spark keeps the state ([State store](choosing.md#state-store)). |
| `packages`<br>list of texts | none | Maven coordinates for the session, such as Kafka's source. |
| `spark`<br>settings by name | none | Settings of the Spark session. |
| `summary`<br>true or false | true | Whether the run ends with a table of its outcomes. |
| `heartbeats`<br>true or false | true | With `idle_after`: false while a backlog is read. |

`source`, in `operations` and `completions`, is where an input is read from: [Sources and the job's file](sources.md),
and [From Kafka topics](how-to/kafka.md) for the fields of a topic. `output` takes a topic in place of a table: `topic`,
and `options` of its producer.

`python -m tools.configuration_page` generates this page from the options that the code declares. A test checks that the
page and the code agree.
"""
PAGE, LINK = re.compile(r"\bdocs/([\w/-]+\.md)"), r"[\1](\1)"
TAKES: dict[Any, str] = {
    ColumnLike: "column",
    Columns: "column or columns",
    Names: "name or names",
    TimeOut: "duration or column",
    Duration: "duration",
    Size: "size",
    int: "count",
    str: "text",
    bool: "true or false",
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
        parts.append(f"\n## {name} (YAML: `{section}`)\n\n| Option | Default | Meaning |\n| --- | --- | --- |\n")
        for option_name, option in options_of(declared).items():
            default = _default(option.default, option.kind)
            parts.append(
                f"| `{option_name}`<br>{_takes(option.kind)} | {default} | {PAGE.sub(LINK, texts[option_name])} |\n"
            )
    return "".join([*parts, REST])


def texts_of(declared: type) -> dict[str, str]:
    """What the docstring of a class says about each of its arguments."""
    section = (inspect.getdoc(declared) or "").partition("Args:\n")[2].partition("\n\n")[0]
    parts = re.split(r"^ {4}(\w+): ", section.replace("``", "`"), flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def _takes(kind: Any) -> str:
    choices = [f'"{each}"' if isinstance(each, str) else str(each).lower() for each in choices_of(kind)]
    return " or ".join(choices) or TAKES[kind]


def _default(value: object, kind: Any) -> str:
    if value is dataclasses.MISSING:
        return "must be given"
    if value is None or value == () or value == "":
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value in choices_of(kind):
        return f'"{value}"'  # One of them is "none".
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    print(reference(), end="")
