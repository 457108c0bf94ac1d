"""What GitHub and editors read of the repository: workflows, forms, the citation, the container."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ADDRESS = PROJECT["urls"]["Homepage"]
FORMS = [path for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")) if path.stem != "config"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def workflow(name: str) -> dict[str, Any]:
    """A workflow; YAML 1.1 reads its ``on`` as true."""
    read = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))
    return {("on" if key is True else key): value for key, value in read.items()}


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("name", ["ci", "release"])
def test_a_workflow_calls_targets_that_make_has_and_waits_for_jobs_that_exist(name: str) -> None:
    jobs = workflow(name)["jobs"]
    assert {job["needs"] for job in jobs.values() if "needs" in job} <= jobs.keys()
    for job in jobs.values():
        for line in commands(job):
            for target in re.findall(r"^make ((?:[a-z-]+ ?)+)", line, re.MULTILINE):
                assert all(re.search(rf"^{each}:", MAKEFILE, re.MULTILINE) for each in target.split()), line


def test_the_site_is_deployed_from_main_alone_and_as_make_docs_builds_it() -> None:
    jobs = workflow("ci")["jobs"]
    assert commands(jobs["docs"]) == ["make docs"]
    uploads = [step for step in jobs["docs"]["steps"] if "upload-pages-artifact" in step.get("uses", "")]
    assert [step["with"]["path"] for step in uploads] == ["site"]
    assert jobs["deploy"]["needs"] == "docs"
    assert jobs["deploy"]["if"] == uploads[0]["if"] == "github.ref == 'refs/heads/main'"


def test_a_release_is_published_without_a_token_once_it_was_checked() -> None:
    release = workflow("release")
    assert release["on"] == {"release": {"types": ["published"]}}
    publish = release["jobs"]["publish"]
    assert publish["needs"] == "build" and publish["permissions"] == {"id-token": "write"}
    assert "make release-check audit" in commands(release["jobs"]["build"])
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")


def test_only_the_job_that_needs_it_may_write() -> None:
    for name in ("ci", "release"):
        assert workflow(name)["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_for_issues_asks_for_what_it_needs(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert form["name"] and form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert any(field.get("validations", {}).get("required") for field in fields)
    for link in re.findall(rf"{ADDRESS}/blob/main/([\w./-]+)", path.read_text(encoding="utf-8")):
        assert (ROOT / link).is_file(), link


def test_the_citation_is_of_this_project() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert (cited["repository-code"], cited["license"]) == (ADDRESS, PROJECT["license"])


def test_the_container_has_the_python_and_java_of_the_lowest_release() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    recipe = (ROOT / ".devcontainer" / container["build"]["dockerfile"]).read_text(encoding="utf-8")
    assert f"FROM python:{PROJECT['requires-python'].removeprefix('>=')}-" in recipe
    assert "openjdk-17" in recipe and all(tool in recipe for tool in ("git", "make"))
    target = container["postCreateCommand"].removeprefix("make ")
    assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)
