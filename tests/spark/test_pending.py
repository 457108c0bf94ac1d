"""`pending`: what waits, read from a checkpoint, against a count of the landed rows that shares no code with it."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_purgatory import (
    STATE_STORE_SETTINGS,
    RecordAccumulator,
    check_checkpoint,
    criteria,
    gauges,
    pending,
)
from spark_purgatory.config.options import LOG_HOST
from spark_purgatory.doctor.session import checkpoint_findings
from spark_purgatory.errors import ConfigError, StateUnreadableError
from spark_purgatory.job.commands import PendingRequest, show_pending
from spark_purgatory.spark.checkpoint.shard_states import _of_log_host
from spark_purgatory.spark.storage.spark_access import settings
from spark_purgatory.spark.storage.storage_access import absolute
from spark_purgatory.terminal import terminal
from tests.support.now_and_then import now_and_then
from tests.support.stream_rows import at, event, operation, operations_with, purgatory
from tests.support.streams import Host, Landing

RULES = ("any_key", "all_keys", "quorum", "count", "sum_at_least", "level", "until_deadline")
BY_ROW = purgatory(
    operations=operations_with(keys="keys"), criterion=criteria.by_row(rule="rule", need="need", levels="levels")
)
Row = Mapping[str, Any]


def expected_progress(waits: Row, events: list[Row]) -> dict[str, Any]:
    """One operation's progress, counted from the landed rows."""
    keys = sorted(set(waits["keys"]))
    mine = [e for e in events if e["key"] in keys and waits["created"] <= e["time"] <= waits["deadline"]]
    rule, need = waits["rule"], waits["need"]
    satisfied = {e["key"] for e in mine}
    if rule == "level":
        satisfied = {
            e["key"] for e in events if e["key"] in keys and e["value"] >= need and e["time"] <= waits["deadline"]
        }
    reached = {"count": len(mine), "sum_at_least": sum(e["value"] for e in mine)}.get(rule, len(satisfied))
    if rule == "until_deadline":
        reached = min(reached, 1)
    needed = {"any_key": 1, "until_deadline": 1, "all_keys": len(keys), "level": len(keys)}.get(rule, need)
    return {
        "watch_keys": keys,
        "missing_keys": None if rule in ("count", "sum_at_least") else sorted(set(keys) - satisfied),
        "matched": len(mine),
        "criterion": rule,
        "reached": reached,
        "needed": needed,
        "progress": f"{reached:.12g} of {needed:.12g}",
        "created_at": waits["created"],
        "deadline_at": waits["deadline"],
    }


def utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else sorted(value) if isinstance(value, list) else value


def test_what_waits_and_how_far_it_has_come_is_what_a_count_of_the_landed_rows_gives(
    spark: SparkSession, tmp_path: Path
) -> None:
    with settings(spark, STATE_STORE_SETTINGS):
        compare_with_a_count(spark, tmp_path)


def compare_with_a_count(spark: SparkSession, tmp_path: Path) -> None:
    rng, landing = random.Random(5), Landing(tmp_path, wide=True)
    operations: dict[str, Row] = {}
    events: list[Row] = []
    for batch in range(3):
        new = [
            operation(
                f"{batch}-{i}",
                created=batch * 10 + rng.random(),
                deadline=batch * 10 + rng.choice((4, 200)),
                keys=rng.sample("abcdefgh", 3),
                rule=rng.choice(RULES),
                need=rng.choice((2.0, 3.0, 40.0)),
            )
            for i in range(30)
        ]
        came = [
            event(rng.choice("abcdefgh"), batch * 10 + 1 + rng.random(), rng.choice((0.5, 1.0, 2.25))) for _ in range(6)
        ]
        landing.add(new, came)
        operations |= {each["id"]: each for each in new}
        events += came
        outcomes = landing.run(spark, BY_ROW)
        found = {row["id"]: row.asDict() for row in pending(spark, checkpoint=str(landing.checkpoint)).collect()}
        assert set(found) == set(operations) - {row["id"] for row in outcomes}
        assert found and outcomes
        for name, row in found.items():
            expected = expected_progress(operations[name], events)
            assert {field: utc(row[field]) for field in expected} == expected, name
            assert row["row"] == name and row["held_until"] is None
            if row["remaining_ms"] is not None:
                assert row["remaining_ms"] > 0
                whole = timedelta(milliseconds=row["remaining_ms"] + row["age_ms"])
                span = operations[name]["deadline"] - operations[name]["created"]
                assert abs(whole - span) <= timedelta(milliseconds=2)


