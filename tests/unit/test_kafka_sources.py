"""What a job's file may say of Kafka: topics, options by name, Avro and its registry, a topic of outcomes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from spark_purgatory.job.config_file import JobConfigError, load_config
from spark_purgatory.job.job_config import JobConfig
from spark_purgatory.job.kafka_values import schemas_of
from spark_purgatory.job.runner import kafka_fault
from spark_purgatory.job.session import _packages
from spark_purgatory.job.source_config import KafkaSource
from spark_purgatory.spark.monitoring.monitor import lag_records

BROKERS = {"kafka.bootstrap.servers": "broker:9092"}
ORDERS: dict[str, Any] = {"format": "kafka", "topic": "orders", "schema": "id string, at timestamp", "options": BROKERS}
V1 = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
V2 = {**V1, "fields": [*V1["fields"], {"name": "city", "type": ["null", "string"], "default": None}]}  # type: ignore[misc]


def job(folder: Path, source: dict[str, Any] | None = None, **more: Any) -> JobConfig:
    """A job whose operations come from a topic."""
    given = {**ORDERS, **(source or {})}
    fields: dict[str, Any] = {
        "operations": {
            "source": {name: value for name, value in given.items() if value is not None},
            "id": "id",
            "keys": "id",
            "created": "at",
            "timeout": "1 hour",
            "watermark": "1 minute",
        },
        "completions": {
            "source": {"format": "parquet", "path": "landing", "schema": "id string, at timestamp"},
            "key": "id",
            "time": "at",
            "watermark": "1 minute",
        },
        "purgatory": {"criterion": "any_key"},
        "output": {"path": "outcomes"},
        "checkpoint": "checkpoint",
    }
    for name, value in more.items():
        fields[name] = {**fields[name], **value} if name in ("operations", "completions") else value
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(fields), encoding="utf-8")
    return load_config(file)


def options(**more: Any) -> dict[str, Any]:
    return {"options": {**BROKERS, **more}}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"topic": None}, "operations.source: give exactly one of topic, topic_pattern; got none"),
        ({"topic_pattern": "o.*"}, "give exactly one of topic, topic_pattern; got topic and topic_pattern"),
        ({"schema": None}, "operations.source: give schema for values in JSON, or avro for values in Avro"),
        ({"avro": {"schema_file": "a"}}, "give schema for values in JSON, or avro"),
        ({"schema": None, "avro": {}}, "operations.source.avro: give schema_file, registry, or both"),
        ({"schema": None, "avro": {"schema": "a"}}, "avro.schema: unknown field, did you mean 'schema_file'"),
        (
            {"topic": ["a", "b"], "schema": None, "avro": {"registry": {"url": "http://r"}}},
            "avro.registry.subject is required where there are several topics",
        ),
        (
            {"options": {"kafka.bootstrap.server": "b"}},
            "options needs kafka.bootstrap.servers, as host:port, did you mean 'kafka.bootstrap.server'?",
        ),
        *(
            ({"options": {"kafka.bootstrap.servers": servers}}, "must be host:port, or several with commas")
            for servers in ("broker", "broker:", "broker:99092", "a:9092,b:0", "a:9092;b:9092")
        ),
        (
            options(startingOffset="earliest"),
            "startingOffset is not an option of a Kafka stream, did you mean 'startingOff",
        ),
        (options(maxOffsetPerTrigger=1), "did you mean 'maxOffsetsPerTrigger'?"),
        (options(endingOffsets="latest"), "endingOffsets is not an option of a Kafka stream"),
        (options(subscribe="t"), "subscribe is not an option of a Kafka stream. Allowed: kafka.*"),
        (options(includeHeaders=True), "includeHeaders is not an option of a Kafka stream"),
        (options(maxOffsetsPerTrigger="many"), "maxOffsetsPerTrigger must be a whole number of at least 1"),
        (options(maxoffsetspertrigger=0), "maxOffsetsPerTrigger must be a whole number of at least 1"),
        (options(failOnDataLoss="no"), "failOnDataLoss must be true or false"),
        (options(startingOffsets="first"), "startingOffsets must be earliest, latest, or JSON"),
        (options(startingOffsets="[1]"), "startingOffsets must be earliest, latest, or JSON"),
    ],
)
def test_what_is_wrong_with_a_topic_is_said_by_name(tmp_path: Path, source: dict[str, Any], said: str) -> None:
    with pytest.raises(JobConfigError) as refused:
        job(tmp_path, source)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("source", "subscription"),
    [
        ({}, ("subscribe", "orders")),
        ({"topic": ["orders", "returns"]}, ("subscribe", "orders,returns")),
        ({"topic": None, "topic_pattern": "orders-.*"}, ("subscribePattern", "orders-.*")),
    ],
)
def test_topics_are_named_or_match_a_pattern(
    tmp_path: Path, source: dict[str, Any], subscription: tuple[str, str]
) -> None:
    config = job(tmp_path, {**source, **options(failOnDataLoss=False, maxOffsetsPerTrigger=500, minPartitions=8)})
    read = config.operations.source
    assert isinstance(read, KafkaSource)
    assert read.subscription == subscription
    assert read.options["failOnDataLoss"] == "false"


def test_a_fault_of_kafka_is_a_sentence_about_the_file() -> None:
    no_topic = "org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server does not host this"
    assert "have no topic of a name that is in the job's file" in str(kafka_fault(no_topic))
    no_broker = "TimeoutException: Timed out waiting for a node assignment. Call: listNodes"
    assert "no Kafka broker answers at kafka.bootstrap.servers in the options" in str(kafka_fault(no_broker))
    assert kafka_fault("Division by zero") is None


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ({"topic": "out"}, "output: options needs kafka.bootstrap.servers"),
        ({"topic": "out", "path": "p", "options": BROKERS}, "output: a Kafka topic does not have path: leave out"),
        (
            {"topic": "out", "linger": "1 second", "options": BROKERS},
            "output: a Kafka topic does not have linger: leave out",
        ),
        ({"topic": "out", "options": {**BROKERS, "acks": "all"}}, "output: acks: only options of Kafka's producer"),
        ({"path": "p", "options": BROKERS}, "output: options belong to a Kafka topic"),
        ({"topic": "orders", "options": BROKERS}, "output.topic 'orders' is read by operations"),
    ],
)
def test_a_topic_of_outcomes_is_checked(tmp_path: Path, output: dict[str, Any], said: str) -> None:
    with pytest.raises(JobConfigError) as refused:
        job(tmp_path, output=output)
    assert said in str(refused.value)


def test_the_session_gets_the_jars_of_what_it_reads_and_writes(tmp_path: Path) -> None:
    def names(config: JobConfig) -> list[str]:
        return [package.split(":")[1] for package in _packages(config)]

    assert names(job(tmp_path)) == ["spark-sql-kafka-0-10_2.13"]
    avro = {"schema": None, "avro": {"schema_file": "order.avsc"}}
    assert names(job(tmp_path, avro)) == ["spark-sql-kafka-0-10_2.13", "spark-avro_2.13"]
    files = {"format": "parquet", "path": "x", "topic": None, "options": None}
    assert names(job(tmp_path, files)) == []
    topic = {"topic": "out", "options": {**BROKERS, "kafka.acks": "all"}}
    config = job(tmp_path, files, output=topic)
    assert names(config) == ["spark-sql-kafka-0-10_2.13"]
    own = ["org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.1"]
    assert _packages(job(tmp_path, packages=own)) == own


class Answers(BaseHTTPRequestHandler):
    """A registry's answers for the subjects of the test."""

    subjects: ClassVar[dict[str, list[dict[str, Any]]]] = {
        "orders-value": [{"id": 4, "schema": json.dumps(V1)}, {"id": 9, "schema": json.dumps(V2)}],
        "messages": [{"id": 5, "schema": "syntax", "schemaType": "PROTOBUF"}],
        "parts": [{"id": 6, "schema": json.dumps(V1), "references": [{"name": "x", "subject": "x", "version": 1}]}],
        "words": [{"id": 7, "schema": '"string"'}],
    }
    password: str | None = None
    moved_to: str | None = None
    """Where it sends all who ask."""
    asked: ClassVar[list[tuple[str, str | None]]] = []
    """Paths, and what each was asked with."""

    def do_GET(self) -> None:
        """``/subjects/NAME/versions`` and each of them."""
        given = self.headers.get("Authorization")
        self.asked.append((self.path, given))
        asked = self.path.removeprefix("/subjects/").split("/")
        versions = self.subjects.get(asked[0])
        if self.moved_to is not None:
            self.send_response(302)
            self.send_header("Location", f"{self.moved_to}{self.path}")
            self.end_headers()
        elif self.password is not None and given != self.password:
            self.send_error(401)
        elif versions is None:
            self.send_error(404)
        else:
            said: Any = versions[int(asked[2]) - 1] if len(asked) > 2 else list(range(1, len(versions) + 1))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(said).encode())

    def log_message(self, *said: Any) -> None:
        """Nothing."""


