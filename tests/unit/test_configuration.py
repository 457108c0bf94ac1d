"""Options are declared once: Python, the YAML file and the reference page have the same ones."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_purgatory import Completions, Operations, Purgatory, RecordAccumulator, criteria
from spark_purgatory.config import PurgatoryOptions, SinkOptions
from spark_purgatory.config.reference import options_of, reference
from spark_purgatory.errors import ConfigError
from spark_purgatory.job.config_file import JobConfigError, load_config
from spark_purgatory.job.job_config import (
    CompletionsInput,
    DeadLetters,
    Input,
    JobConfig,
    MetricsOutput,
    OperationsInput,
    Output,
    Rules,
    Trigger,
)
from spark_purgatory.job.sources import purgatory_of

ROOT = Path(__file__).resolve().parents[2]
SOURCE = {"format": "parquet", "path": "landing", "schema": "a string"}
SMALLEST: dict[str, Any] = {
    "operations": {"source": SOURCE, "id": "id", "keys": "key", "created": "at", "timeout": "1 hour"},
    "completions": {"source": SOURCE, "key": "key", "time": "at"},
    "output": {"path": "out"},
    "checkpoint": "checkpoint",
}


def config(tmp_path: Path, **sections: dict[str, Any]) -> JobConfig:
    """The smallest file with more fields in its sections."""
    whole = {
        name: {**part, **sections.get(name, {})} if isinstance(part, dict) else part for name, part in SMALLEST.items()
    }
    whole |= {name: part for name, part in sections.items() if name not in SMALLEST}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(whole))
    return load_config(path, ())


@pytest.mark.parametrize(
    ("model", "declared", "beside"),
    [
        (OperationsInput, Operations, set(Input.model_fields)),
        (CompletionsInput, Completions, set(Input.model_fields)),
        (Rules, PurgatoryOptions, {"criterion"}),
        (Output, SinkOptions, set()),
    ],
)
def test_the_file_has_every_option_of_python(model: Any, declared: type, beside: set[str]) -> None:
    python = set(options_of(declared)) - {"operations", "completions", "criterion"}
    assert set(model.model_fields) - beside == python
    for name, (option, default) in options_of(declared).items():
        if name in python and default is not dataclasses.MISSING:
            assert model.model_fields[name].default == (list(default) if option.kind == "names" else default), name


def test_purgatory_and_the_accumulator_take_what_is_declared_with_its_defaults() -> None:
    assert [field.name for field in dataclasses.fields(Purgatory)] == list(options_of(PurgatoryOptions))
    signature = inspect.signature(RecordAccumulator).parameters
    assert set(signature) == {*options_of(SinkOptions), "on_delivery"}
    for name, (_, default) in options_of(SinkOptions).items():
        assert signature[name].default == default, name


def test_every_option_of_the_file_reaches_the_library(tmp_path: Path) -> None:
    made = purgatory_of(
        config(
            tmp_path,
            operations={"watermark": "2 minutes", "idle_after": "5 minutes"},
            completions={
                "value": "amount",
                "kind": "kind",
                "operation_id": "order",
                "event_id": "delivery",
                "watermark_ms": 7,
                "idle_after_ms": 9,
            },
            purgatory={
                "criterion": {"by_row": {"rule": "rule", "need": "need", "levels": "levels"}},
                "emit": "final",
                "shards": None,
                "lookback": "1 minute",
                "max_future": "2 days",
                "tick": "5 ms",
                "outcome_prefix": "o_",
                "partition_by": "tenant",
                "orphans": True,
                "max_pending_per_shard": 11,
                "max_state_bytes_per_shard": 12,
                "max_broadcast_bytes": 13,
                "host": "transformWithState",
                "max_warm_bytes": 14,
                "name": "mine",
            },
        )
    )
    assert made == Purgatory(
        operations=Operations(
            id="id", keys="key", created="at", timeout="1 hour", watermark="2 minutes", idle_after="5 minutes"
        ),
        completions=Completions(
            key="key",
            time="at",
            value="amount",
            kind="kind",
            operation_id="order",
            event_id="delivery",
            watermark_ms=7,
            idle_after_ms=9,
        ),
        criterion=criteria.by_row("rule", "need", "levels"),
        emit="final",
        shards=None,
        lookback="1 minute",
        max_future="2 days",
        tick="5 ms",
        outcome_prefix="o_",
        partition_by="tenant",
        orphans=True,
        max_pending_per_shard=11,
        max_state_bytes_per_shard=12,
        max_broadcast_bytes=13,
        host="transformWithState",
        max_warm_bytes=14,
        name="mine",
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("any_key", criteria.any_key()),
        ({"quorum": 2}, criteria.quorum(2)),
        ("by_row", criteria.by_row()),
    ],
)
def test_a_criterion_in_the_file(tmp_path: Path, given: object, expected: object) -> None:
    assert purgatory_of(config(tmp_path, purgatory={"criterion": given})).criterion == expected


def test_a_need_in_quotes_is_an_exact_decimal(tmp_path: Path) -> None:
    made = purgatory_of(config(tmp_path, purgatory={"criterion": {"sum_at_least": "0.80"}})).criterion
    assert isinstance(made, criteria.Criterion)
    assert str(made.need) == "0.80"


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"operations": {"idle_after": "soon"}}, "operations.idle_after"),
        ({"purgatory": {"emit": "late"}}, r"purgatory.emit: 'late'; allowed: 'early' or 'final'|purgatory.emit"),
        ({"purgatory": {"partitioned_by": "x"}}, "did you mean 'partition_by'"),
        ({"purgatory": {"criterion": {"sum_at_least": "much"}}}, "'much' is not a number"),
        ({"output": {"linger_ms": -1}}, "output.linger_ms"),
    ],
)
def test_a_wrong_value_is_named_by_its_field(tmp_path: Path, sections: dict[str, Any], message: str) -> None:
    with pytest.raises(JobConfigError, match=message):
        config(tmp_path, **sections)


def test_the_reference_is_current() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == reference(), (
        "run python -m spark_purgatory.config.reference > docs/configuration.md"
    )


def test_the_reference_names_every_section_of_a_jobs_file() -> None:
    page = reference()
    for section, declared in (("", JobConfig), ("metrics", MetricsOutput), ("dead_letters", DeadLetters)):
        for name in declared.model_fields:
            assert f"`{name}`" in page, f"{section} {name}"
    for name in Trigger.model_fields:
        assert f"`{name}: " in page, name


def test_dropped_columns_are_named_in_python_and_in_the_file(tmp_path: Path) -> None:
    assert purgatory_of(config(tmp_path, operations={"dropped": ["city", "place.zip"]})).operations.dropped == (
        "city",
        "place.zip",
    )
    given = {"id": "id", "keys": "key", "created": "at", "timeout": "1 hour"}
    assert Operations(**given, dropped="city").dropped == ("city",)
    for wrong in ([""], ["a", "a"], 3, [None]):
        with pytest.raises(ConfigError, match=r"operations\.dropped=.* must be names of columns, each once"):
            Operations(**given, dropped=wrong)  # type: ignore[arg-type]


def test_the_state_store_follows_the_host(tmp_path: Path) -> None:
    assert config(tmp_path).chosen_store == "hdfs"
    assert config(tmp_path, purgatory={"host": "transformWithState"}).chosen_store == "rocksdb"
    with pytest.raises(JobConfigError, match=r"state_store is hdfs, and purgatory\.host transformWithState needs"):
        config(tmp_path, purgatory={"host": "transformWithState"}, state_store="hdfs")