@pytest.mark.long
def test_a_place_that_is_relative_is_told_to_executors_as_the_driver_knows_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "a b" / "commits").mkdir(parents=True)
    (tmp_path / "a b" / "commits" / "0").write_text("v1\n{}", encoding="utf-8")
    (tmp_path / "a b" / "metadata").write_text("{}", encoding="utf-8")
    jvm: Any = spark._jvm
    relative = os.path.relpath(tmp_path / "a b", start=jvm.java.lang.System.getProperty("user.dir"))
    assert not relative.startswith("/")
    assert absolute(spark, relative).removeprefix("file:").lstrip("/") == str(tmp_path / "a b").lstrip("/")
    assert absolute(spark, "s3a://lake/checkpoint") == "s3a://lake/checkpoint"
    assert absolute(spark, str(tmp_path)) == str(tmp_path)


def test_past_micro_batches_are_read_and_those_that_are_gone_are_named(spark: SparkSession, tmp_path: Path) -> None:
    landing = Landing(tmp_path)
    checkpoint = str(landing.checkpoint)
    with pytest.raises(ConfigError, match=r"is not a checkpoint of a streaming query: name the checkpointLocation"):
        pending(spark, checkpoint=checkpoint)
    (landing.checkpoint / "commits").mkdir(parents=True)  # As it is for a moment when a query starts.
    assert pending(spark, checkpoint=checkpoint).count() == 0
    for n in range(3):
        landing.add([operation(f"o{n}", deadline=300)], [event("o0" if n == 2 else "x", 1)])
    landing.run(spark, purgatory())
    waits = {n: {row["id"] for row in pending(spark, checkpoint=checkpoint, batch_id=n).collect()} for n in range(3)}
    assert waits == {0: {"o0"}, 1: {"o0", "o1"}, 2: {"o1", "o2"}}
    with pytest.raises(ConfigError, match=r"batch_id=9: checkpoint .* keeps only the micro-batches 0 to \d+: .*minB"):
        pending(spark, checkpoint=checkpoint, batch_id=9)


