"""Secrets of a job's file and of the Python API: nothing that can be printed without Spark has them."""

from __future__ import annotations

import io
import logging
import traceback
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel, SecretStr
from rich.console import Console

from spark_purgatory import Completions, Operations, Purgatory, RecordAccumulator, criteria, errors
from spark_purgatory.config import SinkOptions
from spark_purgatory.job.arguments import settings_from
from spark_purgatory.job.config_file import check_file, load_config
from spark_purgatory.job.job_config import JobConfig
from spark_purgatory.spark.sink.table.formats import opened
from tests.support.now_and_then import each_commit

CANARY = "hunter2"
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="{CANARY}";'
KAFKA = {"kafka.bootstrap.servers": "broker:9092", "kafka.sasl.jaas.config": JAAS, "kafka.ssl.key.password": CANARY}
LOGIN = f"https://me:{CANARY}@registry:8081"
PLACE = f"s3a://key:{CANARY}@lake"
COLUMNS = "id string, k string, at timestamp"
SOURCES: dict[str, dict[str, Any]] = {
    "folder": {"format": "json", "path": f"{PLACE}/in", "schema": COLUMNS, "options": {"password": CANARY}},
    "delta": {"format": "delta", "path": f"{PLACE}/in", "options": {"password": CANARY}},
    "kafka": {"format": "kafka", "topic": "t", "schema": COLUMNS, "options": KAFKA},
    "avro": {
        "format": "kafka",
        "topic": "t",
        "avro": {"registry": {"url": f"https://registry/?key={CANARY}", "user_info": f"me:{CANARY}"}},
        "options": KAFKA,
    },
}
SPARK = {
    "spark.hadoop.fs.s3a.secret.key": CANARY,
    "spark.sql.catalog.lake.uri": f"jdbc:postgresql://db/lake?user=u&password={CANARY}",
    "spark.sql.catalog.lake.token": CANARY,
}
HOLD_SECRETS = {"options", "spark", "user_info", "url"}
WRONG: list[Callable[[Any], Any]] = [
    lambda value: [value],
    lambda value: [[value]],
    lambda value: {"a": value},
    lambda value: 7,
    lambda value: "",
    lambda value: None,
    lambda value: f"{value}: x",
    lambda value: LOGIN,
]
"""Values of other kinds than the right one."""


def job(source: str, output: str) -> dict[str, Any]:
    to = {"topic": "outcomes", "options": KAFKA} if output == "topic" else {"path": f"{PLACE}/out"}
    shape = {"watermark": "1 minute", "source": SOURCES[source]}
    made = {
        "operations": {"id": "id", "keys": "k", "created": "at", "timeout": "1 minute", **shape},
        "completions": {"key": "k", "time": "at", **shape},
        "purgatory": {"criterion": "any_key"},
        "output": to,
        "checkpoint": f"{PLACE}/checkpoint",
        "spark": SPARK,
        "metrics": {"prometheus_port": 9108},
    }
    return deepcopy(made | ({} if source == "delta" else {"dead_letters": {"path": f"{PLACE}/letters"}}))


JOBS = {f"{source} to a {output}": job(source, output) for source in SOURCES for output in ("table", "topic")}


