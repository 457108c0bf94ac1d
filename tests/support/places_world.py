"""Orders and payments whose outcomes follow from their numbers, for runs in places with many parts that can fail.

Order n is made ``n * STEP_MS`` after `START_MS` and waits for ten minutes. Of each four orders three are paid in time;
the fourth never is. Every 50th order is sent twice, and every 40th payment is delivered twice. Nothing here knows how
the library works: who counts, counts numbers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import yaml

START_MS = 1_767_225_600_000
TIMEOUT_S = 600
CLOSING = "closing"
"""Id of the order that moves the clock past every deadline, and waits itself."""


def order_id(number: int) -> str:
    return f"order-{number:07d}"


@dataclass(frozen=True)
class World:
    """So many orders over an hour of event time."""

    orders: int

    @property
    def step_ms(self) -> int:
        return 3_600_000 // self.orders

    def ordered_ms(self, number: int) -> int:
        return START_MS + number * self.step_ms

    def operation_rows(self, numbers: Iterable[int]) -> Iterator[Mapping[str, object]]:
        for number in numbers:
            row = {"order_id": order_id(number), "ordered_at": stamp(self.ordered_ms(number))}
            yield row
            if number % 50 == 7:
                yield row

    def event_rows(self, numbers: Iterable[int]) -> Iterator[Mapping[str, object]]:
        """Payments as they are sent, at the time of the order of the same number at the earliest."""
        for number in numbers:
            if number % 4 == 3:
                continue
            paid_ms = self.ordered_ms(number) + 1000 * (37 * number % (TIMEOUT_S + 1))
            row = {"order_id": order_id(number), "paid_at": stamp(paid_ms)}
            yield row
            if number % 40 == 1:
                yield row

    def closing_rows(self) -> tuple[Mapping[str, object], Mapping[str, object]]:
        """An order and a payment of nobody's that come last, three hours after the last order."""
        last = stamp(self.ordered_ms(self.orders) + 3 * 3_600_000)
        return {"order_id": CLOSING, "ordered_at": last}, {"order_id": "nobody", "paid_at": last}

    def land(self, folder: Path, part: range) -> None:
        """A file of orders and one of payments, named after the first order."""
        for name, rows in (("orders", self.operation_rows(part)), ("payments", self.event_rows(part))):
            (folder / name).mkdir(exist_ok=True)
            json_lines(rows, folder / name / f"{part.start:09d}.json")

    def land_closing(self, folder: Path) -> None:
        for name, row in zip(("orders", "payments"), self.closing_rows(), strict=True):
            json_lines([row], folder / name / "closing.json")

    def expected(self) -> Counter[tuple[str, str]]:
        """How often each (order, status) is to come out."""
        due: Counter[tuple[str, str]] = Counter()
        for number in range(self.orders):
            due[order_id(number), "EXPIRED" if number % 4 == 3 else "COMPLETED"] += 1
            if number % 50 == 7:
                due[order_id(number), "DUPLICATE"] += 1
        return due


def orders_job(
    file: Path, sources: dict[str, dict[str, Any]], place: str, host: str, spark: dict[str, Any], **more: Any
) -> Path:
    """The job's file: sources of ``orders`` and ``payments``; table and checkpoint below ``place``; more of its fields,
    of which ``operations`` are added to those that are here.
    """
    job: dict[str, Any] = {
        "name": "orders",
        "operations": {
            "source": {"schema": "order_id string, ordered_at timestamp", **sources["orders"]},
            "id": "order_id",
            "keys": "order_id",
            "created": "ordered_at",
            "timeout": f"{TIMEOUT_S} seconds",
            "watermark": "1 hour",
        },
        "completions": {
            "source": {"schema": "order_id string, paid_at timestamp", **sources["payments"]},
            "key": "order_id",
            "time": "paid_at",
            "watermark": "1 hour",
        },
        "purgatory": {"criterion": "any_key", "emit": "final", "shards": 4, "host": host},
        "output": {"path": f"{place}/outcomes", "linger": "5 seconds"},
        "checkpoint": f"{place}/checkpoint",
        "trigger": {"processingTime": "1 second"},
        "spark": {"spark.ui.enabled": False, "spark.driver.memory": "1500m", **spark},
    }
    job["operations"] |= more.pop("operations", {})
    file.write_text(yaml.safe_dump({**job, **more}), encoding="utf-8")
    return file


def folder_sources(folder: Path) -> dict[str, dict[str, Any]]:
    """Sources of JSON lines below a folder, one file a micro-batch."""
    options = {"maxFilesPerTrigger": 1}
    return {name: {"format": "json", "path": str(folder / name), "options": options} for name in ("orders", "payments")}


def stamp(at_ms: int) -> str:
    seconds, ms = divmod(at_ms, 1000)
    return f"{pa.scalar(seconds, pa.timestamp('s')).as_py():%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"


def differences(found: pa.Table, due: Counter[tuple[str, str]]) -> dict[str, int]:
    """What a table with ``order_id`` and ``status`` lacks, and has too much: nothing if all is right."""
    named = found.filter(pc.is_valid(found["order_id"]))
    seen = Counter(zip(named["order_id"].to_pylist(), named["status"].to_pylist(), strict=True))
    counts = {"lost": (due - seen).total(), "doubled or unexpected": (seen - due).total()}
    return {name: count for name, count in counts.items() if count}


def json_lines(rows: Iterable[Mapping[str, object]], path: Path) -> None:
    """A landing file, complete as soon as it has its name."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    partial.rename(path)
