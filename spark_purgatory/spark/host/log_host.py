"""The host whose state is a snapshot and a log (docs/protocol.md): a shard's engine under ``transformWithState``.

Timers fire at ``timer <= watermark``, after the partition's rows, and the engine expires at ``deadline <= watermark``.
So the timer is the deadline. Spark's late filter never drops a row, because its marked column is always null.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, GroupedData, Row
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.blob import other_shards
from spark_purgatory.core.state.shard_head import ShardHead, read_head, write_head
from spark_purgatory.core.state.step_log import STEP_VERSION, Step, digest, load_engine, write_entry
from spark_purgatory.errors import StateMismatchError
from spark_purgatory.spark.host import calls
from spark_purgatory.spark.host.warm_engines import Answer, Request, WarmEngines, step_engine, warm_engines
from spark_purgatory.spark.host.worker import end_task, prepare_worker

BLOB = T.StructType([T.StructField("blob", T.BinaryType())])
NUMBER = T.StructType([T.StructField("entry", T.LongType())])


@dataclass(frozen=True)
class LogHostOptions:
    shards: int
    max_warm_bytes: int
    broadcast: calls.Broadcast | None = None


class LogHost(StatefulProcessor):
    """The processor for ``transformWithState``. Spark makes a new one for every task."""

    most_expired_bytes = 1 << 30
    """The most bytes of outcomes from the timers of one task. Spark puts them into one Arrow batch, which holds 2 GiB
    at most. The other shards are called again when the watermark next moves."""

    def __init__(self, spec: EngineSpec, options: LogHostOptions) -> None:
        self._spec = spec
        self._options = options
        self._digest = digest(spec)
        self._expired_bytes = 0

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._head = handle.getValueState("head", BLOB)
        self._snapshot = handle.getValueState("snapshot", BLOB)
        self._log = handle.getMapState("log", NUMBER, BLOB)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        clock_ms = calls.clock_behind(watermark_ms, self._spec.clock_delay_ms)
        sent = ((row["side"], row["blob"]) for row in rows)
        yield self._call(calls.step_of(sent, clock_ms, self._options.broadcast), watermark_ms)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        fired_ms = expiredTimerInfo.getExpiryTimeInMs()
        if self._expired_bytes > self.most_expired_bytes:
            self._postpone(watermark_ms, fired_ms)
            return
        step = Step(calls.clock_behind(watermark_ms, self._spec.clock_delay_ms))
        row = self._call(step, watermark_ms, fired_ms)
        self._expired_bytes += len(row["blob"] or b"")
        yield row

    def close(self) -> None:
        """Do nothing: the worker continues to hold its engines."""

    def reached(self, failpoint: str) -> None:
        """Do nothing. The simulation of the tests overrides it, so that a task fails where a crash could matter."""

    @property
    def warm(self) -> WarmEngines:
        return warm_engines()

    def _call(self, step: Step, watermark_ms: int, fired_ms: int | None = None) -> Row:
        prepare_worker()
        stored = self._head.get()
        head = self._new_head() if stored is None else read_head(_bytes(stored[0]))
        if head.shards != self._options.shards:
            raise StateMismatchError(other_shards(head.shards, self._options.shards))
        entry = write_entry(step)
        same_steps = (head.spec_digest, head.step_version) == (self._digest, STEP_VERSION)
        # A log has entries of one kind. So a shard begins with a snapshot, and gets one where its log, even an empty
        # one, has another query's settings or another version's steps.
        wants_snapshot = stored is None or not same_steps or head.wants_snapshot(len(entry))
        request = Request(
            shard_id=head.shard_id,
            token=head.token,
            next_token=secrets.token_hex(16),
            spec_digest=self._digest,
            step=step,
            shards=self._options.shards,
            max_warm_bytes=self._options.max_warm_bytes,
            wants_snapshot=wants_snapshot,
        )
        self.reached("before step")
        answer = self.warm.ask(head.holder, request) if stored is not None else None
        if answer is None:
            answer = self._step_cold(head, request, is_new=stored is None)
        self.reached("after step")
        timer_ms = calls.timer_of(answer.due_ms, watermark_ms, self._spec.clock_delay_ms)
        written = self._write(head, entry, request, answer, timer_ms)
        self._set_timer(head.timer_ms, written.timer_ms, fired_ms)
        size = len(entry) if answer.snapshot is None else len(answer.snapshot)
        end_task()
        return Row(**calls.result_of(answer.outcomes, answer.counted, size))

    def _step_cold(self, head: ShardHead, request: Request, is_new: bool) -> Answer:
        engine = EventTimePurgatory(self._spec) if is_new else self._load(head)
        self.reached("after load")
        answer = step_engine(engine, request, self.warm.address)
        is_kept = self.warm.keep(request, engine, answer.warm_bytes)
        return answer if is_kept else replace(answer, holder="")

    def _load(self, head: ShardHead) -> EventTimePurgatory:
        snapshot = self._snapshot.get()
        found = (self._log.getValue((number,)) for number in range(head.first_entry, head.next_entry))
        entries = [_bytes(value[0]) for value in found if value is not None]
        blob = b"" if snapshot is None else _bytes(snapshot[0])
        return load_engine(self._spec, self._options.shards, head, blob, entries)

    def _write(
        self, head: ShardHead, entry: bytes, request: Request, answer: Answer, timer_ms: int | None
    ) -> ShardHead:
        """Make the step durable, and return the new head."""
        changed: dict[str, Any]
        if answer.snapshot is None:
            self.reached("before log")
            self._log.updateValue((head.next_entry,), (entry,))
            self.reached("after log")
            changed = {"next_entry": head.next_entry + 1, "log_bytes": head.log_bytes + len(entry)}
        else:
            self.reached("before snapshot")
            self._snapshot.update((answer.snapshot,))
            self.reached("between snapshot and log")
            for number in range(head.first_entry, head.next_entry):
                self._log.removeKey((number,))
            self.reached("after snapshot")
            changed = {
                "first_entry": head.next_entry,
                "log_bytes": 0,
                "snapshot_bytes": len(answer.snapshot),
                "spec_digest": self._digest,
                "step_version": STEP_VERSION,
                "deadline_is_sum": self._spec.deadline_is_sum,
            }
        written = replace(
            head,
            token=request.next_token,
            holder=answer.holder,
            timer_ms=timer_ms,
            gauges=answer.gauges,
            tally=answer.tally,
            **changed,
        )
        self.reached("before head")
        self._head.update((write_head(written),))
        self.reached("after head")
        return written

    def _set_timer(self, then_ms: int | None, now_ms: int | None, fired_ms: int | None) -> None:
        """Replace Spark's timer. ``fired_ms``: the timer of this call, which Spark deletes itself."""
        if then_ms == now_ms:
            return
        if then_ms is not None and then_ms != fired_ms:
            self._handle.deleteTimer(then_ms)
        if now_ms is not None:
            self._handle.registerTimer(now_ms)

    def _postpone(self, watermark_ms: int, fired_ms: int) -> None:
        """Have the shard called when the watermark has moved, because this task can give no more outcomes."""
        stored = self._head.get()
        assert stored is not None, "a shard with a timer has a head"
        head = read_head(_bytes(stored[0]))
        then_ms = calls.timer_of(fired_ms, watermark_ms, 0)
        self._head.update((write_head(replace(head, timer_ms=then_ms)),))
        self._set_timer(head.timer_ms, then_ms, fired_ms)

    def _new_head(self) -> ShardHead:
        return ShardHead(
            token="",
            shard_id=secrets.token_hex(16),
            holder="",
            shards=self._options.shards,
            spec_digest=self._digest,
            step_version=STEP_VERSION,
            deadline_is_sum=self._spec.deadline_is_sum,
        )


class PandasLogHost(LogHost):
    """The same processor for ``transformWithStateInPandas``, with pandas frames in place of rows."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        sent = ({"side": side, "blob": blob} for side, blob in calls.rows_in(rows))
        yield from (calls.frame_of(row.asDict()) for row in super().handleInputRows(key, sent, timerValues))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        rows = super().handleExpiredTimer(key, timerValues, expiredTimerInfo)
        yield from (calls.frame_of(row.asDict()) for row in rows)


def log_hosted(groups: GroupedData, host: LogHost, pandas_host: PandasLogHost) -> DataFrame:
    """Return the rows of the calls, by the operator that this Spark has. Spark 4.0 has only the one for pandas."""
    if hasattr(groups, "transformWithState"):
        return groups.transformWithState(host, calls.RESULT_DDL, "append", "EventTime")
    return groups.transformWithStateInPandas(pandas_host, calls.RESULT_DDL, "append", "EventTime")


def _bytes(value: Any) -> bytes:
    """Return a binary value of the state, which the JVM's pickler sends as bytes or as a bytearray."""
    return value if isinstance(value, bytes) else bytes(value)
