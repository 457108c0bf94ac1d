"""Dead letters of the job: rows that do not fit the schema, with their text and the reason, each once."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession
from rich.console import Console

from spark_purgatory.errors import ConfigError, PurgatoryError, StorageError, TableLostError
from spark_purgatory.job import dead_letters
from spark_purgatory.job.config_file import JobConfigError, load_config
from spark_purgatory.job.dead_letters import COLUMNS, malformed_records
from spark_purgatory.job.job_config import JobConfig
from spark_purgatory.job.runner import run
from spark_purgatory.job.source_config import KafkaSource
from spark_purgatory.job.stopping import StopRequest
from tests.support.sink_queries import forget

ORDERS = "order_id string, amount int, ordered_at timestamp, lines array<struct<n: int>>"
PAYMENTS = "order_id string, paid_at timestamp"


def job(folder: Path, **sections: Any) -> JobConfig:
    """A job that reads JSON orders and CSV payments of a folder."""
    fields: dict[str, Any] = {
        "operations": {
            "source": {"format": "json", "path": str(folder / "orders"), "schema": ORDERS},
            "id": "order_id",
            "keys": "order_id",
            "created": "ordered_at",
            "timeout": "30 minutes",
            "watermark": "0 seconds",
        },
        "completions": {
            "source": {
                "format": "csv",
                "path": str(folder / "payments"),
                "schema": PAYMENTS,
                "options": {"header": True, "sep": ";", "Mode": "DROPMALFORMED"},
            },
            "key": "order_id",
            "time": "paid_at",
            "watermark": "0 seconds",
        },
        "purgatory": {"criterion": "any_key"},
        "output": {"path": str(folder / "outcomes")},
        "checkpoint": str(folder / "checkpoint"),
        "dead_letters": {"path": str(folder / "dead")},
        "trigger": {"availableNow": True},
        **sections,
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(fields), encoding="utf-8")
    return load_config(path)


def land(folder: Path, number: int, orders: list[str], payments: list[str]) -> None:
    for name, lines in ((f"orders/{number}.json", orders), (f"payments/{number}.csv", ["a;b", *payments])):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def letters(spark: SparkSession, folder: Path) -> Counter[tuple[str, str, str, str]]:
    table = spark.read.format("delta").load(str(folder / "dead"))
    assert tuple(table.columns) == COLUMNS
    assert table.where("abs(timestampdiff(hour, read_at, current_timestamp())) > 1 or read_at is null").isEmpty()
    rows = table.collect()
    return Counter((row.input, row.source.rsplit("/", 1)[1], row.reason, row.raw) for row in rows)


GOOD = json.dumps({"order_id": "o", "amount": 1, "ordered_at": "2024-03-01T08:00:00Z", "lines": [{"n": 1}]})
WRONG_TYPES = json.dumps({"order_id": "p", "amount": "many", "ordered_at": "soon"})
BROKEN = GOOD.encode().replace(b'"o"', b'"\xff"')
NESTED = json.dumps({"order_id": "q", "amount": 1, "ordered_at": "2024-03-01T08:01:00Z", "lines": [{"n": "x"}]})


def test_each_row_that_does_not_fit_is_a_letter_once_and_all_go_on_as_before(
    spark: SparkSession, tmp_path: Path
) -> None:
    config = job(tmp_path)
    orders = [GOOD, '{"order_id": "cut', WRONG_TYPES, "just text", "", NESTED]
    land(tmp_path, 1, orders, ["o;2024-03-01T08:05:00Z", "p;soon", "q"])
    said = StringIO()
    summary = run(spark, config, Console(file=said, width=200), StopRequest())
    assert letters(spark, tmp_path) == Counter(
        [
            ("operations", "1.json", "not a JSON object", '{"order_id": "cut'),
            ("operations", "1.json", "not of the field's type: amount, ordered_at", WRONG_TYPES),
            ("operations", "1.json", "not a JSON object", "just text"),
            ("operations", "1.json", "a part of a field does not fit its type", NESTED),
            ("completions", "1.csv", "not of the field's type: paid_at", "p;soon"),
            ("completions", "1.csv", "not as many fields as the schema has", "q"),
        ]
    )
    assert summary is not None and summary.conserved
    assert (summary.tally.received, summary.by_status) == (5, {"REJECTED": 3, "COMPLETED": 1})
    assert f"Dead letters: 6 in {tmp_path}/dead" in said.getvalue()


@pytest.mark.long
@pytest.mark.spark
def test_letters_whose_checkpoint_was_left_without_their_table_come_again(spark: SparkSession, tmp_path: Path) -> None:
    """A fresh start forgot that checkpoint: the letters were missing, and the job ended with Spark's PATH_NOT_FOUND."""
    config = job(tmp_path)
    land(tmp_path, 1, [GOOD, "x"], ["o;soon"])
    run(spark, config, Console(file=StringIO()), StopRequest())
    before = letters(spark, tmp_path)
    for folder in ("checkpoint", "outcomes", "dead"):
        shutil.rmtree(tmp_path / folder)
    with pytest.raises(ConfigError, match=r"has read 1 micro-batches, but its table .*name another folder") as told:
        run(spark, config, Console(file=StringIO()), StopRequest())
    assert "remove" not in str(told.value) and not (tmp_path / "outcomes").exists()
    other = {"path": str(tmp_path / "dead"), "checkpoint": str(tmp_path / "again")}
    summary = run(spark, job(tmp_path, dead_letters=other), Console(file=StringIO()), StopRequest())
    assert letters(spark, tmp_path) == before and before.total() == 2
    assert summary is not None and summary.conserved and summary.tally.received == 2


