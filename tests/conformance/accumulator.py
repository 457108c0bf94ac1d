"""Traces of RecordAccumulator over BufferPool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from spark_purgatory.errors import PurgatoryError
from tests.conformance.bufferpool import REFUSALS, error_name
from tests.conformance.kafka_accumulator import AppendTicket, Flush, KafkaAccumulator, KafkaAppended, KafkaBatch
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
        self.backoff_table_ms: list[int] = config["backoff_table_ms"]
        self.policy = KafkaAccumulator(
            batch_bytes=config["batch_size"],
            linger_ms=config["linger_ms"],
            delivery_timeout_ms=config["delivery_timeout_ms"],
            buffer_bytes=config["buffer_memory"],
            sizing=KafkaSizing(),
            backoff_ms=self.backoff_ms,
        )
        self.n_partitions: int = config["partitions"]
        for partition in range(self.n_partitions):
            self.set_leader(partition, config["leaders"][partition], config["epochs"][partition])
        self.batches: dict[int, KafkaBatch] = {}
        """By number, those in flight."""
        self.flushes: list[Flush] = []
        self.flushed: set[int] = set()
        self.blocked: dict[int | None, AppendTicket] = {}
        """By wait id, the appends that wait."""

    def set_leader(self, partition: int, node: int | None, epoch: int | None) -> None:
        queue = self.policy.queue(partition)
        queue.leader, queue.leader_epoch = node, epoch

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
        answer = self.answer(step)
        for name, is_muted in (("muted", True), ("unmuted", False)):
            for partition in listed(step.get(name)):
                self.policy.queue(partition).is_muted = is_muted
        return [{**answer, **self.ended(), **self.after()}]

    def answer(self, step: Step) -> Step:
        """What one step answers; nothing, where it is not known."""
        policy, now_ms = self.policy, self.now_ms
        match step["op"]:
            case "append":
                return self.append(step)
            case "append_wait":
                return self.append_wait(step)
            case "ready":
                check = policy.ready(now_ms)
                nodes, unknown = list(check.nodes), check.has_unknown_leaders
                return {"nodes": nodes, "next_ms": check.next_check_ms, "unknown_leader": unknown}
            case "drain":
                drained = policy.drain_nodes(step["nodes"], step["max_size"], now_ms)
                self.batches |= {batch.number: batch for batches in drained.values() for batch in batches}
                return {"batches": {str(node): [shown(each) for each in batches] for node, batches in drained.items()}}
            case "complete":
                return {"ret": policy.answered(self.batches.pop(step["b"]), None, now_ms)}
            case "fail":
                return {"ret": policy.answered(self.batches.pop(step["b"]), RuntimeError("refused"), now_ms)}
            case "retry":
                return {"outcome": policy.retried(self.batches.pop(step["b"]), now_ms)}
            case "split":
                return {"into": [shown(part) for part in policy.split(self.batches.pop(step["b"]), now_ms)]}
            case "expire":
                expiry = policy.expire(now_ms)
                return {"expired": [shown(each) for each in expiry.batches], "next_expiry_ms": expiry.next_expiry_ms}
            case "flush":
                flush = policy.begin_flush()
                self.flushes.append(flush)
                return {"flush_id": len(self.flushes) - 1, "awaits": [batch.number for batch in flush.awaits]}
            case "abort_incomplete":
                return {"aborted": [batch.number for batch in policy.abort_incomplete(now_ms)]}
            case "mute" | "unmute":
                policy.queue(step["p"]).is_muted = step["op"] == "mute"
            case "leader":
                self.set_leader(step["p"], step["node"], step["epoch"])
            case "close":
                policy.close(now_ms)
        return {}

    def finish(self) -> None:
        """Have the policy recompute what it keeps twice."""
        self.policy.validate()

    def after(self) -> Step:
        """What is queued, taken and under way; everything must add up at each step."""
        self.policy.validate()
        pool = self.policy.pool
        return {
            "q": [len(self.policy.queue(partition)) for partition in range(self.n_partitions)],
            "available": pool.available_bytes,
            "unallocated": pool.unallocated_bytes,
            "pooled": pool.pooled,
            "queued": pool.queued,
            "incomplete": bool(self.policy.incomplete),
            "undrained": any(self.policy.queues.values()),
            "flushing": bool(self.policy.flushes),
        }

    def ended(self) -> Step:
        """The blocked append and the flushes that ended in this step."""
        unblocked: Step | None = None
        for wait_id, ticket in list(self.blocked.items()):
            if ticket.is_done:
                del self.blocked[wait_id]
                unblocked = {"wait_id": wait_id, **append_result(ticket.appended, ticket.error)}
        flushed = {number for number, flush in enumerate(self.flushes) if not flush.missing}
        new, self.flushed = flushed - self.flushed, flushed
        return {"unblocked": unblocked, "flushed": sorted(new)}

    def append(self, step: Step) -> Step:
        """An append that is given up if there is no memory at once."""
        try:
            appended = self.policy.append_at_once(step["p"], record_of(step), self.now_ms)
        except REFUSALS as error:
            return append_result(None, error)
        return append_result(appended, None)

    def append_wait(self, step: Step) -> Step:
        try:
            ticket = self.policy.append_or_wait(step["p"], record_of(step), self.now_ms)
        except REFUSALS as error:
            ticket = AppendTicket(step["p"], record_of(step), error=error)
        self.blocked[step.get("wait_id")] = ticket
        return {"blocked": not ticket.is_done}


def listed(value: Any) -> list[int]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def record_of(step: Step) -> KafkaRecord:
    return KafkaRecord(step["ts"], step["key_size"], step["value_size"])


def append_result(appended: KafkaAppended | None, error: PurgatoryError | None) -> Step:
    if appended is None:
        return {"err": error_name(error), "full": None, "new": None, "bytes": None, "b": None}
    number, is_new, is_full, size = appended
    return {"err": None, "full": is_full, "new": is_new, "bytes": size, "b": number}


def shown(batch: KafkaBatch) -> Step:
    return {
        "b": batch.number,
        "p": batch.partition,
        "records": len(batch.records),
        "bytes": batch.bytes,
        "attempts": batch.attempts,
        "created": batch.created_ms,
    }
