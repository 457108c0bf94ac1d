"""The how-to pages that need a server do what they say: their Python, files and commands run beside a real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.children import ROOT
from tests.support.doc_page import WIDTH, Page
from tests.support.kafka_broker import kafka_broker
from tests.support.object_store import object_store

pytestmark = [pytest.mark.spark, pytest.mark.long]

HOW_TO = ROOT / "docs" / "how-to"


def command(words: list[str]) -> str:
    """Run the command as a process of its own, and tell what it printed."""
    ours = {"PYTHONPATH": str(ROOT), "COLUMNS": str(WIDTH)}
    whole = (
        [sys.executable, *words[1:]] if words[0] == "python" else [sys.executable, "-m", "spark_purgatory", *words[1:]]
    )
    ran = subprocess.run(whole, capture_output=True, text=True, check=False, env={**os.environ, **ours})
    assert ran.returncode == 0, f"{words}\n{ran.stdout}\n{ran.stderr[-3000:]}"
    return ran.stdout


def test_the_page_on_kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with kafka_broker(tmp_path / "broker") as broker:
        places = {"localhost:9092": broker.address, "/lake": str(tmp_path)}
        page = Page((HOW_TO / "kafka.md").read_text(encoding="utf-8"), "kafka.md", places, command)
        page.run()
    assert page.ran.count("bash") == 2 and page.ran.count("text") == 2


def test_the_page_on_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with object_store(tmp_path) as store:
        places = {"http://localhost:9000": store.endpoint}
        page = Page((HOW_TO / "object_store.md").read_text(encoding="utf-8"), "object_store.md", places, command)
        page.run()
    assert page.ran == ["bash", "python", "yaml", "bash", "text"]