@pytest.mark.long
@pytest.mark.spark
def test_letters_are_not_written_once_more_by_a_new_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """It reads the sources from their beginning, as the default does after a move to another checkpoint."""
    folder = tmp_path / "folder"
    folder.mkdir()
    config = job(folder)
    land(folder, 1, [GOOD, "x"], ["o;soon"])
    run(spark, config, Console(file=StringIO()), StopRequest())
    before = letters(spark, folder)
    moved = load_config(folder / "job.yaml", [f"checkpoint={folder}/moved"])
    with pytest.raises(ConfigError, match=r"moved_dead_letters' has no micro-batch yet, but table \S+ has letters"):
        dead_letters.start(spark, moved)
    named = load_config(folder / "job.yaml", [f"dead_letters.checkpoint={config.dead_letters_checkpoint}"])
    land(folder, 2, ["y"], [])
    run(spark, named, Console(file=StringIO()), StopRequest())
    assert letters(spark, folder) == before + Counter([("operations", "2.json", "not a JSON object", "y")])
    sources = folder / "checkpoint_dead_letters" / "sources"
    sources.rename(folder / "sources")
    with pytest.raises(StorageError, match=r"dead_letters.checkpoint='\S+' is damaged\. .* sources/0/0 is missing"):
        dead_letters.start(spark, named)
    for name in ("offsets", "commits"):
        shutil.rmtree(folder / "checkpoint_dead_letters" / name)
    with pytest.raises(ConfigError, match="has no micro-batch yet"):  # Its table would skip the first one.
        dead_letters.start(spark, named)


@pytest.mark.long
def test_letters_of_a_table_that_was_restored_or_made_again_or_of_an_old_checkpoint_are_not_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    config, table = job(tmp_path), f"delta.`{tmp_path / 'dead'}`"
    checkpoint = Path(config.dead_letters_checkpoint)

    def make_again(aside: Path) -> None:
        shutil.move(tmp_path / "dead", aside)
        spark.sql(f"CREATE TABLE {table} USING delta AS SELECT * FROM delta.`{aside}` WHERE false")

    def run_with(number: int, line: str) -> None:
        land(tmp_path, number, [line], [])
        query = dead_letters.start(spark, config)
        assert query is not None
        query.awaitTermination()

    run_with(0, GOOD)
    run_with(1, "x")
    make_again(tmp_path / "gone")
    shutil.rmtree(checkpoint / "commits")  # As after a kill in the first micro-batch.
    run_with(2, GOOD)
    shutil.copytree(checkpoint, tmp_path / "copy")
    run_with(3, "y")
    spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF 0")
    said = r"was restored to version 0, before its letters.* RESTORE the table to version (\d+) and"
    with pytest.raises(TableLostError, match=said) as told:
        dead_letters.start(spark, config)
    [version] = re.findall(said, str(told.value))
    spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {version}")
    shutil.move(checkpoint, tmp_path / "newest")
    shutil.move(tmp_path / "copy", checkpoint)
    with pytest.raises(TableLostError, match=r"later micro-batch than its last one, 2: .* Bring the newest checkpoint"):
        dead_letters.start(spark, config)
    shutil.rmtree(checkpoint)
    shutil.move(tmp_path / "newest", checkpoint)
    make_again(tmp_path / "aside")
    with pytest.raises(TableLostError, match=r"it was made again.* Bring the earlier table back"):
        dead_letters.start(spark, config)
    shutil.rmtree(tmp_path / "dead")
    shutil.move(tmp_path / "aside", tmp_path / "dead")
    run_with(4, "z")
    assert sorted(raw for *_, raw in letters(spark, tmp_path).elements()) == ["x", "y", "z"]