@contextmanager
def answers(**given: Any) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """The address of a registry, and what it was asked."""
    kind = type("Given", (Answers,), {"asked": [], **given})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", kind.asked
        finally:
            server.shutdown()
            thread.join()


def read(folder: Path, url: str, **more: Any) -> KafkaSource:
    file = more.pop("schema_file", None)
    avro = {"registry": {"url": url, **more}, **({"schema_file": file} if file else {})}
    source = job(folder, {"schema": None, "avro": avro}).operations.source
    assert isinstance(source, KafkaSource)
    return source


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ("none", "the registry has no such subject"),
        ("messages", "subject 'messages', version 1 must be Avro without references"),
        ("parts", "subject 'parts', version 1 must be Avro without references"),
        ("words", "subject 'words', version 1 must be the schema of a record"),
    ],
)
def test_a_subject_that_cannot_be_read_is_named(tmp_path: Path, subject: str, said: str) -> None:
    with answers() as (registry, _), pytest.raises(JobConfigError) as refused:
        schemas_of(read(tmp_path, registry, subject=subject), "operations")
    assert "operations.source.avro.registry" in str(refused.value)
    assert said in str(refused.value)


def test_the_registrys_password_is_sent_and_never_shown(tmp_path: Path) -> None:
    with answers(password="Basic bWU6aHVudGVyMg==") as (registry, _):  # me:hunter2
        source = read(tmp_path, registry, user_info="me:hunter2")
        assert len(schemas_of(source, "operations").writers) == 2
        assert "hunter2" not in repr(source)
        with pytest.raises(JobConfigError) as refused:
            schemas_of(read(tmp_path, registry, user_info="me:wrong"), "operations")
    assert "the registry refuses user_info" in str(refused.value)
    assert "wrong" not in str(refused.value)


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    with (
        answers() as (other, never),
        answers(moved_to=other) as (registry, asked),
        pytest.raises(JobConfigError, match=r"the registry redirects \(HTTP 302\): give the address"),
    ):
        schemas_of(read(tmp_path, registry, user_info="me:hunter2"), "operations")
    assert [path for path, _ in asked] == ["/subjects/orders-value/versions"]
    assert never == [], "the other server has not heard of user_info"


class Source:
    """A source of a progress report."""

    def __init__(self, description: str, latest: Any, end: Any) -> None:
        self.description = description
        self.latestOffset, self.endOffset = (None if each is None else json.dumps(each) for each in (latest, end))


def test_the_lag_is_what_all_topics_have_beyond_what_was_read() -> None:
    files = Source("FileStreamSource[file:/landing]", None, {"logOffset": 3})
    orders = Source("KafkaV2[Subscribe[orders]]", {"orders": {"0": 10, "1": 7}}, {"orders": {"0": 4, "1": 7}})
    returns = Source("KafkaV2[Subscribe[returns]]", {"returns": {"0": 5}}, {"returns": {"0": 2}})
    assert lag_records([files]) is None
    assert lag_records([files, orders, returns]) == 9
