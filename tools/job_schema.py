"""`python -m tools.job_schema`: docs/schema.json, with which an editor completes and checks a job's file.

It is made from the models that read the file (`spark_purgatory.job.job_config`); options get the text that
docs/configuration.md has for them. The first line of `spark-purgatory example` names where the site publishes it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spark_purgatory.config.declared import options_of
from spark_purgatory.core.spec.codes import RULES
from spark_purgatory.core.spec.criteria import NUMBERED
from spark_purgatory.job.job_config import JobConfig
from tools.configuration_page import PARTS, texts_of

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = ROOT / "docs" / "schema.json"
ADDRESS = "https://spark-purgatory.github.io/spark-purgatory/schema.json"
VARIABLE = {"type": "string", "pattern": r"\$\{[A-Za-z_]\w*\}"}
"""A value from the environment, which any field takes."""
BOUNDS = {"ge": "minimum", "le": "maximum"}
"""pydantic's words for a bound behind a validator of ours, and those of JSON schema."""


def schema() -> dict[str, Any]:
    """The schema of the whole file."""
    made = JobConfig.model_json_schema()
    parts = made["$defs"]
    for _, section, declared in PARTS:
        texts = texts_of(declared)
        for place in _models(made["properties"][section]):
            for option_name in parts[place].get("properties", {}).keys() & texts.keys() & options_of(declared).keys():
                parts[place]["properties"][option_name]["description"] = texts[option_name]
    parts["CriterionSection"] = _criterion(parts.pop("CriterionSection"))
    for model in (made, *parts.values()):
        for name, field in model.get("properties", {}).items():
            field.pop("title", None)
            for choice in (field, *field.get("anyOf", [])):
                for ours, theirs in BOUNDS.items():
                    if ours in choice:
                        choice[theirs] = choice.pop(ours)
            model["properties"][name] = _or_variable(field)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": ADDRESS, **made}


def _criterion(model: dict[str, Any]) -> dict[str, Any]:
    """A criterion as people write it: a name, a name with what it needs, or ``by_row`` with the names of columns."""
    needs = {rule: {"type": ["integer", "number", "string"]} for rule in NUMBERED}
    by_row = model["properties"]["by_row"]["anyOf"][0]
    return {
        "description": model["description"],
        "anyOf": [
            {"enum": [*(rule for rule in RULES if rule not in needs), "by_row"]},
            {"type": "object", "properties": {**needs, "by_row": by_row}, "minProperties": 1, "maxProperties": 1,
             "additionalProperties": False},
        ],
    }  # fmt: skip


def _models(field: dict[str, Any]) -> list[str]:
    """The names of the models that a field may hold."""
    choices = [field, *field.get("anyOf", []), *field.get("oneOf", [])]
    return [each["$ref"].rpartition("/")[2] for each in choices if "$ref" in each]


def _or_variable(field: dict[str, Any]) -> dict[str, Any]:
    """A number, a truth value or a choice may also come from the environment."""
    choices = field.get("anyOf", [field])
    if not any(choice.get("type") in ("integer", "number", "boolean") or "enum" in choice for choice in choices):
        return field
    about = {name: value for name, value in field.items() if name in ("description", "default")}
    given = [{name: value for name, value in choice.items() if name not in about} for choice in choices]
    return {**about, "anyOf": [*given, VARIABLE]}


def text() -> str:
    """The file."""
    return json.dumps(schema(), indent=1) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(text(), encoding="utf-8")
    print(SCHEMA)