@pytest.mark.long
@pytest.mark.spark
def test_names_that_the_catalog_forgot_end_no_job_without_their_remedy(spark: SparkSession, tmp_path: Path) -> None:
    config = job(tmp_path, dead_letters={"table": "letters"})
    land(tmp_path, 1, [GOOD, "x"], ["o;soon"])
    run(spark, config, Console(file=StringIO()), StopRequest())
    forget(spark, "letters", tmp_path)
    with pytest.raises(TableLostError, match=r"no table spark_catalog\.default\.letters.*nothing is lost") as told:
        run(spark, config, Console(file=StringIO()), StopRequest())
    [place] = re.findall(r"Give path='(\S+)' in place of the name \(dead_letters\.path", str(told.value))
    land(tmp_path, 2, ["y"], [])
    given = {"path": place, "checkpoint": config.dead_letters_checkpoint}
    run(spark, job(tmp_path, dead_letters=given), Console(file=StringIO()), StopRequest())
    assert Counter(spark.read.format("delta").load(place).toPandas()["raw"]) == Counter(["x", "o;soon", "y"])


@pytest.mark.long
def test_a_replayed_micro_batch_writes_no_letter_twice_and_a_later_run_only_its_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    config = job(tmp_path)
    land(tmp_path, 1, [GOOD, "x"], ["o;soon"])
    run(spark, config, Console(file=StringIO()), StopRequest())
    before = letters(spark, tmp_path)
    assert before.total() == 2
    # As after a kill between Delta's commit and Spark's.
    commits = tmp_path / "checkpoint_dead_letters" / "commits"
    [last] = [path for path in commits.iterdir() if path.name.isdigit()]
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    land(tmp_path, 2, ["y"], [])
    run(spark, config, Console(file=StringIO()), StopRequest())
    assert letters(spark, tmp_path) == before + Counter([("operations", "2.json", "not a JSON object", "y")])


@pytest.mark.long
def test_letters_that_cannot_be_written_end_the_job(spark: SparkSession, tmp_path: Path) -> None:
    land(tmp_path, 1, [GOOD, "x"], ["o;soon"])
    (tmp_path / "dead").write_text("a file where the table should be")
    config = job(tmp_path, trigger={"processingTime": "1 second"})
    with pytest.raises(Exception, match="dead") as error:  # Spark's or Delta's own, as it comes
        run(spark, config, Console(file=StringIO()), StopRequest())
    assert not isinstance(error.value, PurgatoryError)
    assert not spark.streams.active


@pytest.mark.long
def test_records_of_kafka_that_are_no_json_of_the_schema_are_letters(spark: SparkSession) -> None:
    values = [GOOD.encode(), WRONG_TYPES.encode(), b"", b"no json", None, BROKEN]
    records = spark.createDataFrame(
        [("orders", 3, offset, value) for offset, value in enumerate(values)],
        "topic string, partition int, offset bigint, value binary",
    )
    source = KafkaSource.model_validate(
        {"format": "kafka", "topic": "orders", "schema": ORDERS, "options": {"kafka.bootstrap.servers": "none:1"}}
    )
    rows = malformed_records(records, source, "operations").collect()
    assert sorted((row.source, row.reason, row.raw, row.raw_bytes) for row in rows) == [
        ("orders/3/1", "not of the field's type: amount, ordered_at", WRONG_TYPES, None),
        ("orders/3/2", "not a JSON object", "", None),
        ("orders/3/3", "not a JSON object", "no json", None),
        ("orders/3/4", "the record has no value", None, None),
        ("orders/3/5", "not UTF-8", None, BROKEN),
    ]


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (
            {"dead_letters": {"path": "outcomes"}, "output": {"path": "outcomes"}},
            "output.path 'outcomes' and dead_letters.path 'outcomes' are one place",
        ),
        ({"dead_letters": {"path": "d", "checkpoint": "d"}}, "dead_letters.checkpoint 'd' are one place"),
        (
            {"dead_letters": {"path": "c_dead_letters"}, "checkpoint": "c/"},
            "dead_letters.checkpoint 'c_dead_letters' are one place: each needs its own",
        ),
        ({"dead_letters": {}}, "dead_letters: give exactly one of path and table"),
        ({"dead_letters": {"path": "d", "format": "iceberg"}}, "dead_letters: format='iceberg' needs a name"),
        (
            {"dead_letters": {"table": "`c`.d.T"}, "output": {"table": "c.d.t"}},
            "output.table 'c.d.t' and dead_letters.table '`c`.d.T' are one place",
        ),
    ],
)
def test_folders_that_are_the_same_are_refused_by_name(tmp_path: Path, sections: dict[str, Any], said: str) -> None:
    with pytest.raises(JobConfigError, match=said):
        job(tmp_path, **sections)


def test_sources_without_text_have_no_dead_letters() -> None:
    orders = Path(__file__).resolve().parents[2] / "conf" / "orders.yaml"
    with pytest.raises(JobConfigError, match="the sources are parquet and parquet, whose rows always fit their types"):
        load_config(orders, ["dead_letters={path: d}"])
