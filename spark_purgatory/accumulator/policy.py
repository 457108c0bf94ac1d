"""When what has accumulated goes: Kafka's producer accumulation as a policy (Kafka: ``RecordAccumulator``).

Terms. A *record* joins the last *batch* of its *partition*; a batch that has no room for one is closed and a new one
is opened, if the pool has memory for it. A *node* takes the batches of the partitions that it *leads*. The sender
(Kafka: ``Sender``) checks which nodes are *ready*, *drains* their batches, and gives each a result: `complete`, `fail`,
`retry` or `split`. Until then a batch is *in flight* and its memory is taken. For a table: the partitions are
the table's, the node is the table, a record is a staged part, a batch is a file to be.

Nothing here uses clocks, threads or files, or looks into a record. Codes such as A13 are facts about Kafka
(docs/kafka_facts.md), with a test each in ``tests/unit/test_accumulator*.py``.

A batch goes when it is full, or has lingered, or memory is out, or a flush or the end has come; never while it backs
off from a failure, and never while its partition is muted, which is how order is kept: mute a partition when its batch
is drained, unmute it when the batch has ended or is back in the queue.

Worked example: batches of 100 bytes, memory for two, linger 10 ms, backoff 5 ms (a test asserts it)::

    at 0   append a, 60 bytes to x      batch 0 opened                  x: [0]     available 100
           append b, 50 bytes to x      no room: 0 closed, 1 opened     x: [0, 1]  available 0
           append c, 10 bytes to x      into 1, no memory needed        x: [0, 1]
           append d, 10 bytes to y      BufferExhaustedError
           ready                        the node: two batches wait
           drain                        0: one batch a partition        x: [1]
    at 1   retry 0                      back at the front               x: [0, 1]
           ready                        nothing: 0 backs off, look again in 5 ms
    at 6   drain; complete 0            its memory is back              x: [1]     available 100
           ready                        nothing: 1 lingers, look again in 4 ms
    at 10  ready, drain; complete 1     it has lingered since 0         x: []      available 200
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Generic, TypeVar

from spark_purgatory.accumulator.appends import Appender
from spark_purgatory.accumulator.batch import QUEUED, Batch, BatchEvent, BatchState
from spark_purgatory.accumulator.batch_results import BatchResults
from spark_purgatory.accumulator.batches import AccumulatorSettings, Batches
from spark_purgatory.accumulator.drain import Drainer
from spark_purgatory.accumulator.incomplete import Flush
from spark_purgatory.accumulator.ready import ReadyCheck, check_ready, ripe_partitions
from spark_purgatory.accumulator.sizing import Sizing
from spark_purgatory.errors import AccumulatorClosedError, BugError

P = TypeVar("P", bound=Hashable)
R = TypeVar("R")
V = TypeVar("V")


class AccumulatorPolicy(Generic[P, R, V]):
    """Accumulates records into batches and decides which may go (Kafka: ``RecordAccumulator``, and of ``Sender`` what
    follows a response).

    ``P`` is a partition, ``R`` a record, ``V`` what a batch is completed with. `Appender` takes records in,
    `BatchResults` takes the results of batches; their methods are the policy's too. Times are absolute milliseconds,
    given by the caller; they must not decrease.
    """

    def __init__(
        self,
        settings: AccumulatorSettings,
        sizing: Sizing[R],
        backoff_ms: Callable[[int], int],
        default_leader: Hashable | None = None,
    ) -> None:
        self._batches: Batches[P, R, V] = Batches(settings, sizing, backoff_ms, default_leader)
        self._appender = Appender(self._batches)
        self._results = BatchResults(self._batches, self._appender)
        self._drainer = Drainer(self._batches.queues)
        self.pool = self._batches.pool
        self.queues = self._batches.queues
        self.append = self._appender.append
        self.append_or_wait = self._appender.append_or_wait
        self.expire_waiters = self._appender.expire_waiters
        self.complete = self._results.complete
        self.fail = self._results.fail
        self.retry = self._results.retry
        self.reenqueue = self._results.reenqueue
        self.split = self._results.split
        self.overdue = self._results.overdue
        self.expire = self._results.expire

    @property
    def settings(self) -> AccumulatorSettings:
        """Sizes and times that the policy uses."""
        return self._batches.settings

    @property
    def is_closed(self) -> bool:
        """Whether the policy takes no more records."""
        return self._batches.is_closed

    @property
    def has_incomplete(self) -> bool:
        """Some batch, queued or in flight, has not ended (Kafka: ``hasIncomplete``)."""
        return len(self._batches.incomplete) > 0

    @property
    def has_undrained(self) -> bool:
        """Some batch is queued (Kafka: ``hasUndrained``)."""
        return any(queue.batches for queue in self.queues)

    @property
    def is_flushing(self) -> bool:
        """A flush is under way (Kafka: ``flushInProgress``)."""
        return self._batches.incomplete.is_flushing

    @property
    def in_flight(self) -> tuple[Batch[P, R, V], ...]:
        """Batches that were drained and have no result yet, in the order drained."""
        return tuple(self._batches.in_flight)

    def set_leader(self, partition: P, node: Hashable | None, epoch: int | None = None) -> None:
        """Say which node leads a partition, if any, and in which epoch (Kafka: the cluster's metadata)."""
        queue = self.queues.of(partition)
        queue.leader, queue.leader_epoch, queue.has_given_leader = node, epoch, True

    def mute(self, partition: P) -> None:
        """Drain nothing from a partition till `unmute` (Kafka: ``mutePartition``)."""
        self.queues.of(partition).is_muted = True

    def unmute(self, partition: P) -> None:
        """Let a partition be drained again (Kafka: ``unmutePartition``)."""
        self.queues.of(partition).is_muted = False

    def ready(self, now_ms: int) -> ReadyCheck[P]:
        """Nodes that have something to be sent, and when to check again (A11 to A15; Kafka: ``ready``)."""
        is_urgent = self.pool.queued > 0 or self.is_closed or self.is_flushing
        return check_ready(self.queues, now_ms, self._batches.settings.linger_ms, is_urgent)

    def ripe(self, now_ms: int, is_urgent: bool = False) -> list[P]:
        """Partitions whose first batch is worth a request now (`ripe_partitions`); ``is_urgent``: each one is."""
        is_urgent = is_urgent or self.pool.queued > 0 or self.is_closed or self.is_flushing
        settings = self._batches.settings
        return ripe_partitions(self.queues, now_ms, settings.linger_ms, settings.batch_bytes, is_urgent)

    def drain(
        self, nodes: Iterable[Hashable], max_bytes: int, now_ms: int, only: Collection[P] | None = None
    ) -> dict[Hashable, list[Batch[P, R, V]]]:
        """Take at most one batch of each partition of each node, ``max_bytes`` a node (A17 to A21; Kafka: ``drain``).

        ``only``: the partitions to take from; all without it, as in Kafka.

        A node always gets one batch if it has any, whatever its size. Every batch must get a result: `complete`,
        `fail`, `retry`, `reenqueue` or `split`.
        """
        drained = {node: self._drainer.drain_node(node, max_bytes, now_ms, only) for node in dict.fromkeys(nodes)}
        self._batches.in_flight.update((batch, None) for batches in drained.values() for batch in batches)
        return drained

    def begin_flush(self) -> Flush[P, R, V]:
        """Make everything ready until all that is incomplete now has ended (A28, A29; Kafka: ``beginFlush``).

        The flush returned says when it is done (Kafka: ``awaitFlushCompletion``).
        """
        return self._batches.incomplete.begin_flush()

    def close(self, now_ms: int) -> None:
        """Take no more records and make everything ready; nothing queued is lost (A30; Kafka: ``close``)."""
        self._batches.is_closed = True
        self.pool.close()
        self._appender.resume_waiting(now_ms)

    def abort_incomplete(self, now_ms: int) -> list[Batch[P, R, V]]:
        """End every batch with AccumulatorClosedError (A31; Kafka: ``abortIncompleteBatches``); returns them.

        Memory of queued batches comes back now, that of batches in flight with their results. An append that gets
        memory by this is aborted too.
        """
        aborted: list[Batch[P, R, V]] = []
        while batches := list(self._batches.incomplete):
            for queue in self.queues:
                queue.batches.clear()
            for batch in batches:
                batch.apply(BatchEvent.ABORT)
                self._batches.incomplete.settle(batch, None, AccumulatorClosedError(f"{batch} was aborted"))
            self._results.return_memory([batch for batch in batches if batch.state is BatchState.ABORTED], now_ms)
            aborted += batches
        self._batches.incomplete.callbacks.call_all()
        return aborted

    def validate(self) -> None:
        """Recompute what is kept twice; BugError if memory, a batch or the order of a queue is lost."""
        self.pool.validate()
        queued = [batch for queue in self.queues for batch in queue.batches]
        known = [*queued, *self._batches.in_flight]
        held_bytes = sum(batch.capacity_bytes for batch in known if batch.holds_memory)
        if held_bytes != self.pool.held_bytes:
            raise BugError(f"batches hold {held_bytes} bytes, {self.pool.held_bytes} bytes were handed out")
        unsettled = {batch for batch in known if not batch.is_settled}
        if unsettled != set(self._batches.incomplete) or len(known) != len(set(known)):
            raise BugError(
                f"{len(unsettled)} of {len(known)} batches are unsettled, {len(self._batches.incomplete)} incomplete"
            )
        if any(batch.state not in QUEUED for batch in queued) or any(
            batch.state in QUEUED for batch in self._batches.in_flight
        ):
            raise BugError("a batch is queued and in flight, or neither")
        if any(batch.state is BatchState.OPEN for queue in self.queues for batch in list(queue.batches)[:-1]):
            raise BugError("a batch takes records that is not the last of its queue")
        if any(
            ticket.is_done or ticket.allocation is None or ticket.allocation.is_done
            for ticket in self._appender.waiting
        ):
            raise BugError("an append waits for memory that it has")
