"""From a real Kafka broker into Delta and back into Kafka, while the broker and the job are killed."""

from __future__ import annotations

import json
import os
import re
import tarfile
import time
import urllib.request
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.harness import WORK
from benchmarks.jars import retrieved
from tests.support.cluster import HOST, free_port
from tests.support.delta_files import delta_rows
from tests.support.job_process import JobProcess
from tests.support.kafka_broker import PACKAGE, KafkaBroker, kafka_broker, kafka_jars
from tests.support.places_world import World, differences, orders_job
from tests.support.server import server

pytestmark = [pytest.mark.spark, pytest.mark.long]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "from_kafka_classes.md"
PARTITIONS = 4
MALFORMED = [b'{"order_id": "order-', b"no json", b"", b"\xff\xfe\x00"]
"""Values that are no JSON; the last is no UTF-8."""


NAME, VERSION = "apicurio-registry-app", "3.0.9"


class SchemaRegistry:
    """Where it listens."""

    def __init__(self, url: str) -> None:
        self.url = url

    def register(self, subject: str, schema: Mapping[str, Any]) -> int:
        body = json.dumps({"schema": json.dumps(schema)}).encode()
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(f"{self.url}/subjects/{subject}/versions", data=body, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(json.load(answer)["id"])


@contextmanager
def schema_registry(folder: Path) -> Iterator[SchemaRegistry]:
    port = free_port()
    url = f"http://{HOST}:{port}/apis/ccompat/v7"
    command = ["java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", str(_runner())]
    environment = {**os.environ, "QUARKUS_HTTP_HOST": HOST, "QUARKUS_HTTP_PORT": str(port)}
    with server(command, f"{url}/subjects", folder / "registry.log", environment):
        yield SchemaRegistry(url)


def _runner() -> Path:
    """The jar to run, with its libraries beside it; unpacked once."""
    folder = WORK / "registry"
    runner = folder / f"{NAME}-{VERSION}-runner.jar"
    if not runner.exists():
        archive = retrieved("io.apicurio", NAME, VERSION, "all", "tar.gz", WORK / "ivy-registry")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    return runner


def framed(schema_id: int, record: bytes) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + record


def avro_long(number: int) -> bytes:
    """A long: zigzag, seven bits a byte, the lowest first."""
    rest = (number << 1) ^ (number >> 63)
    found = bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def avro_string(text: str) -> bytes:
    """A string: how many bytes, and these."""
    return avro_long(len(text.encode())) + text.encode()


def test_the_page_of_kafkas_operations_names_the_classes_that_kafka_has() -> None:
    version = PACKAGE.rpartition(":")[2]
    page = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:org\.apache\.)?kafka\.[\w.]+\.Delayed\w+)`", page))
    gone = {name for name in named if ".coordinator." in name}
    there = {
        entry.removesuffix(".class").replace("/", ".")
        for jar in Path(kafka_jars()).parent.glob("*.jar")
        for entry in zipfile.ZipFile(jar).namelist()
    }
    assert f"Kafka {version}" in page and len(gone) == 2 and len(named) == 9
    assert named - there == gone


def create_topics(broker: KafkaBroker, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    for made in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        made.result()


def send(broker: KafkaBroker, topic: str, records: Iterable[Mapping[str, object] | bytes | None]) -> None:
    """Records in their order: dicts as JSON, keyed by order; bytes as they are; None is a tombstone."""
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 50, "enable.idempotence": True})
    for number, record in enumerate(records):
        value = json.dumps(record).encode() if isinstance(record, Mapping) else record
        key = record["order_id"] if isinstance(record, Mapping) else f"bad-{number}"
        headers = [("source", b"shop"), ("trace", b"\x00\x01")]
        while True:
            try:
                producer.produce(topic, value, key=str(key), headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0


def job_file(folder: Path, broker: KafkaBroker, host: str) -> Path:
    """The job: outcomes into a Delta table, records that do not parse into another."""
    options = {
        "kafka.bootstrap.servers": broker.address,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 40_000,
    }
    sources = {name: {"format": "kafka", "topic": name, "options": options} for name in ("orders", "payments")}
    shop = "cast(filter(kafka_headers, header -> header.key = 'source')[0].value as string) as shop"
    more = {
        "operations": {"select": ["*", "cast(kafka_key as string) as record", "kafka_partition", "kafka_offset", shop]},
        "dead_letters": {"path": str(folder / "dead")},
    }
    settings = {"spark.master": "local[2,4]"}
    return orders_job(folder / "job.yaml", sources, str(folder), host, settings, **more)


def test_a_topic_that_is_not_there_and_a_broker_that_is_not_are_named(tmp_path: Path) -> None:
    quick = {"kafka.default.api.timeout.ms": 5000, "kafka.request.timeout.ms": 4000, "fetchOffset.numRetries": 1}

    def ends_with(address: str) -> str:
        options = {"kafka.bootstrap.servers": address, **quick}
        sources = {name: {"format": "kafka", "topic": name, "options": options} for name in ("orders", "payments")}
        dead = {"path": str(tmp_path / "dead")}
        file = orders_job(
            tmp_path / "job.yaml", sources, str(tmp_path), "applyInPandasWithState", {}, dead_letters=dead
        )
        job = JobProcess(file, tmp_path / "checkpoint")
        job.start()
        assert job.exit_code() == 1
        return job.said()

    with kafka_broker(tmp_path / "broker") as broker:
        create_topics(broker, "orders")
        said = ends_with(broker.address)
        assert "operations.source.topic (orders) or completions.source.topic (payments)" in said
        assert "STREAM_FAILED" not in said
    said = ends_with(broker.address)
    assert "no Kafka broker answers at kafka.bootstrap.servers in the options" in said


@pytest.mark.parametrize("host", ["applyInPandasWithState", "transformWithState"])
def test_nothing_is_lost_or_doubled_while_broker_and_job_are_killed(tmp_path: Path, host: str) -> None:
    world = World(orders=110_000)
    parts = [range(0, 40_000), range(40_000, 80_000), range(80_000, world.orders)]
    bad = [*MALFORMED, None]
    with kafka_broker(tmp_path / "broker") as broker:
        create_topics(broker, "orders", "payments")

        def land(part: range) -> None:
            send(broker, "orders", [*bad, *world.operation_rows(part)])
            send(broker, "payments", [*world.event_rows(part), *bad])

        job = JobProcess(job_file(tmp_path, broker, host), tmp_path / "checkpoint")
        land(parts[0])
        job.start()
        job.wait_for_commit(1)
        broker.kill()
        time.sleep(5)
        broker.start()
        land(parts[1])
        job.wait_for_commit(job.last_commit() + 1)
        job.kill()
        land(parts[2])
        closing_order, closing_payment = world.closing_rows()
        send(broker, "orders", [closing_order])
        send(broker, "payments", [closing_payment])
        job.run_to_the_end()
        job.run_to_the_end()  # the next run has the clock that the closing records moved
    outcomes = delta_rows(
        tmp_path / "outcomes", ["order_id", "status", "late", "record", "shop", "kafka_partition", "kafka_offset"]
    )
    assert differences(outcomes, world.expected()) == {}
    assert pc.sum(outcomes["late"]).as_py() == 0
    unnamed = outcomes.filter(pc.is_null(outcomes["order_id"]))
    assert unnamed["status"].to_pylist() == ["REJECTED"] * (len(parts) * len(bad))
    named = outcomes.filter(pc.is_valid(outcomes["order_id"]))
    assert pc.all(pc.equal(named["record"], named["order_id"])).as_py()
    assert pc.unique(outcomes["shop"]).to_pylist() == ["shop"]
    places = set(zip(outcomes["kafka_partition"].to_pylist(), outcomes["kafka_offset"].to_pylist(), strict=True))
    assert len(places) == outcomes.num_rows, "every record of the topic has one outcome"
    letters = delta_rows(tmp_path / "dead", ["input", "reason", "raw", "raw_bytes"])
    found = Counter(zip(*(letters[name].to_pylist() for name in ("input", "raw", "raw_bytes")), strict=True))
    bodies = [(value.decode(), None) for value in MALFORMED[:3]] + [(None, MALFORMED[3]), (None, None)]
    assert found == {(name, *body): len(parts) for name in ("operations", "completions") for body in bodies}


# --- Avro, a registry, several topics, and a topic of outcomes ------------------------------------

PAID: dict[str, Any] = {
    "type": "record",
    "name": "Paid",
    "fields": [
        {"name": "order_id", "type": "string"},
        {"name": "paid_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
PAID_BY = {**PAID, "fields": [{"name": "method", "type": ["null", "string"], "default": None}, *PAID["fields"]]}
"""With a field in front, so that bytes of one read as the other make no sense."""


def in_avro(row: Mapping[str, object]) -> bytes:
    """A payment by `PAID`."""
    at_ms = round(datetime.fromisoformat(str(row["paid_at"])).timestamp() * 1000)
    return avro_string(str(row["order_id"])) + avro_long(at_ms)


def avro_job(folder: Path, broker: KafkaBroker, registry: SchemaRegistry, host: str) -> Path:
    """The job: orders of all shops and payments in Avro, outcomes into a topic."""
    brokers = {"kafka.bootstrap.servers": broker.address}
    options = {**brokers, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 2_000, "failOnDataLoss": True}
    (folder / "paid.avsc").write_text(json.dumps(PAID), encoding="utf-8")
    avro = {"registry": {"url": registry.url}, "schema_file": str(folder / "paid.avsc")}
    sources: dict[str, dict[str, Any]] = {
        "orders": {"format": "kafka", "topic_pattern": "orders-.*", "options": options},
        "payments": {"format": "kafka", "topic": "payments", "schema": None, "avro": avro, "options": options},
    }
    more = {
        "operations": {"select": ["*", "kafka_topic as shop"]},
        "dead_letters": {"path": str(folder / "dead")},
        "output": {"topic": "outcomes", "options": {**brokers, "kafka.enable.idempotence": True}},
    }
    return orders_job(folder / "job.yaml", sources, str(folder), host, {"spark.master": "local[2,4]"}, **more)


def records_in(broker: KafkaBroker, topic: str) -> list[tuple[str | None, dict[str, Any]]]:
    """Keys and values of all records of a topic."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": topic, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    found, ended = [], 0
    while ended < PARTITIONS:
        record = consumer.poll(30)
        assert record is not None, f"{topic} does not end"
        if record.error() is not None:
            assert record.error().code() == KafkaError._PARTITION_EOF, record.error()
            ended += 1
        else:
            found.append((None if record.key() is None else record.key().decode(), json.loads(record.value())))
    consumer.close()
    return found


@pytest.mark.parametrize("host", ["applyInPandasWithState", "transformWithState"])
def test_avro_of_a_registry_and_topics_by_pattern_go_into_a_topic_at_least_once(tmp_path: Path, host: str) -> None:
    world = World(orders=10_000)
    parts = [range(first, first + 2_500) for first in range(0, world.orders, 2_500)]
    closing_order, closing_payment = world.closing_rows()
    with kafka_broker(tmp_path / "broker") as broker, schema_registry(tmp_path) as registry:
        create_topics(broker, "orders-north", "orders-south", "payments", "outcomes")
        number = registry.register("payments-value", PAID)
        bad = [b"", b"\x00\x00", b"\x07" + framed(number, b"x"), framed(number, b"\xff\xff\xff"), None]

        def land(part: range, schema_id: int, before: bytes = b"") -> None:
            rows = list(world.operation_rows(part))
            for topic, half in (("orders-north", 0), ("orders-south", 1)):
                send(broker, topic, [row for row in rows if int(str(row["order_id"])[-1]) % 2 == half])
            payments = [framed(schema_id, before + in_avro(row)) for row in world.event_rows(part)]
            send(broker, "payments", [*bad, *payments])

        job = JobProcess(avro_job(tmp_path, broker, registry, host), tmp_path / "checkpoint")
        land(parts[0], number)
        job.start()
        job.wait_for_commit(1)
        job.kill()
        land(parts[1], number)
        job.run_to_the_end()
        job.start()
        land(parts[2], number)
        job.wait_for_commit(job.last_commit() + 1)
        later = registry.register("payments-value", PAID_BY)
        assert later != number
        land(parts[3], later, before=b"\x02" + avro_string("card"))
        assert job.exit_code() == 1, "a schema that is new since the start ends the job"
        said = job.log.read_text(encoding="utf-8", errors="replace")
        assert re.search(
            rf"^the value at payments/\d/\d+ has the schema {later}, which the registry's", said, re.MULTILINE
        )
        send(broker, "orders-north", [closing_order])
        send(broker, "payments", [framed(number, in_avro(closing_payment))])
        job.run_to_the_end()
        job.run_to_the_end()
        found = records_in(broker, "outcomes")
    once = {(key, json.dumps(value, sort_keys=True)) for key, value in found}
    assert len(found) >= len(once)
    values = [json.loads(value) for _, value in once]
    assert [key for key, _ in once] == [value["order_id"] for value in values]
    due = world.expected()
    seen = Counter((value["order_id"], value["status"]) for value in values)
    assert set(seen) == set(due)
    assert {each: count for each, count in seen.items() if count != 1} == {}
    assert {value["shop"] for value in values} == {"orders-north", "orders-south"}
    letters = delta_rows(tmp_path / "dead", ["input", "reason", "raw", "raw_bytes"])
    reasons = Counter(zip(letters["reason"].to_pylist(), letters["raw_bytes"].to_pylist(), strict=True))
    said = ["the value has no header of a schema registry"] * 3 + ["not Avro of the schema", "the record has no value"]
    assert reasons == dict.fromkeys(zip(said, bad, strict=True), len(parts))
    assert "Written to topic outcomes. Nothing lost:" in job.said()
