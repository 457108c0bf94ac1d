"""Faults of the product that are planted, so that it can be seen that a simulation finds them.

A fault is a function that is given ``patch(object, name, value)``. To plant another one, add a function and its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any
from unittest.mock import patch as patched

import numpy as np

from spark_purgatory.core.engine import deduplication
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.state import step_log
from spark_purgatory.core.state.engine_snapshot import save
from spark_purgatory.core.state.shard_head import ShardHead, write_head
from spark_purgatory.core.state.step_log import Step
from spark_purgatory.spark.host import calls, log_host
from spark_purgatory.spark.host.log_host import LogHost
from spark_purgatory.spark.host.warm_engines import Answer, Request, WarmEngines
from spark_purgatory.spark.sink.drain import actions as do
from spark_purgatory.spark.sink.drain import protocol, sender, table_truth
from spark_purgatory.spark.sink.drain.policy_adapter import PolicyAdapter
from spark_purgatory.spark.sink.staging import staging_folder
from spark_purgatory.spark.sink.staging.ledger import DrainState, EmptyRun, Ledger, done_entry, idle_paths
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder
from spark_purgatory.spark.sink.table.history import DrainCommit
from tests.simulation.play import Failure, play
from tests.simulation.storage import Names
from tests.simulation.tasks import CALLS
from tests.simulation.world import scenario

Patch = Callable[[Any, str, Any], None]


def direct_path(patch: Patch) -> None:
    """A micro-batch's rows go to the table in the micro-batch itself, before Spark commits it."""
    decide = protocol.next_action

    def eager(ledger: Ledger, policy: Any, work: do.Work, now_ms: int) -> Any:
        action = decide(ledger, policy, work, now_ms)
        is_over = isinstance(action, do.Return) and work.is_evaluated
        return (protocol._send(ledger, policy, now_ms, everything=True) or action) if is_over else action

    patch(sender, "next_action", eager)


def order_decides(patch: Patch) -> None:
    """Of rows of one id and equal times the first that came is accepted."""
    patch(deduplication, "value_ranks", lambda column: np.zeros(len(column), np.int64))


def drain_without_retries(patch: Patch) -> None:
    """A drain that an earlier run left is tried once."""
    is_out_of_time = PolicyAdapter.is_out_of_time

    def once(self: PolicyAdapter, ledger: Ledger) -> bool:
        is_left = bool(ledger.taken) and ledger.intent is not None and ledger.intent.run < ledger.run.number
        return is_out_of_time(self, ledger) or (is_left and ledger.failures > 0)

    patch(PolicyAdapter, "is_out_of_time", once)


def no_read_back(patch: Patch) -> None:
    """Nobody asks the table whether it has a commit."""

    def trusting(ledger: Ledger, intent: Any, state: Any) -> Any:
        commit = DrainCommit(state.history.version, ledger.names.app_id, intent.number, intent.uuid)
        return do.Found("a table", commit)

    patch(table_truth, "read_back", trusting)


def nothing_synchronised(patch: Patch) -> None:
    """Entries of the staging log are renamed before their bytes are on the disk."""
    patch(Names, "fsync", lambda number: None)


def timer_too_late(patch: Patch) -> None:
    """Both hosts ask Spark to call a shard a millisecond after its deadline."""
    timer_of = calls.timer_of

    def late(due_ms: int | None, watermark_ms: int, clock_delay_ms: int) -> int | None:
        at = timer_of(due_ms, watermark_ms, clock_delay_ms)
        return None if at is None else at + 1

    patch(calls, "timer_of", late)


def any_token(patch: Patch) -> None:
    """A worker steps the engine that it holds, whatever state Spark has committed."""
    step = WarmEngines.step

    def trusting(self: WarmEngines, request: Request) -> Any:
        if (kept := self._kept.get(request.shard_id)) is not None and kept.engine is not None:
            kept.token = request.token
        return step(self, request)

    patch(WarmEngines, "step", trusting)


def entry_forgotten(patch: Patch) -> None:
    """A shard's head forgets the first entry of its log."""

    def short(head: ShardHead) -> bytes:
        return write_head(replace(head, first_entry=head.first_entry + (head.log_entries > 1)))

    patch(log_host, "write_head", short)


def record_goes(patch: Patch) -> None:
    """The record of a micro-batch that waits for room goes with the second drain that makes the room."""

    def idle_folders(self: Ledger) -> list[str]:
        return idle_paths(self.next_drain, self.idle_epochs(), self._needed_epochs())

    patch(Ledger, "idle_folders", idle_folders)


def note_goes_on(patch: Patch) -> None:
    """As before 9fb897c2: a note of micro-batches without rows goes on, though rows have replaced a part of it."""
    adopt = Ledger.adopt

    def keeping(self: Ledger, pieces: Any, before: int, repartitions: Any = ()) -> None:
        noted = list(self.empty)
        adopt(self, pieces, before, repartitions)
        self.empty = sorted([*noted, *(EmptyRun(number, number, self.run.number) for number in repartitions)])

    patch(Ledger, "adopt", keeping)
    patch(staging_folder, "empty_entry", lambda run: (f"empty={run.first}-{run.last % 2}", run._asdict(), True))


# --- of the sink: a step of the protocol left out or done wrong -------------------------------------------------------


