"""From a real Kafka broker into Delta and back into Kafka, while the broker and the job are killed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.delta_files import delta_rows
from tests.support.job_process import JobProcess
from tests.support.kafka_broker import KafkaBroker, kafka_broker
from tests.support.places_world import World, differences, orders_job

PARTITIONS = 4
MALFORMED = [b'{"order_id": "order-', b"no json", b"", b"\xff\xfe\x00"]
"""Values that are no JSON; the last is no UTF-8."""


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
    dead = {"path": str(folder / "dead")}
    settings = {"spark.master": "local[2,4]"}
    return orders_job(folder / "job.yaml", sources, str(folder), host, settings, dead_letters=dead)


@pytest.mark.long
@pytest.mark.spark
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
    outcomes = delta_rows(tmp_path / "outcomes", ["order_id", "status", "late"])
    assert differences(outcomes, world.expected()) == {}
    assert pc.sum(outcomes["late"]).as_py() == 0
    unnamed = outcomes.filter(pc.is_null(outcomes["order_id"]))
    assert unnamed["status"].to_pylist() == ["REJECTED"] * (len(parts) * len(bad))
    letters = delta_rows(tmp_path / "dead", ["input", "reason", "raw"])
    assert letters.num_rows == 2 * len(parts) * len(bad)
    assert pc.count_distinct(letters["input"]).as_py() == 2
