"""Avro schemas of a source: from a file, and from a registry by its REST interface."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from spark_purgatory.job.config_file import JobConfigError, wrong
from spark_purgatory.job.source_config import KafkaSource, Registry

TIMEOUT_S = 30
MOST_BYTES = 16 << 20  # The longest answer of a registry that is read
ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


@dataclass(frozen=True)
class AvroSchemas:
    """The schemas that a topic's values are read as and were written with, each in JSON."""

    reader: str
    writers: Mapping[int, str]  # By id of the registry; empty without a registry


def schemas_of(source: KafkaSource, name: str) -> AvroSchemas:
    """Read the schemas of a source; `JobConfigError` names the field that does not lead to them."""
    avro = source.avro
    assert avro is not None, "bug: the source has no Avro"
    given = None if avro.schema_file is None else _of_file(avro.schema_file, f"{name}.source.avro.schema_file")
    if avro.registry is None:
        assert given is not None, "bug: Avro without a schema was accepted"
        return AvroSchemas(given, {})
    subject = avro.registry.subject or f"{(source.topic or [''])[0]}-value"
    field = f"{name}.source.avro.registry"
    try:
        versions = _versions(avro.registry, subject, field)
        writers = {int(version["id"]): str(version["schema"]) for version in versions}
        return AvroSchemas(given or str(versions[-1]["schema"]), writers)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, JobConfigError):
            raise
        fault = f"the answer does not look like a schema registry's ({type(error).__name__})"
        raise wrong(field, f"subject {subject!r}", fault) from error


def _of_file(file: str, field: str) -> str:
    try:
        schema = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise wrong(field, repr(file), f"must be a file with an Avro schema in JSON: {error}") from error
    return _record(schema, field, repr(file))


def _record(schema: Any, field: str, given: str) -> str:
    if not isinstance(schema, dict) or schema.get("type") != "record" or not isinstance(schema.get("fields"), list):
        raise wrong(field, given, "must be the schema of a record")
    return json.dumps(schema)


def _versions(registry: Registry, subject: str, field: str) -> list[dict[str, Any]]:
    at = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions"
    found = []
    for number in _asked(registry, at, field):
        version, given = _asked(registry, f"{at}/{number}", field), f"subject {subject!r}, version {number}"
        if version.get("schemaType", "AVRO") != "AVRO" or version.get("references"):
            raise wrong(field, given, "must be Avro without references to other subjects; give schema_file instead")
        _record(json.loads(version["schema"]), field, given)
        found.append(version)
    return found


class _SameServer(urllib.request.HTTPRedirectHandler):
    """Follows redirects on the registry's own server, also from http to https: no other server may see user_info."""

    def redirect_request(self, req: urllib.request.Request, *answer: Any) -> urllib.request.Request | None:
        old, new = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(answer[-1])
        same = (old.scheme, old.netloc) == (new.scheme, new.netloc)
        secured = (old.scheme, new.scheme) == ("http", "https") and {old.port, new.port} <= {None, 80, 443}
        return super().redirect_request(req, *answer) if same or (secured and old.hostname == new.hostname) else None


def _asked(registry: Registry, path: str, field: str) -> Any:
    request = urllib.request.Request(registry.url.rstrip("/") + path, headers={"Accept": ACCEPT})
    if registry.user_info is not None:
        given = base64.b64encode(registry.user_info.get_secret_value().encode()).decode()
        request.add_header("Authorization", f"Basic {given}")
    try:
        with urllib.request.build_opener(_SameServer).open(request, timeout=TIMEOUT_S) as answer:
            return json.loads(answer.read(MOST_BYTES))
    except urllib.error.HTTPError as error:
        elsewhere = f"the registry redirects to another server (HTTP {error.code}): give that server's address as url"
        faults = {401: "the registry refuses user_info", 404: "the registry has no such subject"}
        faults |= dict.fromkeys((301, 302, 303, 307, 308), elsewhere)
        raise wrong(field, path, faults.get(error.code, f"the registry answers with HTTP {error.code}")) from error
    except (OSError, ValueError, HTTPException, RecursionError) as error:
        fault = str(error) if isinstance(error, OSError) else type(error).__name__
        raise wrong(field, path, f"the registry cannot be reached: {fault}") from error
