"""Traces of RecordAccumulator over BufferPool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from spark_purgatory.accumulator.policy import AccumulatorSettings
from spark_purgatory.errors import PurgatoryError
from tests.conformance.bufferpool import REFUSALS, error_name
from tests.conformance.kafka_accumulator import AppendTicket, KafkaAccumulator, KafkaAppended
from tests.conformance.kafka_batches import KafkaBatch
from tests.conformance.kafka_incomplete import Flush
from tests.conformance.traces import Inputs, Step

HEADER_BYTES = 61
RECORD_OVERHEAD_BOUND_BYTES = 21
APPEND_INPUTS = frozenset({"p", "key_size", "value_size", "ts", "max_block_ms", "wait_id"})
DRIVER_MUTES = frozenset({"muted", "unmuted"})
"""What the driver did after an answer, to be done again."""


@dataclass(frozen=True)
class KafkaRecord:
    """A record without headers; sizes in bytes, None for null."""

    ts: int
    key_size: int | None
    value_size: int | None


def varint_bytes(number: int) -> int:
    """Length of a zig-zag varint: 1 byte for -64..63, 2 for -8192..8191, and so on."""
    zigzag = 2 * number if number >= 0 else -2 * number - 1
    return max(1, -(-zigzag.bit_length() // 7))


def field_bytes(size: int | None) -> int:
    """A key or a value with its length before it; null has length -1."""
    return varint_bytes(-1) if size is None else varint_bytes(size) + size


class KafkaSizing:
    """Record format v2, no compression, no headers."""

    header_bytes = HEADER_BYTES

    def record_bytes(self, record: KafkaRecord, batch: Sequence[KafkaRecord]) -> int:
        """Attributes, time after the first record's, index, key, value, number of headers; their length before it."""
        delta_ms = record.ts - batch[0].ts if batch else 0
        fields = field_bytes(record.key_size) + field_bytes(record.value_size)
        body = 1 + varint_bytes(delta_ms) + varint_bytes(len(batch)) + fields + varint_bytes(0)
        return varint_bytes(body) + body

    def upper_bound_bytes(self, record: KafkaRecord) -> int:
        """Kafka assumes the largest overhead that a record may have."""
        fields = field_bytes(record.key_size) + field_bytes(record.value_size)
        return HEADER_BYTES + RECORD_OVERHEAD_BOUND_BYTES + fields + varint_bytes(0)


TraceBatch = KafkaBatch[int, KafkaRecord, None]


