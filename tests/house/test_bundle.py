"""The asset bundle is what Databricks takes: fields, types and values, and the files and variables that it names."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.bundle_schema import ROOT, Json, errors, files, published, schema

SCHEMA = schema()
BY_NAME = {file.name: yaml.safe_load(file.read_text(encoding="utf-8")) for file in files()}
PATHS = ("python_file", "notebook_path", "path")
"""Keys of resources whose values are files, beside the file that names them."""


def values(node: Any, key: str = "") -> list[tuple[str, Any]]:
    """Every value of a file, with its key."""
    if isinstance(node, dict):
        return [pair for name, each in node.items() for pair in values(each, name)]
    if isinstance(node, list):
        return [pair for each in node for pair in values(each, key)]
    return [(key, node)]


def test_there_is_one_job_and_one_pipeline_and_every_file_is_included() -> None:
    assert set(BY_NAME) == {"databricks.yml", "orders.job.yml", "orders.pipeline.yml"}
    assert {path.name for path in (ROOT / "bundle").rglob("*.yml")} < set(BY_NAME)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_file_of_the_bundle_is_valid(name: str) -> None:
    assert list(errors(SCHEMA, BY_NAME[name])) == []


@pytest.mark.parametrize(
    ("name", "path", "value", "said"),
    [
        ("databricks.yml", "bundle.title", "orders", "'title' was unexpected"),
        ("databricks.yml", "targets.dev.mode", "testing", "'testing' is not one of"),
        ("orders.job.yml", "resources.jobs.orders.tasks.0.retries", 2, "'retries' was unexpected"),
        ("orders.job.yml", "resources.jobs.orders.max_concurrent_runs", "one", "'one' is not of type 'integer'"),
        ("orders.job.yml", "resources.jobs.orders.job_clusters.0.new_cluster.data_security_mode", "SAFE", "'SAFE'"),
        ("orders.pipeline.yml", "resources.pipelines.orders.libraries.0.file.name", "a.py", "'name' was unexpected"),
        ("orders.pipeline.yml", "resources.pipelines.orders.configuration", ["a"], "['a'] is not of type 'object'"),
    ],
)
def test_a_wrong_bundle_is_refused(name: str, path: str, value: Any, said: str) -> None:
    wrong: Json = deepcopy(BY_NAME[name])
    *above, last = path.split(".")
    node: Any = wrong
    for part in above:
        node = node[int(part)] if part.isdigit() else node[part]
    node[last] = value
    found = list(errors(SCHEMA, wrong))
    assert len(found) == 1
    assert said in found[0]


def test_a_task_without_its_key_is_refused() -> None:
    wrong = deepcopy(BY_NAME["orders.job.yml"])
    del wrong["resources"]["jobs"]["orders"]["tasks"][0]["task_key"]
    assert "'task_key' is a required property" in " ".join(errors(SCHEMA, wrong))


def test_every_file_variable_and_cluster_that_it_names_is_there() -> None:
    declared = set(BY_NAME["databricks.yml"]["variables"])
    used = {name for file in files() for name in re.findall(r"\$\{var\.(\w+)\}", file.read_text(encoding="utf-8"))}
    assert used == declared
    for file in files()[1:]:
        for key, value in values(BY_NAME[file.name]):
            if key in PATHS:
                assert (file.parent / value).is_file(), f"{file.name}: {key}: {value}"
    job = BY_NAME["orders.job.yml"]["resources"]["jobs"]["orders"]
    clusters = {cluster["job_cluster_key"] for cluster in job["job_clusters"]}
    assert {task["job_cluster_key"] for task in job["tasks"]} == clusters
    asked = {name for _, text in values(job) for name in re.findall(r"job\.parameters\.(\w+)", str(text))}
    assert asked == {parameter["name"] for parameter in job["parameters"]}


def test_the_published_schemas_patterns_are_read_as_python_reads_them() -> None:
    reference = r'{"pattern": "^\\$\\{(var(\\.\\p{L}+([-_]*[\\p{L}\\p{N}]+)*)+)\\}$"}'
    pattern = published(reference)["pattern"]
    assert re.search(pattern, "${var.spark_version}") and re.search(pattern, "${var.größe2}")
    assert not re.search(pattern, "${var.2}") and not re.search(pattern, "spark_version")


def test_the_jobs_and_the_pipelines_purgatories_are_the_same() -> None:
    texts = [Path(ROOT, "bundle", name).read_text(encoding="utf-8") for name in ("orders_job.py", "orders_pipeline.py")]
    found = [
        re.findall(r"^(?:ORDERS|PAYMENTS|PURGATORY) = .*?(?=\n\n)", text, re.DOTALL | re.MULTILINE) for text in texts
    ]
    assert found[0] == found[1] and found[0]
