"""The tutorial and the how-to pages do what they say: their Python, YAML and commands run, and print what is shown."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import re
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from typer.testing import CliRunner

import spark_purgatory
from spark_purgatory import Completions, Operations, Purgatory, criteria
from spark_purgatory.cli import app
from spark_purgatory.job.config_file import load_config
from spark_purgatory.job.runner import run
from spark_purgatory.job.stopping import StopRequest
from tests.support.doc_page import BLOCK, DOCS, FRAGMENTS, IN_TURN, WIDTH, Page

pytestmark = pytest.mark.long

FOLDERS = ("/lake", "/tmp/shop")
"""What the pages call the folder that the test makes."""
SETTINGS = ("spark.sql.shuffle.partitions", "spark.sql.session.timeZone")
"""Settings of the session that a page may change."""


def page_of(text: str, name: str, folder: Path, spark: SparkSession) -> Page:
    """A page whose commands run in this process, on the session of all tests."""

    def command(words: list[str]) -> str:
        if words[1] == "run":
            # What the command does with its session, but for the end: it would stop the one of all tests.
            printed = io.StringIO()
            prefixes = {"--set": "", "--complete-until": "complete_until."}
            changes = [prefixes[option] + value for option, value in zip(words[3::2], words[4::2], strict=True)]
            run(spark, load_config(Path(words[2]), changes), Console(file=printed, width=WIDTH), StopRequest())
            return printed.getvalue()
        done = CliRunner(env={"COLUMNS": str(WIDTH)}).invoke(app, words[1:])
        assert done.exit_code == 0, f"{words}\n{done.output}"
        return done.output

    return Page(text, name, dict.fromkeys(FOLDERS, str(folder)), command, {"spark": spark})


@pytest.fixture
def folder(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder for the page's files, with a short name, which tables show in one line; all is undone after."""
    before = {name: spark.conf.get(name) for name in SETTINGS}
    with tempfile.TemporaryDirectory(prefix="docs_", ignore_cleanup_errors=True) as name:
        monkeypatch.chdir(name)
        yield Path(name)
        for query in spark.streams.active:
            query.stop()
        monkeypatch.undo()
    for setting, value in before.items():
        spark.conf.set(setting, value)


@pytest.mark.parametrize("path", IN_TURN, ids=lambda path: path.stem)
def test_a_page_does_what_it_says(path: Path, spark: SparkSession, folder: Path) -> None:
    page = page_of(path.read_text(encoding="utf-8"), path.name, folder, spark)
    page.run()
    assert "python" in page.ran or path.name in ("index.md", "sources.md")


def test_parts_of_programs_run_one_after_the_other(spark: SparkSession, folder: Path) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    names = {
        "spark": spark,
        "logging": logging,
        **{name: getattr(spark_purgatory, name) for name in spark_purgatory.__all__},
    }
    purgatory = Purgatory(
        operations=Operations(
            id="order_id", keys="order_id", created="ordered_at", timeout="1 hour", watermark="0 seconds"
        ),
        completions=Completions(key="order_id", time="paid_at", watermark="0 seconds"),
        criterion=criteria.any_key(),
        shards=2,
    )
    hours = "timestamp'2024-05-01 09:00' + make_dt_interval(0, cast(id as int))"
    sides = [
        (f"{folder}/{name}", spark.range(10).selectExpr("id as order_id", f"{hours} as {time}"))
        for name, time in (("orders", "ordered_at"), ("payments", "paid_at"))
    ]
    for path, rows in sides:
        rows.coalesce(1).write.parquet(path)
    streams = [spark.readStream.schema(rows.schema).parquet(path) for path, rows in sides]
    names["outcomes"] = purgatory.resolve(*streams)
    names["accumulator"] = names["RecordAccumulator"](path=f"{folder}/outcomes", linger="1 second")
    with zipfile.ZipFile("spark_purgatory-0.1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("nothing.txt", "")  # the workers have the package
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for page in FRAGMENTS:
            for language, code in BLOCK.findall(page.read_text(encoding="utf-8")):
                code = code.replace("/lake", str(folder)).replace("port=9108", "port=0")
                code = code.replace('"spark_purgatory.zip"', f'"{folder}/spark_purgatory.zip"')  # for the JVM
                if language == "python":
                    exec(compile(code, page.name, "exec"), names)
                elif language == "sql":
                    names["told"] = spark.sql(code).collect()
            names["query"].processAllAvailable()
            names["query"].flush()
            names["query"].stop()
            for query in spark.streams.active:
                query.stop()
    rows = spark.read.format("delta").load(f"{folder}/outcomes")
    assert rows.where("status = 'COMPLETED'").count() == 10
    assert spark_purgatory.__version__ in printed.getvalue()
    assert [row.expired for row in names["told"]] == [0.0] * 10


def test_the_merge_recipe_keeps_the_first_outcome_of_an_id(spark: SparkSession, folder: Path) -> None:
    """After the page's run, o-1 (COMPLETED) arrives again after its deadline, and o-4 arrives late, twice."""
    source = DOCS / "how-to" / "other_sinks.md"
    page = page_of(source.read_text(encoding="utf-8"), source.name, folder, spark)
    page.run()
    paid = page.names["orders"].where("order_id = 'o-1'").limit(1)
    new = paid.selectExpr("'o-4' as order_id", "ordered_at")
    paid.union(new).union(new).coalesce(1).write.mode("append").parquet(f"{folder}/orders")
    states = f"{folder}/order_states"
    spark.sql("select 'o-4' as order_id, 'OPEN' as state").write.format("delta").mode("append").save(states)
    page.names["writer"].start().awaitTermination()
    found = {row.order_id: row.state for row in spark.read.format("delta").load(states).collect()}
    assert found == {"o-1": "COMPLETED", "o-2": "EXPIRED", "o-3": "OPEN", "o-4": "EXPIRED"}


GUIDE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
TESTS = re.findall(r"^def (test_\w+)", "\n".join(SNIPPETS), re.MULTILINE)


def namespace() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for snippet in SNIPPETS:
        exec(snippet, names)
    return names


@pytest.mark.long
@pytest.mark.parametrize("name", TESTS)
def test_a_snippet_passes(name: str, spark: SparkSession, tmp_path: Path) -> None:
    fixtures = {"spark": spark}
    test = namespace()[name]
    for number, parameters in enumerate(cases(test)):
        given = {**fixtures, "tmp_path": tmp_path / str(number), **parameters}
        test(**{argument: given[argument] for argument in inspect.signature(test).parameters})


def cases(test: Any) -> list[dict[str, Any]]:
    """What `pytest.mark.parametrize` gives the test, once a call."""
    found: list[dict[str, Any]] = [{}]
    for mark in getattr(test, "pytestmark", []):
        name, values = mark.args
        found = [{**case, name: value} for case in found for value in values]
    return found