class AccumulatorReplayer:
    """Drives an KafkaAccumulator as the trace's driver drove Kafka's: clock, metadata, and what Sender does."""

    inputs: ClassVar[Inputs] = {
        "append": APPEND_INPUTS,
        "append_wait": APPEND_INPUTS,
        "advance": frozenset({"to"}),
        "ready": frozenset(),
        "drain": frozenset({"nodes", "max_size"}) | DRIVER_MUTES,
        "complete": frozenset({"b"}) | DRIVER_MUTES,
        "fail": frozenset({"b"}) | DRIVER_MUTES,
        "retry": frozenset({"b"}) | DRIVER_MUTES,
        "split": frozenset({"b"}) | DRIVER_MUTES,
        "expire": frozenset(),
        "mute": frozenset({"p"}),
        "unmute": frozenset({"p"}),
        "leader": frozenset({"p", "node", "epoch"}),
        "flush": frozenset(),
        "close": frozenset(),
        "abort_incomplete": frozenset(),
    }
    state: ClassVar[frozenset[str]] = frozenset(
        {"q", "available", "unallocated", "pooled", "queued", "incomplete", "undrained", "flushing"}
    )
    unordered: ClassVar[frozenset[tuple[str, str]]] = frozenset(
        {("ready", "nodes"), ("flush", "awaits"), ("abort_incomplete", "aborted")} | {(op, "flushed") for op in inputs}
    )
    partial: ClassVar[frozenset[str]] = frozenset({"unblocked"})

    def __init__(self, config: dict[str, Any]) -> None:
        self.now_ms: int = config["start_ms"]
        settings = AccumulatorSettings(
            batch_bytes=config["batch_size"],
            linger_ms=config["linger_ms"],
            delivery_timeout_ms=config["delivery_timeout_ms"],
        )
        self.backoff_table_ms: list[int] = config["backoff_table_ms"]
        self.policy: KafkaAccumulator[int, KafkaRecord, None] = KafkaAccumulator(
            settings, config["buffer_memory"], KafkaSizing(), self.backoff_ms
        )
        self.n_partitions: int = config["partitions"]
        for partition in range(self.n_partitions):
            self.policy.set_leader(partition, config["leaders"][partition], config["epochs"][partition])
        self.batches: dict[int, TraceBatch] = {}
        """By number, those in flight."""
        self.flushes: list[Flush[int, KafkaRecord, None]] = []
        self.flushed: set[int] = set()
        self.blocked: dict[int | None, AppendTicket[int, KafkaRecord, None]] = {}
        """By wait id, the appends that wait."""
        self.operations: dict[str, Callable[[Step], Step]] = {
            "append": self.append,
            "append_wait": self.append_wait,
            "ready": self.ready,
            "drain": self.drain,
            "complete": self.complete,
            "fail": self.fail,
            "retry": self.retry,
            "split": self.split,
            "expire": self.expire,
            "mute": self.mute,
            "unmute": self.unmute,
            "leader": self.leader,
            "flush": self.flush,
            "close": self.close,
            "abort_incomplete": self.abort_incomplete,
        }

    def backoff_ms(self, retry: int) -> int:
        """Kafka's own floating point, from the trace; constant after its end."""
        return self.backoff_table_ms[min(retry, len(self.backoff_table_ms) - 1)]

    def joins(self, batch: Sequence[Step], step: Step) -> bool:
        """The policy takes one request at a time."""
        return False

    def run(self, batch: Sequence[Step]) -> list[Step]:
        """Carry out one step and the mutes that the driver added, and say what ended in it."""
        (step,) = batch
        if step["op"] == "advance":
            self.now_ms = step["to"]
            return [{}]
        operation = self.operations.get(step["op"])
        answer = operation(step) if operation else {}
        for partition in listed(step.get("muted")):
            self.policy.mute(partition)
        for partition in listed(step.get("unmuted")):
            self.policy.unmute(partition)
        return [{**answer, **self.ended(), **self.after()}]

    def finish(self) -> None:
        """Have the policy recompute what it keeps twice."""
        self.policy.validate()

    def after(self) -> Step:
        """What is queued, taken and under way; everything must add up at each step."""
        self.policy.validate()
        pool = self.policy.pool
        return {
            "q": [len(self.policy.queues.of(partition).batches) for partition in range(self.n_partitions)],
            "available": pool.available_bytes,
            "unallocated": pool.unallocated_bytes,
            "pooled": pool.pooled,
            "queued": pool.queued,
            "incomplete": self.policy.has_incomplete,
            "undrained": self.policy.has_undrained,
            "flushing": self.policy.is_flushing,
        }

    def ended(self) -> Step:
        """The blocked append and the flushes that ended in this step."""
        unblocked: Step | None = None
        for wait_id, ticket in list(self.blocked.items()):
            if ticket.is_done:
                del self.blocked[wait_id]
                unblocked = {"wait_id": wait_id, **append_result(ticket.appended, ticket.error)}
        flushed = {number for number, flush in enumerate(self.flushes) if flush.is_done}
        new, self.flushed = flushed - self.flushed, flushed
        return {"unblocked": unblocked, "flushed": sorted(new)}

    # --- the operations ----------------------------------------------------------------------------------------------

    def append(self, step: Step) -> Step:
        """An append that is given up if there is no memory at once."""
        try:
            appended = self.policy.append(step["p"], record_of(step), self.now_ms)
        except REFUSALS as error:
            return append_result(None, error)
        return append_result(appended, None)

    def append_wait(self, step: Step) -> Step:
        """An append that may wait for ever."""
        try:
            ticket = self.policy.append_or_wait(step["p"], record_of(step), self.now_ms)
        except REFUSALS as error:
            ticket = AppendTicket(step["p"], record_of(step), error=error)
        self.blocked[step.get("wait_id")] = ticket
        return {"blocked": not ticket.is_done}

    def ready(self, step: Step) -> Step:
        """Which nodes can be drained, and when to look again."""
        check = self.policy.ready(self.now_ms)
        return {
            "nodes": list(check.nodes),
            "next_ms": check.next_check_ms,
            "unknown_leader": bool(check.unknown_leaders),
        }

    def drain(self, step: Step) -> Step:
        """Batches of the nodes asked for; they are in flight then."""
        drained = self.policy.drain_nodes(step["nodes"], step["max_size"], self.now_ms)
        self.batches |= {batch.number: batch for batches in drained.values() for batch in batches}
        return {"batches": {str(node): [shown(batch) for batch in batches] for node, batches in drained.items()}}

    def complete(self, step: Step) -> Step:
        """The node has it."""
        return {"ret": self.policy.complete(self.batches.pop(step["b"]), None, self.now_ms)}

    def fail(self, step: Step) -> Step:
        """The node will never have it."""
        return {"ret": self.policy.fail(self.batches.pop(step["b"]), RuntimeError("refused"), self.now_ms)}

    def retry(self, step: Step) -> Step:
        """The node did not take it this time."""
        outcome = self.policy.retried(self.batches.pop(step["b"]), self.now_ms)
        return {"outcome": outcome.name.lower()}

    def split(self, step: Step) -> Step:
        """It was too large for the node."""
        return {"into": [shown(part) for part in self.policy.split(self.batches.pop(step["b"]), self.now_ms)]}

    def expire(self, step: Step) -> Step:
        """Fail what has been queued too long."""
        expiry = self.policy.expire(self.now_ms)
        return {"expired": [shown(batch) for batch in expiry.batches], "next_expiry_ms": expiry.next_expiry_ms}

    def mute(self, step: Step) -> Step:
        """Drain nothing from a partition."""
        self.policy.mute(step["p"])
        return {}

    def unmute(self, step: Step) -> Step:
        """Drain from it again."""
        self.policy.unmute(step["p"])
        return {}

    def leader(self, step: Step) -> Step:
        """The metadata changed."""
        self.policy.set_leader(step["p"], step["node"], step["epoch"])
        return {}

    def flush(self, step: Step) -> Step:
        """Send everything at once and wait for what is incomplete now."""
        flush = self.policy.begin_flush()
        self.flushes.append(flush)
        return {"flush_id": len(self.flushes) - 1, "awaits": [batch.number for batch in flush.awaits]}

    def close(self, step: Step) -> Step:
        """Take nothing more."""
        self.policy.close(self.now_ms)
        return {}

    def abort_incomplete(self, step: Step) -> Step:
        """End everything that has not ended."""
        return {"aborted": [batch.number for batch in self.policy.abort_incomplete(self.now_ms)]}


def listed(value: Any) -> list[int]:
    """One partition, several, or none."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def record_of(step: Step) -> KafkaRecord:
    """The record that a step appends."""
    return KafkaRecord(step["ts"], step["key_size"], step["value_size"])


def append_result(appended: KafkaAppended[int, KafkaRecord, None] | None, error: PurgatoryError | None) -> Step:
    """RecordAppendResult and the batch, or the error."""
    if appended is None:
        return {"err": error_name(error), "full": None, "new": None, "bytes": None, "b": None}
    return {
        "err": None,
        "full": appended.is_full,
        "new": appended.is_new_batch,
        "bytes": appended.appended_bytes,
        "b": appended.batch.number,
    }


def shown(batch: TraceBatch) -> Step:
    """A batch as traces show it."""
    return {
        "b": batch.number,
        "p": batch.partition,
        "records": len(batch.records),
        "bytes": batch.bytes,
        "attempts": batch.attempts,
        "created": batch.created_ms,
    }
