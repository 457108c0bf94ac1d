"""The asset bundle is what Databricks takes: the fields of its SDK, and the files and variables that it names."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from databricks.sdk.service.jobs import JobSettings
from databricks.sdk.service.pipelines import PipelineSpec

ROOT = Path(__file__).resolve().parents[2]
CLASSES = {"jobs": JobSettings, "pipelines": PipelineSpec}


def files() -> list[Path]:
    """`databricks.yml` and the files that it includes."""
    main = ROOT / "databricks.yml"
    included = yaml.safe_load(main.read_text(encoding="utf-8"))["include"]
    return [main, *sorted(path for pattern in included for path in ROOT.glob(pattern))]


BY_NAME = {file.name: yaml.safe_load(file.read_text(encoding="utf-8")) for file in files()}


def test_jobs_and_pipelines_have_the_fields_of_databricks_own_classes_alone() -> None:
    """A field that a class does not know is gone when it is written again."""
    for content in BY_NAME.values():
        for kind, named in content.get("resources", {}).items():
            for given in named.values():
                assert CLASSES[kind].from_dict(given).as_dict() == given


def test_every_file_variable_and_cluster_that_it_names_is_there() -> None:
    declared = set(BY_NAME["databricks.yml"]["variables"])
    used = {name for file in files() for name in re.findall(r"\$\{var\.(\w+)\}", file.read_text(encoding="utf-8"))}
    assert used == declared
    for file in files()[1:]:
        named = re.findall(r"(?:python_file|notebook_path|\bpath): (\S+)", file.read_text(encoding="utf-8"))
        assert [path for path in named if not (file.parent / path).is_file()] == [], file.name
    job = BY_NAME["orders.job.yml"]["resources"]["jobs"]["orders"]
    clusters = {cluster["job_cluster_key"] for cluster in job["job_clusters"]}
    assert {task["job_cluster_key"] for task in job["tasks"]} == clusters
    asked = set(re.findall(r"job\.parameters\.(\w+)", str(job)))
    assert asked == {parameter["name"] for parameter in job["parameters"]}


def test_the_jobs_and_the_pipelines_purgatories_are_the_same() -> None:
    texts = [Path(ROOT, "bundle", name).read_text(encoding="utf-8") for name in ("orders_job.py", "orders_pipeline.py")]
    found = [
        re.findall(r"^(?:ORDERS|PAYMENTS|PURGATORY) = .*?(?=\n\n)", text, re.DOTALL | re.MULTILINE) for text in texts
    ]
    assert found[0] == found[1] and found[0]
