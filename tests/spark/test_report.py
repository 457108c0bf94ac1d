"""``spark-purgatory report`` and ``pending``: the page and the table against counts of the rows themselves."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from bisect import bisect_right
from collections import Counter
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from spark_purgatory import RecordAccumulator, pending
from spark_purgatory.cli import app
from spark_purgatory.errors import ConfigError
from spark_purgatory.job.report import BOUNDS_MS, page, read_report
from spark_purgatory.version import LOOKS_WRONG
from tests.support.stream_rows import event, operation, purgatory
from tests.support.streams import Landing

pytestmark = pytest.mark.long

HOUR = {"linger": "1 hour", "delivery_timeout": "1 hour"}


def written(spark: SparkSession, folder: Path) -> tuple[Landing, RecordAccumulator]:
    landing = Landing(folder)
    landing.add([operation(f"o{n}", deadline=30 + 10 * (n % 7)) for n in range(40)], [event("o1", 3), event("x", 45)])
    landing.add([operation("new", 46, 400)], [event("o2", 20), event("o3", 59), event("x", 62)])
    sink = RecordAccumulator(path=str(folder / "table"), **HOUR)
    outcomes = purgatory().resolve(*landing.frames(spark))
    sink.write_stream(outcomes, checkpoint=str(landing.checkpoint), trigger={"availableNow": True}).awaitTermination()
    return landing, sink


def test_the_page_says_what_the_table_the_rows_and_the_checkpoint_say(spark: SparkSession, tmp_path: Path) -> None:
    landing, sink = written(spark, tmp_path)
    report = read_report(spark, str(landing.checkpoint), sink)
    rows = sink.read(spark).collect()
    counts = Counter(row["status"] for row in rows)
    assert counts["EXPIRED"] > 0 and report.summary.by_status == dict(counts)
    waiting = 41 - len(rows)
    assert waiting > 0
    assert report.gauges["pending"] == sum(report.remaining.values()) == waiting
    left = pending(spark, checkpoint=str(landing.checkpoint)).select("remaining_ms").collect()
    assert report.remaining == Counter(bisect_right(BOUNDS_MS, row["remaining_ms"]) for row in left)
    assert report.criteria == {"any_key": waiting}
    assert {status: sum(by_hour.values()) for status, by_hour in report.by_hour.items()} == dict(counts)
    assert report.summary.file_bytes == sorted(path.stat().st_size for path in (tmp_path / "table").rglob("*.parquet"))
    told = status_of(landing)
    assert re.match(
        rf"The last micro-batch began .* ago\. Micro-batch {report.gauges['batch_id']} began at 20", told[0]
    )
    assert told[1].startswith("Watermark: 2024-05-01 12:") and told[2] == f"Table: {tmp_path}/table"
    assert told[3:] == [
        f"Drain 0 of {len(rows)} rows is in the table",
        "Staged: no rows, so every outcome so far is in the table",
    ]
    html = page(report)
    text = " ".join(re.sub("<[^>]+>", " ", unescape(html)).split())
    assert f"41 received = {len(rows)} with an outcome + {waiting} waiting. {len(rows)} rows are in" in text
    assert "Nothing lost" in text and f"{waiting} wait" in text and "The watermark is at 2024-05-01 12:" in text
    assert [batch.batch_id for batch in report.history] == list(range(report.gauges["batch_id"] + 1))
    assert report.history[-1].watermark_ms == report.gauges["watermark_ms"]
    assert "The last micro-batch began" in text and report.name == "table"
    outside = re.findall(r"""(?:src|href)=["']?(?![#"'])([^"'> ]+)""", html)
    assert html.count("<svg") == 2 and outside == [LOOKS_WRONG]
    assert "'new'" not in text
    # By another name for its place the table is the same, and another table is not.
    same = RecordAccumulator(path=f"file:{tmp_path}/table")
    assert same.read(spark, staged=True, checkpoint=str(landing.checkpoint)).count() == len(rows)
    other = RecordAccumulator(path=f"{tmp_path}/other")
    with pytest.raises(
        ConfigError, match=r"belongs to table .*/table, and table .*/other has no rows of its query: name "
    ):
        other.read(spark, staged=True, checkpoint=str(landing.checkpoint))


def status_of(landing: Landing) -> list[str]:
    """What ``status`` prints, in a process that can start no Java, within seconds."""
    began = time.monotonic()
    words = [sys.executable, "-m", "spark_purgatory", "status", str(landing.checkpoint)]
    asked = subprocess.run(words, env={**os.environ, "JAVA_HOME": "/none"}, capture_output=True, text=True, check=True)
    assert time.monotonic() - began < 10, "about one on a machine without other work"
    return asked.stdout.splitlines()


def command(*words: str) -> Any:
    """In this process, whose session it finds."""
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})


def test_both_commands_answer_and_name_what_is_wrong(spark: SparkSession, tmp_path: Path) -> None:
    landing, _ = written(spark, tmp_path)
    out = tmp_path / "pages" / "report.html"
    made = command("report", str(landing.checkpoint), "-o", str(out), "--name", "orders")
    assert made.exit_code == 0, made.stderr
    assert re.search(rf"Written: .*{out.name} \([\d,]+ bytes\)", made.stdout.replace("\n", ""))
    assert {"any_key", "<h1>orders</h1>"} <= set(re.findall("any_key|<h1>.*?</h1>", out.read_text(encoding="utf-8")))
    shown = command("pending", str(landing.checkpoint), "--where", "id = 'new'", "--columns", "id,progress", "--json")
    assert shown.exit_code == 0, shown.stderr
    assert [json.loads(line) for line in shown.stdout.splitlines()] == [{"id": "new", "progress": "0 of 1"}]
    shown = command("pending", str(landing.checkpoint), "--where", "id = 'new'")
    assert re.match(r"1 waits   watermark \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC   next in .* h\n", shown.stdout)
    shown = command("pending", str(landing.checkpoint), "--where", "id = 'ended'")
    assert "0 wait\nNothing waits where id = 'ended': its outcome is in the table" in shown.stdout
    for words, said in (
        (["pending", str(tmp_path / "none")], "is not a checkpoint of a streaming query"),
        (["status", str(tmp_path / "none")], "has no file 'metadata' of a query on this machine's disk"),
        (["status", "s3a://bucket/ck"], "run spark-purgatory status --spark"),
        (["pending", str(landing.checkpoint), "--where", "id = new1"], "(Text needs quotes: \"order_id = 'A-7'\")"),
        (["pending", str(landing.checkpoint), "--where", "no_such = 1"], "no_such"),
        (["pending", str(landing.checkpoint), "--conf", "master"], "--conf must be NAME=VALUE"),
        (["report", str(landing.checkpoint), "--conf", "=x"], "number 1 of 1 is not"),
        (["report", str(tmp_path / "none")], "names no table: name the checkpointLocation"),
    ):
        failed = command(*words)
        assert failed.exit_code == 2 and said in failed.stderr, failed.stderr
        assert "Traceback" not in failed.stderr
