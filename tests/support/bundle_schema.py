"""JSON schemas for Databricks asset bundles.

`schema()` is made from the classes of Databricks' Python SDK (Apache-2.0), which has the fields of jobs and pipelines.
The sections around them are written here, from the reference of a bundle's settings. The schema that
``databricks bundle schema`` prints is not kept in this repository: the Databricks License permits its use with
Databricks' services only. Whoever has the command checks the bundle against that schema, too::

    databricks bundle schema > /tmp/schema.json && python -m tests.support.bundle_schema /tmp/schema.json
"""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any

import jsonschema
import yaml
from databricks.sdk.service import jobs, pipelines

ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]

REFERENCE: Json = {"type": "string", "pattern": r"\$\{[a-z_.]+\}"}
"""``${var.landing}``: allowed in the place of every value."""
PRIMITIVES = {str: "string", int: "integer", float: "number", bool: "boolean"}
TEXT: Json = {"type": "string"}
TEXTS: Json = {"type": "array", "items": TEXT}


def files(root: Path = ROOT) -> list[Path]:
    """`databricks.yml` and the files that it includes."""
    main = root / "databricks.yml"
    included = yaml.safe_load(main.read_text(encoding="utf-8"))["include"]
    return [main, *sorted(path for pattern in included for path in root.glob(pattern))]


def schema() -> Json:
    """The schema of every file of a bundle."""
    definitions: dict[str, Json] = {}
    job, pipeline = (_of_class(each, definitions) for each in (jobs.JobSettings, pipelines.PipelineSpec))
    resources = _object(jobs=_map(job), pipelines=_map(pipeline))
    variable = _object(description=TEXT, default={}, type={"enum": ["complex"]}, lookup={"type": "object"})
    artifact = _object("type", type={"enum": ["whl", "jar"]}, path=TEXT, build=TEXT, files={"type": "array"})
    workspace = _object(host=TEXT, profile=TEXT, root_path=TEXT, file_path=TEXT, artifact_path=TEXT)
    sections = {
        "artifacts": _map(artifact),
        "resources": resources,
        "sync": _object(paths=TEXTS, include=TEXTS, exclude=TEXTS),
        "workspace": workspace,
    }
    mode: Json = {"enum": ["development", "production"]}
    target = _object(mode=mode, default={"type": "boolean"}, variables={"type": "object"}, **sections)
    bundle = _object("name", name=TEXT, databricks_cli_version=TEXT, uuid=TEXT)
    whole = _object(bundle=bundle, include=TEXTS, variables=_map(variable), targets=_map(target), **sections)
    return {**whole, "$defs": definitions}


def published(text: str) -> Json:
    """The published schema, with its patterns as Python's regular expressions: these have no ``\\p``."""
    plain = text.replace(r"[\\p{L}\\p{N}]", r"\\w").replace(r"\\p{L}", r"[^\\W\\d_]").replace(r"\\p{N}", r"\\d")
    found: Json = json.loads(plain)
    return found


def errors(schema: Json, file: Path | Json) -> Iterator[str]:
    """What is wrong in a file, and where."""
    content = yaml.safe_load(file.read_text(encoding="utf-8")) if isinstance(file, Path) else file
    for error in jsonschema.Draft202012Validator(schema).iter_errors(content):
        yield f"{'.'.join(map(str, error.absolute_path))}: {error.message}"


def _object(*required: str, **properties: Json) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _map(value: Json) -> Json:
    return {"type": "object", "additionalProperties": value}


def _of_class(cls: Any, definitions: dict[str, Json]) -> Json:
    """A reference to the definition of one of the SDK's classes, and that definition."""
    name = f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"
    if name not in definitions:
        definitions[name] = {}  # a class may contain itself: a task for each of several values has a task
        hints = typing.get_type_hints(cls)
        fields = dataclasses.fields(cls)
        required = [field.name for field in fields if field.default is dataclasses.MISSING]
        definitions[name] = _object(*required, **{field.name: _of(hints[field.name], definitions) for field in fields})
    return {"$ref": f"#/$defs/{name}"}


def _of(hint: Any, definitions: dict[str, Json]) -> Json:
    arguments = [each for each in typing.get_args(hint) if each is not NoneType]
    origin = typing.get_origin(hint)
    if origin is typing.Union:
        return _of(arguments[0], definitions)
    if origin is list:
        found: Json = {"type": "array", "items": _of(arguments[0], definitions)}
    elif origin is dict:
        found = _map(_of(arguments[1], definitions))
    elif dataclasses.is_dataclass(hint):
        found = _of_class(hint, definitions)
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        found = {"enum": [member.value for member in hint]}
    elif hint in PRIMITIVES:
        found = {"type": PRIMITIVES[hint]}
    else:
        found = {}
    return {"if": REFERENCE, "else": found}


if __name__ == "__main__":
    given = published(Path(sys.argv[1]).read_text(encoding="utf-8"))
    wrong = [f"{file.name}: {error}" for file in files() for error in errors(given, file)]
    print("\n".join(wrong) or f"{len(files())} files are valid")
    sys.exit(bool(wrong))