def uncommitted_rows_go(patch: Patch) -> None:
    """A drain takes rows of the micro-batch that Spark runs now, and nobody compares what a replay brings."""
    decide, take_in = protocol.next_action, protocol.apply

    def eager(ledger: Ledger, policy: Any, work: do.Work, now_ms: int) -> Any:
        action = decide(ledger, policy, work, now_ms)
        is_over = isinstance(action, do.Return) and work.is_evaluated
        return (protocol._send(ledger, policy, now_ms, everything=False) or action) if is_over else action

    def trusting(ledger: Ledger, result: Any, work: do.Work, now_ms: int) -> None:
        if isinstance(result, do.Skipped):
            work.is_evaluated = True
        else:
            take_in(ledger, result, work, now_ms)

    patch(sender, "next_action", eager)
    patch(sender, "apply", trusting)


def folders_forgotten(patch: Patch) -> None:
    """What was staged since the last intent counts in memory alone."""

    def adopt(self: Ledger, pieces: Any, before: int, repartitions: Any = ()) -> None:
        self.last_batch = max(self.last_batch, before - 1)

    patch(Ledger, "adopt", adopt)


def half_counts(patch: Patch) -> None:
    """A micro-batch that has a folder counts, though Spark has not committed it."""
    adopt = Ledger.adopt

    def trusting(self: Ledger, pieces: Any, before: int, repartitions: Any = ()) -> None:
        listed = list(pieces)
        has_folder = any(piece.batch_id == before for piece in listed)
        adopt(self, listed, before + has_folder)

    patch(Ledger, "adopt", trusting)
    patch(Ledger, "_complete", lambda self, folders, empty: next(iter(folders.values())))


def no_intent(patch: Patch) -> None:
    """A drain is decided in memory alone."""
    write = StagingFolder.write_entry

    def silent(self: StagingFolder, spark: Any, epoch: int, name: str, *rest: Any) -> None:
        if not name.startswith("intent"):
            write(self, spark, epoch, name, *rest)

    patch(StagingFolder, "write_entry", silent)
    patch(StagingFolder, "check_alone", lambda self, spark, intent: None)
    no_judge(patch)


def no_judge(patch: Patch) -> None:
    patch(table_truth, "compare", lambda ledger, state: None)


def clean_up_first(patch: Patch) -> None:
    """Pieces are removed before their commit."""
    carry_out = sender.SparkActions.carry_out

    def eager(self: sender.SparkActions, action: do.Action, ledger: Ledger, work: do.Work) -> Any:
        result = carry_out(self, action, ledger, work)
        if isinstance(result, do.Intended):
            after = deepcopy(ledger)
            after.take(result.intent)
            self.folder.clean_up(work.spark, after.next_drain - 1, done_entry(after), after.idle_folders())
        return result

    patch(sender.SparkActions, "carry_out", eager)


def open_intent_committed(patch: Patch) -> None:
    """After a restart an open intent is taken as committed."""
    take_in = protocol.apply

    def trusting(ledger: Ledger, result: Any, work: do.Work, now_ms: int) -> None:
        take_in(ledger, result, work, now_ms)
        if isinstance(result, do.Looked):
            ledger.drain = DrainState.DONE

    patch(sender, "apply", trusting)


def always_redo(patch: Patch) -> None:
    """After a restart an open intent is committed again, under the next number."""
    take_in = protocol.apply

    def doubting(ledger: Ledger, result: Any, work: do.Work, now_ms: int) -> None:
        take_in(ledger, result, work, now_ms)
        if isinstance(result, do.Looked) and ledger.intent is not None and not ledger.is_done:
            ledger.pieces = {piece.key: piece for piece in (*ledger.intent.taken, *ledger.pieces.values())}
            ledger.drain = DrainState.DONE

    patch(sender, "apply", doubting)


def left_forgotten(patch: Patch) -> None:
    """An intent does not carry what it leaves."""
    take = Ledger.take

    def forgetful(self: Ledger, intent: Any) -> None:
        take(self, intent)
        self.pieces = {}

    patch(Ledger, "take", forgetful)


# --- of the log host: its tokens, snapshots, logs and timers ---------------------------------------------------------

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


PLANTED: dict[str, Callable[[Patch], None]] = {
    "a drain takes what Spark has not committed": uncommitted_rows_go,
    "the direct path delivers before Spark commits": direct_path,
    "a step depends on the order of its rows": order_decides,
    "a drain that an earlier run left is not tried again": drain_without_retries,
    "clean-up before the commit": clean_up_first,
    "no read-back": no_read_back,
    "staged folders are forgotten": folders_forgotten,
    "a half-written folder counts": half_counts,
    "an open intent is taken as committed": open_intent_committed,
    "an open intent is taken as not committed": always_redo,
    "an intent forgets what it leaves": left_forgotten,
    "no intent": no_intent,
    "nothing is synchronised": nothing_synchronised,
    "a timer is too late": timer_too_late,
    "any token fits": any_token,
    "an entry of a shard's log is forgotten": entry_forgotten,
    "a micro-batch that waits for room loses its record": record_goes,
    "a note goes on behind rows that replaced it": note_goes_on,
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


@contextmanager
def planted(plant: Callable[[Patch], None]) -> Iterator[None]:
    """The product with a fault; what was worked out without it is forgotten, before and after."""
    CALLS.known.clear()
    with ExitStack() as patches:
        plant(lambda of, name, value: patches.enter_context(patched.object(of, name, value, create=True)) and None)
        yield
    CALLS.known.clear()
    scenario.cache_clear()


def hunt(
    plant: Callable[[Patch], None], most: int = 5000, first: int = 0, shrinks: bool = True
) -> tuple[int, Failure | None]:
    """After how many histories a fault is found, and the history that shows it."""
    with planted(plant):
        played = play(range(first, first + most), lambda played: bool(played.failures), shrinks)
    return played.histories, next(iter(played.failures), None)
