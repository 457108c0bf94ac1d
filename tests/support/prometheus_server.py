"""A real Prometheus on this machine's loopback, which scrapes one process every second."""

from __future__ import annotations

import json
import shutil
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.support.cluster import HOST, free_port
from tests.support.server import server


class Prometheus:
    """Where it listens."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(parameters)}", timeout=30) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/api/v1/query", query=expression)["result"]
        return found


@contextmanager
def prometheus(folder: Path, target: str, rules: Path) -> Iterator[Prometheus]:
    program = shutil.which("prometheus")
    assert program, "prometheus is not on the PATH: apt-get install prometheus, brew install prometheus"
    address = f"{HOST}:{free_port()}"
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "outcomes", "static_configs": [{"targets": [target]}]}],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    options = {"config.file": file, "storage.tsdb.path": folder / "data", "web.listen-address": address}
    command = [program, *(f"--{name}={value}" for name, value in options.items())]
    with server(command, f"http://{address}/-/ready", folder / "prometheus.log"):
        yield Prometheus(f"http://{address}")