def inner(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in items:
        yield (*place, name), each
        yield from inner(each, (*place, name))


def secret_places(given: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Places that hold secrets, what holds them, and addresses."""
    places = [place for place, value in inner(given) if CANARY in str(value)]
    return [place for place in places if place not in {("operations",), ("completions",)}]


def changed(given: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    made = deepcopy(given)
    at = made
    for name in place[:-1]:
        at = at[name]
    at[place[-1]] = value
    return made


def told(path: Path, given: dict[str, Any]) -> str:
    """All that an error of a file shows, with its causes; "" if the file is right."""
    path.write_text(yaml.safe_dump(given))
    try:
        load_config(path)
    except errors.ConfigError as error:
        return f"{error!r} {''.join(traceback.format_exception(error))}"
    return ""


def kinds(model: type[BaseModel]) -> Iterator[str]:
    """Names of fields that may hold a secret: free mappings of text, hidden values, addresses."""
    for name, field in model.model_fields.items():
        parts = [field.annotation]
        for part in parts:
            parts += get_args(part)
        is_secret = SecretStr in parts or dict in map(get_origin, parts) or name == "url"
        yield from [name] * is_secret
        for part in parts:
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from kinds(part)


def test_every_kind_of_field_that_may_hold_a_secret_is_tried() -> None:
    assert {*kinds(JobConfig)} == HOLD_SECRETS
    tried = {name for given in JOBS.values() for place in secret_places(given) for name in place}
    assert tried >= HOLD_SECRETS


@pytest.mark.parametrize("name", JOBS)
def test_a_job_that_is_right_is_shown_without_secrets(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(JOBS[name]))
    with caplog.at_level(logging.DEBUG):
        config = load_config(path)
    console = Console(file=io.StringIO(), width=200)
    assert check_file(path, (), console) == 0
    parts = [config, config.operations, config.completions, config.output, config.operations.source, config.metrics]
    shown = [*map(repr, parts), *map(str, parts), console.file.getvalue(), caplog.text, repr(config.options())]
    assert [text for text in shown if CANARY in text] == []
    assert "s3a://lake/checkpoint" in repr(config) and "s3a://lake/checkpoint" in console.file.getvalue()


@pytest.mark.parametrize("name", each_commit(JOBS, lambda name: name in list(JOBS)[::3]))
def test_an_error_of_a_job_shows_no_secret(name: str, tmp_path: Path) -> None:
    given, found = JOBS[name], list[str]()
    refused = 0
    for place in secret_places(given):
        # Elsewhere than in these fields only the login of an address is known to be a secret.
        value = CANARY if {*HOLD_SECRETS, "registry"} & {*place} else LOGIN
        for number, wrong in enumerate(WRONG):
            said = told(tmp_path / "job.yaml", changed(given, place, wrong(value)))
            refused += said != ""
            found += [f"{'.'.join(map(str, place))}, {number}: {said}"] if CANARY in said else []
        *parents, last = place
        holder = changed(given, (*parents, f"{last}x"), value)
        said = told(tmp_path / "job.yaml", holder)
        found += [f"{place}, misspelt: {said}"] if CANARY in said else []
    assert found == []
    assert refused > 3 * len(secret_places(given))


def test_errors_names_and_texts_of_the_python_api_show_no_login_of_an_address() -> None:
    place = f"{PLACE}/t"
    accumulator = RecordAccumulator(path=place)
    rows = Operations(id="id", keys="k", created="at", timeout="1 minute", watermark="1 minute")
    purgatory = Purgatory(
        operations=rows,
        completions=Completions(key="k", time="at", watermark="1 minute"),
        criterion=criteria.any_key(),
    )
    shown = [accumulator, SinkOptions(path=place), opened(SinkOptions(path=place)), purgatory]
    said = [*map(str, shown), *map(repr, shown)]
    for wrong in ({"table": "t"}, {"batch_size": "1 XB"}, {"linger": place}, {"format": place}, {"max_block": place}):
        with pytest.raises(errors.ConfigError) as caught:
            RecordAccumulator(path=place, **wrong)  # type: ignore[arg-type]
        said.append("".join(traceback.format_exception(caught.value)))
    with pytest.raises(errors.ConfigError) as caught:
        accumulator.write_stream(None, checkpoint=place, trigger={"once": place})  # type: ignore[arg-type]
    said.append(str(caught.value))
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.PurgatoryError)
    ]
    said += [str(kind(f"checkpoint={place!r} cannot be read")) for kind in kinds]
    assert len(kinds) > 20
    assert [text for text in said if CANARY in text] == []
    assert "s3a://lake/t" in said[0]


def test_an_error_of_a_commands_settings_shows_none_of_them() -> None:
    with pytest.raises(errors.ConfigError) as caught:
        settings_from([f"spark.password={CANARY}", CANARY])
    assert CANARY not in repr(caught.value)
