"""Whatever happens in whatever order: memory adds up, no record is lost or told twice, muting keeps order.

A world is a list of actions on three partitions. Its driver does as Kafka's Sender with one request in flight: it mutes
a partition when its batch is drained and unmutes it with the answer.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_purgatory.accumulator.batch import BatchState, ProducerBatch
from spark_purgatory.errors import BufferExhaustedError
from tests.conformance.kafka_accumulator import AppendTicket, KafkaAppended
from tests.conformance.kafka_buffer_pool import AccumulatorClosedError, RecordTooLargeError
from tests.conformance.kafka_incomplete import Flush
from tests.support.accumulators import AMPLE, NODE, Part, policy

pytestmark = pytest.mark.kafka

PARTITIONS = "xyz"
OTHER = "other"
MEMORY = 430

Action = tuple[Any, ...]
"""Name of a method of World, and its arguments."""


class World:
    """An accumulator, what went into it, and what was told of that."""

    def __init__(self, mutes: bool = True) -> None:
        self.accumulator = policy(memory=MEMORY, linger=10, timeout=200)
        self.mutes = mutes
        self.now = 0
        self.made = self.refused = 0
        self.went_in: list[str] = []
        """Names of records, in the order in which they joined a batch."""
        self.told: Counter[str] = Counter()
        """How often the end of a record was told."""
        self.arrived: list[tuple[str, str]] = []
        """(partition, record) of completed batches, in order."""
        self.waiting: list[AppendTicket[Any, Any, Any]] = []
        self.flushes: list[Flush[Any, Any, Any]] = []
        self.epoch = 0

    def note(self, appended: KafkaAppended[Any, Any, Any], name: str) -> None:
        self.went_in.append(name)
        appended.future.add_done_callback(lambda value, error: self.told.update([name]))

    def append(self, partition: str, size: int, waits: bool) -> None:
        self.made += 1
        part = Part(f"record {self.made}", size)
        try:
            if waits:
                self.waiting.append(self.accumulator.append_or_wait(partition, part, self.now, max_block_ms=size))
            else:
                self.note(self.accumulator.append(partition, part, self.now), part.name)
        except (AccumulatorClosedError, BufferExhaustedError, RecordTooLargeError):
            self.refused += 1

    def drain(self, max_bytes: int, everything: bool) -> None:
        nodes = (NODE, OTHER) if everything else self.accumulator.ready(self.now).nodes
        for batches in self.accumulator.drain_nodes(nodes, max_bytes, self.now).values():
            for batch in batches:
                if self.mutes:
                    self.accumulator.mute(batch.partition)

    def answer(self, kind: str, choice: int) -> None:
        in_flight = self.accumulator.in_flight
        if not in_flight:
            return
        batch: ProducerBatch[Any, Any, Any] = in_flight[choice % len(in_flight)]
        if kind == "complete":
            if self.accumulator.complete(batch, "done", self.now):
                self.arrived += [(batch.partition, record.name) for record in batch.records]
        elif kind == "fail":
            self.accumulator.fail(batch, RuntimeError(), self.now)
        elif kind == "split" and len(batch.records) > 1:
            self.accumulator.split(batch, self.now)
        else:
            self.accumulator.retry(batch, self.now)
        self.accumulator.unmute(batch.partition)

    def wait(self, milliseconds: int) -> None:
        self.now += milliseconds
        self.accumulator.expire_waiters(self.now)

    def expire(self) -> None:
        self.accumulator.expire(self.now)

    def flush(self) -> None:
        self.flushes.append(self.accumulator.begin_flush())

    def lead(self, partition: str, node: str) -> None:
        self.epoch += 1
        self.accumulator.set_leader(partition, node, self.epoch)

    def abort(self) -> None:
        self.accumulator.abort_incomplete(self.now)

    def close(self) -> None:
        self.accumulator.close(self.now)

    def perform(self, action: Action) -> None:
        name, *arguments = action
        getattr(self, name)(*arguments)
        for ticket in [ticket for ticket in self.waiting if ticket.is_done]:
            self.waiting.remove(ticket)
            if ticket.appended is not None:
                self.note(ticket.appended, ticket.record.name)
            else:
                self.refused += 1

    def check(self) -> None:
        """What must hold after any action."""
        self.accumulator.validate()
        pool = self.accumulator.pool
        assert pool.available_bytes + pool.held_bytes + pool.gathered_bytes == MEMORY
        assert set(self.told.values()) <= {1}, "the end of a record was told twice"
        assert Counter(self.told) + Counter(self.unended()) == Counter(self.went_in), "a record was lost"
        assert self.accumulator.is_flushing == any(not flush.is_done for flush in self.flushes)
        assert self.accumulator.pool.queued == len(self.waiting)
        assert not (self.accumulator.is_closed and self.waiting)
        assert len(self.went_in) + len(self.waiting) + self.refused == self.made

    def check_order(self) -> None:
        """Of each partition, records arrived in the order in which they went in."""
        place = {name: number for number, name in enumerate(self.went_in)}
        for partition in PARTITIONS:
            places = [place[name] for of, name in self.arrived if of == partition]
            assert places == sorted(places), f"a record overtook another in {partition}"

    def unended(self) -> list[str]:
        """Records of every batch that is queued or in flight."""
        queued = [batch for queue in self.accumulator.queues for batch in queue.batches]
        in_flight = [batch for batch in self.accumulator.in_flight if batch.state is BatchState.IN_FLIGHT]
        return [record.name for batch in queued + in_flight for record in batch.records]

    def finish(self) -> None:
        """Answer and drain till nothing is left."""
        for _ in range(500):
            if not (self.accumulator.has_incomplete or self.accumulator.in_flight):
                return
            self.perform(("answer", "complete", 0))
            self.perform(("drain", AMPLE, True))
            self.perform(("wait", 40))
            self.check()
        raise AssertionError("it never came to an end")


ACTIONS = st.one_of(
    st.tuples(st.just("append"), st.sampled_from(PARTITIONS), st.integers(0, 130), st.booleans()),
    st.tuples(st.just("append"), st.sampled_from(PARTITIONS), st.integers(1, 30), st.booleans()),
    st.tuples(st.just("append"), st.just("x"), st.integers(1, 30), st.booleans()),
    st.tuples(st.just("drain"), st.sampled_from([1, 150, AMPLE]), st.booleans()),
    st.tuples(st.just("answer"), st.sampled_from(["complete", "fail", "retry", "split"]), st.integers(0, 5)),
    st.tuples(st.just("answer"), st.just("split"), st.integers(0, 5)),
    st.tuples(st.just("wait"), st.sampled_from([1, 5, 10, 100])),
    st.tuples(st.sampled_from(["expire", "flush"])),
    st.tuples(st.just("lead"), st.sampled_from(PARTITIONS), st.sampled_from([NODE, OTHER])),
)
ENDINGS: list[list[Action]] = [[], [("close",)], [("abort",)], [("close",), ("abort",)]]


@given(st.lists(ACTIONS, min_size=20, max_size=80), st.sampled_from(ENDINGS), st.lists(ACTIONS, max_size=15))
def test_memory_adds_up_and_no_record_is_lost_or_overtaken(
    actions: list[Action], ending: list[Action], afterwards: list[Action]
) -> None:
    world = World()
    for action in [*actions, *ending, *afterwards]:
        world.perform(action)
        world.check()
    world.finish()
    world.check_order()
    assert world.told == Counter(world.went_in), "every record has ended, once"
    assert world.accumulator.pool.available_bytes == MEMORY - world.accumulator.pool.gathered_bytes
    assert all(flush.is_done for flush in world.flushes)


OVERTAKEN: list[Action] = [
    ("append", "x", 60, False),
    ("append", "x", 60, False),
    ("drain", AMPLE, True),
    ("drain", AMPLE, True),
    ("answer", "retry", 0),
    ("answer", "complete", 0),
]


@pytest.mark.parametrize("mutes", [True, False])
def test_without_muting_the_same_actions_let_a_record_overtake_another(mutes: bool) -> None:
    world = World(mutes)
    for action in OVERTAKEN:
        world.perform(action)
    world.finish()
    if mutes:
        world.check_order()
    else:
        with pytest.raises(AssertionError, match="a record overtook another in x"):
            world.check_order()


@example(OVERTAKEN)
@given(st.lists(ACTIONS, min_size=20, max_size=80))
def test_without_muting_nothing_but_the_order_is_lost(actions: list[Action]) -> None:
    world = World(mutes=False)
    for action in actions:
        world.perform(action)
        world.check()
    world.finish()
    assert world.told == Counter(world.went_in)
