"""`python -m spark_purgatory.config.reference`: docs/configuration.md, made from the declared options."""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

from spark_purgatory.config.options import Completions, Operations, Option, SinkOptions
from spark_purgatory.config.purgatory_options import PurgatoryOptions

HEAD = """# Configuration

`python -m spark_purgatory.config.reference` generates this page from the options that the code declares. A test checks
that the page and the code agree.

The same option has the same name in Python and in the job's YAML file. A column is given by its name or, in Python
only, also as a `Column` expression. A duration is text such as "30 minutes", or in Python a `timedelta`. A size is text
such as "128 MiB". An option whose name ends in `_ms` or `_bytes` gives the same duration or size as a whole number.
Give one of the two.

In YAML the criterion is `any_key`, `{quorum: 2}`, `{sum_at_least: "100.00"}` (in quotes: an exact decimal), or
`{by_row: {rule: rule, need: need, levels: levels}}` with names of columns.
"""
PARTS = (
    ("Operations", "operations", Operations),
    ("Completions", "completions", Completions),
    ("Purgatory", "purgatory", PurgatoryOptions),
    ("RecordAccumulator", "output", SinkOptions),
)

REST = """
## The rest of a job's file

| Section | Takes | Default | Meaning |
| --- | --- | --- | --- |
| `name` | text | await_completion | The query's name, in logs and metrics. |
| `checkpoint` | text | must be given | The query's checkpoint. |
| `trigger` | `processingTime: 10 seconds` or `availableNow: true` | 10 seconds | When a micro-batch starts. |
| `metrics` | `prometheus_port`, `json_lines`, `opentelemetry`, `gauges_every` | none | [Their places](metrics.md). |
| `dead_letters` | `path`, `checkpoint` | none | A Delta table of [rows that cannot be read](operations.md). |
| `state_store` | hdfs or rocksdb | what the host needs, else hdfs | Where Spark keeps the state. |
| `packages` | list of texts | none | Maven coordinates for the session, such as Kafka's source. |
| `spark` | settings by name | none | Settings of the Spark session. |
| `summary` | true or false | true | Whether the run ends with a table of its outcomes. |
| `heartbeats` | true or false | true | With `idle_after`: false while a backlog is read. |

`source`, in `operations` and `completions`, is where an input is read from: conf/ has an example of each format.
"""


def options_of(declared: type) -> dict[str, tuple[Option, Any]]:
    """Every option of a class by name, with its default; ``dataclasses.MISSING`` where it must be given."""
    hints = get_type_hints(declared, include_extras=True)
    return {
        field.name: (
            next(extra for extra in hints[field.name].__metadata__ if isinstance(extra, Option)),
            field.default,
        )
        for field in dataclasses.fields(declared)
    }


def reference() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, section, declared in PARTS:
        parts.append(
            f"\n## {name} (YAML: `{section}`)\n\n| Option | Takes | Default | Meaning |\n| --- | --- | --- | --- |\n"
        )
        for option_name, (option, default) in options_of(declared).items():
            takes = " or ".join(f'"{choice}"' for choice in option.choices) or option.kind
            parts.append(f"| `{option_name}` | {takes} | {_default(default)} | {option.text} |\n")
    return "".join([*parts, REST])


def _default(value: object) -> str:
    if value is dataclasses.MISSING:
        return "must be given"
    if value is None or value == () or value == "":
        return "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


if __name__ == "__main__":
    print(reference(), end="")
