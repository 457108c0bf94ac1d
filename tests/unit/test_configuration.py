"""Options are declared once: Python, the YAML file and the reference page have the same ones."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from spark_purgatory import (
    Completions,
    Operations,
    Purgatory,
    RecordAccumulator,
    check_checkpoint,
    criteria,
    export_state,
    gauges,
    move_checkpoint,
    pending,
)
from spark_purgatory.config import PurgatoryOptions, SinkOptions
from spark_purgatory.config.declared import Names, options_of
from spark_purgatory.config.places import Place
from spark_purgatory.config.units import Duration, Size, parse_duration
from spark_purgatory.errors import ConfigError
from spark_purgatory.job.config_file import load_config
from spark_purgatory.job.job_config import (
    CompletionsInput,
    DeadLetters,
    InputSection,
    JobConfig,
    MetricsOutput,
    OperationsInput,
    Output,
    RulesSection,
)
from spark_purgatory.job.source_config import AvroValues, DeltaSource, FolderSource, KafkaSource
from spark_purgatory.job.sources import purgatory_of
from spark_purgatory.spark.sink.record_accumulator import trigger_of
from tools import command_line_page
from tools.configuration_page import reference

ROOT = Path(__file__).resolve().parents[2]
SOURCE = {"format": "delta", "path": "landing"}
SMALLEST: dict[str, Any] = {
    "operations": {
        "source": SOURCE,
        "id": "id",
        "keys": "key",
        "created": "at",
        "timeout": "1 hour",
        "watermark": "1 minute",
    },
    "completions": {"source": SOURCE, "key": "key", "time": "at", "watermark": "1 minute"},
    "purgatory": {"criterion": "any_key"},
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
        (OperationsInput, Operations, set(InputSection.model_fields)),
        (CompletionsInput, Completions, set(InputSection.model_fields)),
        (RulesSection, PurgatoryOptions, {"criterion"}),
        (Output, SinkOptions, {"topic", "options"}),
    ],
)
def test_the_file_has_every_option_of_python(model: Any, declared: type, beside: set[str]) -> None:
    python = set(options_of(declared)) - {"operations", "completions", "criterion"}
    assert set(model.model_fields) - beside == python
    for name, option in options_of(declared).items():
        if name in python and option.default is not dataclasses.MISSING:
            assert model.model_fields[name].default == option.default, name


def test_purgatory_and_the_accumulator_are_their_options() -> None:
    assert list(options_of(Purgatory)) == list(options_of(PurgatoryOptions))
    assert list(options_of(RecordAccumulator)) == list(options_of(SinkOptions))
    accumulator = RecordAccumulator(path="out", linger="1 minute")
    assert accumulator.options == SinkOptions(path="out", linger="1 minute")
    assert set(inspect.signature(RecordAccumulator).parameters) == {*options_of(SinkOptions), "on_delivery"}


ANOTHER: dict[Any, Any] = {Duration: timedelta(minutes=29), Size: 200 << 20, Names: ("a", "b"), int: 3, str: "other"}


def every_option() -> list[tuple[type, str]]:
    classes = (Operations, Completions, PurgatoryOptions, SinkOptions)
    return [(declared, name) for declared in classes for name in options_of(declared)]


def replaceable() -> list[tuple[type, str]]:
    return [(declared, name) for declared, name in every_option() if options_of(declared)[name].kind in ANOTHER]


SMALLEST_OPTIONS: dict[type, dict[str, Any]] = {
    Operations: {"id": "id", "keys": "key", "created": "at", "timeout": "1 hour"},
    Completions: {"key": "key", "time": "at"},
    SinkOptions: {"path": "out"},
}
SMALLEST_OPTIONS[PurgatoryOptions] = {
    "operations": Operations(**SMALLEST_OPTIONS[Operations]),
    "completions": Completions(**SMALLEST_OPTIONS[Completions]),
    "criterion": criteria.any_key(),
}


@pytest.mark.parametrize(
    ("waits", "said"),
    [
        (
            {"timeout": "1 hour", "deadline": "due"},
            "give exactly one of timeout and deadline, got timeout and deadline",
        ),
        ({}, "give exactly one of timeout and deadline, got neither"),
        (
            {"timeout": "1 hour", "timeout_unit": "hours"},
            r"timeout_unit='hours' is the unit of .*timeout='1 hour' names no column",
        ),
        (
            {"deadline": "due", "timeout_unit": "hours"},
            r"timeout_unit='hours' is the unit of .*timeout=None names no column",
        ),
    ],
)
def test_how_long_an_operation_waits_is_said_once(waits: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Operations(id="id", keys="key", created="at", **waits)


def test_text_a_timedelta_and_an_int_mean_the_same() -> None:
    for linger in ("90 seconds", "1 minute 30 s", timedelta(seconds=90)):
        assert SinkOptions(path="out", linger=linger).ms_of("linger") == 90_000
        assert trigger_of(processingTime=linger) == {"processingTime": "90000 milliseconds"}
    assert parse_duration(timedelta(microseconds=1_001), "tick") == parse_duration("1 ms 1 us", "tick") == 1_001
    for batch_size in ("1 MiB", "1024 KiB", 1 << 20):
        assert SinkOptions(path="out", batch_size=batch_size).bytes_of("batch_size") == 1 << 20
    for wrong, said in (
        (0, "less than a byte"),
        ("0 B", "less than a byte"),
        (True, "a number and one of"),
        (1.5, "a number"),
    ):
        with pytest.raises(ConfigError, match=rf"^batch_size={wrong!r} is not a size: .*{said}"):
            SinkOptions(path="out", batch_size=wrong)  # type: ignore[arg-type]


HUGE: dict[Any, tuple[Any, ...]] = {
    int: (2**31, 2**63, 10**20, 10**400),
    Size: (2**60 + 1, 10**20, 10**400, "9999999999999 TiB"),
    Duration: (timedelta.max, "99999999999999999999 days"),
}


@pytest.mark.parametrize(("declared", "name"), replaceable(), ids=lambda part: getattr(part, "__name__", part))
def test_a_number_that_is_too_large_is_refused_by_name(declared: type, name: str) -> None:
    for value in HUGE.get(options_of(declared)[name].kind, ()):
        with pytest.raises(ConfigError, match=rf"^\w*\.?{name}="):
            declared(**{**SMALLEST_OPTIONS[declared], name: value})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: Operations(id="a", keys="a", created="a", timout="1 s"),
            "Operations has no timout=, did you mean 'timeout'",
        ),
        (lambda: Purgatory(operation=1), "Purgatory has no operation=, did you mean 'operations'"),
        (
            lambda: RecordAccumulator(path="a", linger_ms=1),
            "RecordAccumulator has no linger_ms=, did you mean 'linger'",
        ),
        (lambda: RecordAccumulator("a"), "RecordAccumulator takes its options by name: path, table, "),
        (lambda: Completions(key="a", time="a", nonsense=1), r"Completions has no nonsense=\. It has key, time, value"),
    ],
)
def test_a_misspelt_option_is_answered_with_the_one_that_was_meant(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


@pytest.mark.parametrize(
    ("call", "right"),
    [
        (lambda: gauges(None, "c"), "gauges(spark, checkpoint=...)"),
        (lambda: pending(None, "c", 3), "pending(spark, checkpoint=...)"),
        (lambda: check_checkpoint(None, "c", None), "check_checkpoint(spark, outcomes, checkpoint=...)"),
        (lambda: export_state(None, "c", "f"), "export_state(spark, checkpoint=..., folder=...)"),
        (lambda: move_checkpoint(None, None, "a", "b"), "move_checkpoint(spark, outcomes, source=..., target=...)"),
        (lambda: RecordAccumulator(path="a").write_stream(None, "c"), "write_stream(df, checkpoint=...)"),
        (
            lambda: purgatory_of(load_config(ORDERS)).resolve(None, None, "2026-01-01", False),
            "resolve(operations, completions, as_of=..., heartbeats=...)",
        ),
    ],
)
def test_a_call_by_position_is_answered_with_the_right_call(call: Callable[[], Any], right: str) -> None:
    name = right.partition("(")[0]
    with pytest.raises(ConfigError, match=rf"^{name}\(\) takes .* by name: {re.escape(right)}$"):
        call()


def test_every_option_of_the_file_reaches_the_library(tmp_path: Path) -> None:
    operations = {"watermark": "2 minutes", "idle_after": "5 minutes"}
    completions = {"watermark": "7 ms", "idle_after": "9 s", "value": "amount", "kind": "kind"}
    completions |= {"operation_id": "order", "event_id": "delivery"}
    rules: dict[str, Any] = {"emit": "final", "shards": 9, "lookback": "1 minute", "max_future": "2 days"}
    rules |= {"tick": "5 ms", "prefix": "o_", "scope": "tenant", "orphans": "control", "name": "mine"}
    rules |= {"max_pending_per_shard": 11, "max_state_bytes_per_shard": 12, "max_broadcast_bytes": 13}
    rules |= {"host": "transformWithState", "max_warm_bytes": 14}
    by_row = {"by_row": {"rule": "rule", "need": "need", "levels": "levels"}}
    made = config(tmp_path, operations=operations, completions=completions, purgatory={**rules, "criterion": by_row})
    assert purgatory_of(made) == Purgatory(
        operations=Operations(**SMALLEST_OPTIONS[Operations], **operations),
        completions=Completions(**SMALLEST_OPTIONS[Completions], **completions),
        criterion=criteria.by_row("rule", "need", "levels"),
        **rules,
    )


ORDERS = Path(__file__).resolve().parents[2] / "conf" / "orders.yaml"
SHOWS = {"config_file.py"}
"""A file that only shows the fields of a job."""


@pytest.mark.parametrize(
    "model", [JobConfig, MetricsOutput, DeadLetters, InputSection, FolderSource, DeltaSource, KafkaSource, AvroValues]
)
def test_every_field_of_the_file_is_read_where_a_job_runs(model: type[BaseModel]) -> None:
    files = [file for file in (ROOT / "spark_purgatory" / "job").glob("*.py") if file.name not in SHOWS]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    assert set(model.model_fields) - read == set()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: criteria.Criterion("most_keys"), "criterion rule 'most_keys' is unknown: use one of any_key"),
        (lambda: criteria.quorum("2"), "quorum needs a finite number, got '2': give one, or name a column"),
        (lambda: criteria.level(10**400), "level needs a finite number"),
        (lambda: criteria.count(-1), "count needs a number of at least 0, got -1"),
        (lambda: criteria.sum_at_least(1e300), "sum_at_least needs 0 or a number between .* got 1e"),
        (lambda: criteria.by_row(""), "by_row rule='' must be a column's name"),
    ],
)
def test_a_criterion_that_cannot_be_is_refused_where_it_is_made(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


def test_the_reference_is_current() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == reference(), (
        "run python -m tools.configuration_page > docs/configuration.md"
    )


def test_the_page_of_the_command_line_is_that_of_the_commands() -> None:
    assert (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8") == command_line_page.page(), (
        "run python -m tools.command_line_page > docs/command_line.md"
    )


def test_the_state_is_kept_by_rocksdb_unless_the_file_says_so(tmp_path: Path) -> None:
    assert config(tmp_path, state_store="hdfs").state_store == "hdfs"
    assert config(tmp_path, purgatory={"host": "transformWithState"}).state_store == "rocksdb"


FOLDER = [
    "/lake/t",
    "/lake/t/",
    "/lake//t",
    "/lake/./t",
    "/lake/x/../t",
    "file:/lake/t",
    "file:///lake//t/",
    "FILE:/lake/t",
]
BELOW = ["/lake/t/c", "file:/lake/t/c/", "file:///lake/t//c", "/lake/t/d/../c", "hdfs://name/lake/t/c"]
BESIDE = ["/lake/tc", "/lake", "file:/lake/other/t/c", "/", "/lake/t/../c"]


@pytest.mark.parametrize("folder", FOLDER)
def test_a_folder_has_many_spellings(folder: str) -> None:
    assert all(Place.of(folder).same_as(Place.of(other)) for other in FOLDER)
    assert all(Place.of(path).below(Place.of(folder)) == "c" for path in BELOW if not path.startswith("hdfs"))
    assert all(Place.of(path).below(Place.of(folder)) is None for path in BESIDE)


def test_two_storages_have_no_place_in_common() -> None:
    lake = Place.of("s3a://lake/t")
    assert Place.of("s3://lake/t/c").below(lake) == "c" and Place.of("s3n://lake//t").same_as(lake)
    assert Place.of("s3a://other/t/c").below(lake) is None and Place.of("gs://lake/t/c").below(lake) is None
    assert Place.of("file:/t/c").below(lake) is None
    assert Place.of("/t/c").below(lake) == "c", "which storage is the session's own is not known"
    assert Place.of("abfss://c@account.dfs.core.windows.net/t/x").below(
        Place.of("abfss://c@account.dfs.core.windows.net/t")
    )


def test_symbolic_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "table")
    assert Place.of(f"{tmp_path}/link/_checkpoints/a").below(Place.of(f"file:{tmp_path}/table")) == "_checkpoints/a"


def test_all_is_below_a_root() -> None:
    assert Place.of("/a/b").below(Place.of("/")) == "a/b" and Place.of("s3://x/a").below(Place.of("s3a://x")) == "a"