@pytest.mark.long
def test_the_log_of_a_shard_is_read_in_its_order_though_the_store_gives_it_in_another(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Nothing promises an order of a map's entries; here the last comes first."""
    rows = spark.range(2, -1, -1, 1).selectExpr(
        "struct(7 as shard) as key",
        "struct(id as entry) as user_map_key",
        "struct(cast(string(id) as binary) as blob) as value",
    )
    rows.withColumn("user_map_value", F.col("value")).write.parquet(str(tmp_path / "log"))
    whole, _ = _of_log_host(spark.read.format("parquet"), str(tmp_path / "log"))
    assert {tuple(map(bytes, row.log)) for row in whole.collect()} == {(b"0", b"1", b"2")}


@pytest.mark.long
def test_a_checkpoint_whose_name_has_wildcards_is_read_as_it_is_and_no_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    landing = Landing(tmp_path).add([operation("a", deadline=300), operation("b")], [event("b", 5), event("x", 8)])
    landing.checkpoint = tmp_path / "with_*_in_it"
    other = Landing(tmp_path / "other").add([operation("other", deadline=300)], [event("x", 8)])
    other.checkpoint = tmp_path / "with_more_in_it"  # which the first matches as a pattern
    for _ in range(2):
        other.run(spark, purgatory())
        other.add([operation("other2", deadline=300)], [])
    landing.run(spark, purgatory())
    checkpoint = str(landing.checkpoint)
    assert [row["id"] for row in pending(spark, checkpoint=checkpoint).collect()] == ["a"]
    assert gauges(spark, checkpoint=checkpoint)["pending"] == 1
    found = {finding.what: finding for finding in checkpoint_findings(spark, checkpoint)}
    assert not [finding for finding in found.values() if finding.remedy] and found["pending"].found == "1 operations"


@pytest.mark.long
def test_where_spark_cannot_read_state_at_a_path_that_is_said_and_the_query_goes_on(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    landing = Landing(tmp_path).add([operation("a", deadline=300)], [event("x", 8)])
    checkpoint = str(tmp_path / "with [odd] characters")
    sink = RecordAccumulator(path=str(tmp_path / "table"))
    outcomes = purgatory().resolve(*landing.frames(spark))
    for _ in range(2):
        sink.write_stream(outcomes, checkpoint=checkpoint, trigger={"availableNow": True}).awaitTermination()
        landing.add([], [event("a", 9)])
    assert sink.read(spark).count() == 1, "the second start went on"
    assert "the checkpoint is not compared with the query before it starts" in caplog.text
    assert caplog.text.count("no later start can be compared with its state") == 1, "said where it can be changed"
    for ask in (pending, gauges, lambda spark, checkpoint: check_checkpoint(spark, outcomes, checkpoint=checkpoint)):
        with pytest.raises(ConfigError, match=r"finds nothing at a path with ' ', '\[', '\]': read a copy"):
            ask(spark, checkpoint=checkpoint)
    (found,) = checkpoint_findings(spark, checkpoint)
    assert (found.found, found.remedy[:11]) == ("its state cannot be read at this path", "checkpoint=")


@pytest.mark.long
def test_rows_are_shown_in_any_order_of_sql(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    landing = Landing(tmp_path).add([operation("a", 0, 30), operation("b", 0, 40), operation("c", 0, 40)], [])
    landing.run(spark, purgatory())
    monkeypatch.setattr("spark_purgatory.job.commands.reading_session", lambda *given, **more: spark)
    for order_by, expected in (("remaining_ms DESC, id DESC", "cba"), ("map_values(map('{', id))", "abc")):
        request = PendingRequest(str(landing.checkpoint), "true", order_by, ["id"], 20, None, "", True, [])
        show_pending(request, terminal())
        assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == list(expected)


def test_values_are_shown_with_the_digits_that_the_rows_have(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    landing = Landing(tmp_path).add([operation("order:key:\x1b[31m1", 0.0000001, 30)], [])

    operations, events = landing.frames(spark)
    values = {
        "amount": F.lit(Decimal("12345678901234567.89")),
        "price": F.lit(Decimal("208.80")),
        "many": F.lit(2**63 - 1),
        "ratio": F.lit(0.1),
        "day": F.to_date(F.lit("2024-05-01")),
        "is_new": F.lit(True),
        "code": F.lit(bytearray(b"\x00\xff")),
        "local": F.lit("2024-05-01 12:00:00.123456").cast("timestamp_ntz"),
        "nested": F.struct(F.lit(Decimal("1.50")).alias("net")),
    }
    query = purgatory().resolve(operations.withColumns(values), events).writeStream.format("noop")
    query.option("checkpointLocation", str(landing.checkpoint)).trigger(availableNow=True).start().awaitTermination()
    monkeypatch.setattr("spark_purgatory.job.commands.reading_session", lambda *given, **more: spark)

    def shown(as_json: bool) -> str:
        names = ["id", *values, "created_at"]
        request = PendingRequest(str(landing.checkpoint), "true", "id", names, 20, None, "", as_json, [])
        show_pending(request, terminal())
        return capsys.readouterr().out

    text = shown(as_json=True)
    monkeypatch.setenv("COLUMNS", "400")
    _, _, head, _, row, *_ = (re.split(" {2,}", line.strip()) for line in shown(as_json=False).splitlines())
    cells = dict(zip(head, row, strict=True))
    numbers = {"amount": "12345678901234567.89", "price": "208.80", "many": "9223372036854775807", "ratio": "0.1"}
    for name, value in (numbers | {"is_new": "true"}).items():
        assert f'"{name}":{value},' in text and cells[name] == value
    for name, value in {"day": "2024-05-01", "local": "2024-05-01T12:00:00.123456"}.items():
        assert f'"{name}":"{value}"' in text and cells[name] == value
    for part in ('"code":"AP8="', '"nested":{"net":1.50}', '"created_at":"2024-05-01T12:00:00.000006Z"'):
        assert part in text
    assert json.loads(text)["id"] == "order:key:\x1b[31m1" and cells["id"] == "order:key:\\u001b[31m1"
    assert (cells["nested"], cells["created_at"]) == ("{net: 1.50}", "2024-05-01 12:00:00.000006 UTC")


@pytest.mark.long
def test_columns_are_chosen_and_names_that_are_taken_get_a_prefix(spark: SparkSession, tmp_path: Path) -> None:
    landing = Landing(tmp_path).add([operation("a"), operation("b")], [event("b", 5), event("x", 8)])
    landing.run(spark, purgatory())
    checkpoint = str(landing.checkpoint)
    two = pending(spark, checkpoint=checkpoint, columns=["id", "progress"])
    assert [row.asDict() for row in two.collect()] == [{"id": "a", "progress": "0 of 1"}]
    with pytest.raises(ConfigError, match=r"columns=\['nothing'\] do not exist: choose from id, key, .*remaining_ms"):
        pending(spark, checkpoint=checkpoint, columns=["id", "nothing"])
    named = pending(
        spark, checkpoint=checkpoint, prefix="waits_", columns=["waits_matched", "waits_deadline_at"]
    ).collect()
    assert [(row["waits_matched"], utc(row["waits_deadline_at"])) for row in named] == [(0, at(30))]

    taken = [frame.withColumn("Watch_Keys", F.lit(1)) for frame in landing.frames(spark)]
    query = purgatory().resolve(*taken).writeStream.format("noop").option("checkpointLocation", f"{tmp_path}/taken")
    query.trigger(availableNow=True).start().awaitTermination()
    with pytest.raises(ConfigError, match=r"have a column watch_keys of their own: give pending.. a prefix="):
        pending(spark, checkpoint=f"{tmp_path}/taken")
    assert pending(spark, checkpoint=f"{tmp_path}/taken", prefix="waits_").count() == 1


def test_an_outcome_that_is_held_says_until_when_and_exact_sums_show_as_they_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    landing = Landing(tmp_path)
    landing.add(
        [operation("held", deadline=60), operation("open", deadline=60)], [event("held", 5), event("open", 6, 0.1)]
    )
    final = purgatory(emit="final", criterion=criteria.sum_at_least(Decimal("0.30")))
    operations, events = landing.frames(spark)
    cents = events.withColumn("value", F.col("value").cast("decimal(19,2)"))
    query = final.resolve(operations, cents).writeStream.format("noop").option("checkpointLocation", f"{tmp_path}/held")
    query.trigger(availableNow=True).start().awaitTermination()
    waits = pending(spark, checkpoint=f"{tmp_path}/held", batch_id=0)
    assert dict(waits.select("reached", "needed").dtypes) == dict.fromkeys(["reached", "needed"], "decimal(38,2)")
    rows = {row["id"]: row for row in waits.collect()}
    assert [(row["reached"], row["needed"]) for row in map(rows.get, ("held", "open")) if row] == [
        (Decimal("1.00"), Decimal("0.30")),
        (Decimal("0.10"), Decimal("0.30")),
    ]
    assert {name: row["progress"] for name, row in rows.items()} == {"held": "1 of 0.3", "open": "0.1 of 0.3"}
    assert (utc(rows["held"]["held_until"]), rows["open"]["held_until"]) == (at(5), None)


STATE_LOSSES: dict[str, Callable[[Path], None]] = {
    "gone": shutil.rmtree,
    "empty": lambda state: [shutil.rmtree(folder) for folder in state.iterdir()] and None,
    "of an operator without anything": lambda state: shutil.rmtree(state / "0") or (state / "0").mkdir(),
    "of a shard gone": lambda state: shutil.rmtree(state / "0" / "0"),
    "without files": lambda state: [f.unlink() for f in (state / "0" / "0").rglob("*") if f.is_file()] and None,
}


@pytest.mark.long
@pytest.mark.parametrize("host", ["applyInPandasWithState", *now_and_then(LOG_HOST)])
def test_a_state_that_is_gone_is_an_error_of_the_state_with_its_remedy(
    spark: SparkSession, tmp_path: Path, host: Host
) -> None:
    with settings(spark, STATE_STORE_SETTINGS):
        landing = Landing(tmp_path).add([operation("a"), operation("b")], [event("x", 1)])
        asked = purgatory(host=host)
        landing.run(spark, asked)
        outcomes = asked.resolve(*landing.frames(spark))
        for name, lose in STATE_LOSSES.items():
            checkpoint = tmp_path / name.replace(" ", "_")
            shutil.copytree(landing.checkpoint, checkpoint)
            lose(checkpoint / "state")
            for call in (
                lambda checkpoint: pending(spark, checkpoint=checkpoint).collect(),
                lambda checkpoint: gauges(spark, checkpoint=checkpoint),
                lambda checkpoint: check_checkpoint(spark, outcomes, checkpoint=checkpoint),
            ):
                with pytest.raises(StateUnreadableError, match=r"(?i)bring back .* folder 'state'"):
                    call(str(checkpoint))
            found = list(checkpoint_findings(spark, str(checkpoint)))
            assert any("'state' from a copy" in f"{each.remedy}" for each in found), (name, found)
