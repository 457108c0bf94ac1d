"""Faults of the log host: of its tokens, snapshots, logs and timers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.state import step_log
from spark_purgatory.core.state.engine_snapshot import save
from spark_purgatory.core.state.shard_head import ShardHead, write_head
from spark_purgatory.core.state.step_log import Step
from spark_purgatory.spark.host import log_host
from spark_purgatory.spark.host.log_host import LogHost
from spark_purgatory.spark.host.warm_engines import Answer, Request, WarmEngines

Patch = Callable[[Any, str, Any], None]
step, write, set_timer = WarmEngines.step, LogHost._write, LogHost._set_timer
replay, write_entry = step_log.replay, step_log.write_entry


def token_given_before(patch: Patch) -> None:
    """An engine has the old token until its step's head is committed."""

    def given_before(self: WarmEngines, request: Request) -> Answer | None:
        answer = step(self, request)
        if answer is not None:
            self._kept[request.shard_id].token = request.token
        return answer

    patch(WarmEngines, "step", given_before)


def _rewritten(patch: Patch, change: Callable[[LogHost, ShardHead, bytes, Answer, ShardHead], ShardHead]) -> None:
    def writes(self: LogHost, head: ShardHead, entry: bytes, request: Request, answer: Answer, at_ms: Any) -> ShardHead:
        written = change(self, head, entry, answer, write(self, head, entry, request, answer, at_ms))
        self._head.update((write_head(written),))
        return written

    patch(LogHost, "_write", writes)


def snapshot_misses(patch: Patch) -> None:
    """The log is cleared, and the snapshot stays the one before."""

    def writes(self: LogHost, head: ShardHead, entry: bytes, request: Request, answer: Answer, at_ms: Any) -> ShardHead:
        before = self._snapshot.get()
        written = write(self, head, entry, request, answer, at_ms)
        if before is not None:
            self._snapshot.update((bytes(before[0]),))
        return written

    patch(LogHost, "_write", writes)


def snapshot_of_before(patch: Patch) -> None:
    """The snapshot is taken before the step whose entry it stands for."""

    def taken_before(self: WarmEngines, request: Request) -> Answer | None:
        held = self._kept.get(request.shard_id)
        engine = None if held is None or held.token != request.token else held.engine
        before = None if engine is None else save(engine, request.shards)
        answer = step(self, request)
        return answer if answer is None or answer.snapshot is None else replace(answer, snapshot=before)

    patch(WarmEngines, "step", taken_before)


def log_kept(patch: Patch) -> None:
    """A snapshot does not begin the log anew."""

    def kept(self: LogHost, head: ShardHead, entry: bytes, answer: Answer, written: ShardHead) -> ShardHead:
        if answer.snapshot is None:
            return written
        self._log.updateValue((written.next_entry,), (entry,))
        return replace(written, next_entry=written.next_entry + 1, log_bytes=len(entry))

    _rewritten(patch, kept)


def entry_not_written(patch: Patch) -> None:
    """A warm step's entry is left out, and the head does not count it."""

    def left_out(self: LogHost, head: ShardHead, entry: bytes, answer: Answer, written: ShardHead) -> ShardHead:
        if answer.snapshot is not None:
            return written
        self._log.removeKey((head.next_entry,))
        return replace(written, next_entry=head.next_entry, log_bytes=head.log_bytes)

    _rewritten(patch, left_out)


def numbers_repeat(patch: Patch) -> None:
    """An entry is written over the one before it."""

    def over(self: LogHost, head: ShardHead, entry: bytes, answer: Answer, written: ShardHead) -> ShardHead:
        if answer.snapshot is None and head.log_entries:
            self._log.updateValue((head.next_entry - 1,), (entry,))
        return written

    _rewritten(patch, over)


def timer_only_once(patch: Patch) -> None:
    """A call of a timer sets none again."""

    def once(self: LogHost, then_ms: int | None, now_ms: int | None, fired_ms: int | None) -> None:
        if fired_ms is None:
            set_timer(self, then_ms, now_ms, fired_ms)

    patch(LogHost, "_set_timer", once)


def _replayed(change: Callable[[Sequence[bytes]], Sequence[bytes]]) -> Callable[[Patch], None]:
    def replays(engine: EventTimePurgatory, entries: Sequence[bytes]) -> None:
        replay(engine, [*change(entries)])

    return lambda patch: patch(step_log, "replay", replays)


def _entries(change: Callable[[Step], Step]) -> Callable[[Patch], None]:
    return lambda patch: patch(log_host, "write_entry", lambda step: write_entry(change(step)))


OF_HOST: dict[str, Callable[[Patch], None]] = {
    "a token is given before the commit": token_given_before,
    "a snapshot is not written": snapshot_misses,
    "a snapshot is of the step before": snapshot_of_before,
    "a snapshot does not begin the log anew": log_kept,
    "an entry is not written": entry_not_written,
    "an entry is written over another": numbers_repeat,
    "a timer is set once": timer_only_once,
    "the last entry is replayed twice": _replayed(lambda entries: [*entries, *entries[-1:]]),
    "a log is replayed from its end": _replayed(lambda entries: entries[::-1]),
    "the last entry is not replayed": _replayed(lambda entries: entries[:-1]),
    "an entry lacks the watermark": _entries(lambda step: replace(step, watermark_ms=0)),
    "an entry lacks the events of the second task": _entries(lambda step: replace(step, events=step.events[:1])),
}
