"""A real Kafka broker on this machine's loopback, started from its jars."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import WORK
from benchmarks.jars import resolved
from tests.support.cluster import HOST, free_port

PACKAGE = "org.apache.kafka:kafka_2.13:4.3.1"
JVM = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
START_S = 120


def kafka_jars() -> str:
    return resolved([PACKAGE], WORK / "ivy-kafka")


class KafkaBroker:
    """One node that is broker and controller; it keeps its topics when it is killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._jars = kafka_jars()
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)
        controller = free_port()
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self.port}",
            "log.dirs": str(folder / "logs"),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
        }
        self._properties = folder / "server.properties"
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        formatted = self._java(
            "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(self._properties)
        )
        subprocess.run(formatted, check=True, capture_output=True)

    @property
    def address(self) -> str:
        """host:port, as ``kafka.bootstrap.servers`` takes it."""
        return f"{HOST}:{self.port}"

    def start(self) -> None:
        with (self.folder / "broker.log").open("ab") as log:
            command = self._java("kafka.Kafka", str(self._properties))
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            with socket.socket() as client:
                if client.connect_ex((HOST, self.port)) == 0:
                    return
            assert self._process.poll() is None, (self.folder / "broker.log").read_text(encoding="utf-8")[-3000:]
            time.sleep(0.2)
        raise TimeoutError(f"the broker does not listen at {self.address} after {START_S} s")

    def kill(self) -> None:
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _java(self, main: str, *arguments: str) -> list[str]:
        return ["java", *JVM, "-cp", self._jars, main, *arguments]


@contextmanager
def kafka_broker(folder: Path) -> Iterator[KafkaBroker]:
    broker = KafkaBroker(folder)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()
