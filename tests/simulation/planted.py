"""Faults of the product that are planted, so that it can be seen that a simulation finds them.

A fault is a function that is given ``patch(object, name, value)``. To plant another one, add a function and its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch as patched

import numpy as np

from spark_purgatory.core.engine import deduplication
from spark_purgatory.core.state.shard_head import ShardHead, write_head
from spark_purgatory.spark.host import calls, log_host
from spark_purgatory.spark.host.warm_engines import Request, WarmEngines
from spark_purgatory.spark.sink.drain import actions as do
from spark_purgatory.spark.sink.drain import protocol, sender
from spark_purgatory.spark.sink.drain.policy_adapter import PolicyAdapter
from spark_purgatory.spark.sink.drain.table_truth import TableTruth
from spark_purgatory.spark.sink.staging import staging_folder
from spark_purgatory.spark.sink.staging.ledger import EmptyRun, Ledger, idle_paths
from spark_purgatory.spark.sink.table.history import DrainCommit
from tests.simulation.planted_host import OF_HOST
from tests.simulation.play import Failure, play
from tests.simulation.storage import Names
from tests.simulation.tasks import CALLS
from tests.simulation.world import scenario
from tests.support.crash_child import BUGS

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

    def trusting(self: TableTruth, ledger: Ledger, intent: Any, state: Any) -> Any:
        commit = DrainCommit(state.history.version, ledger.names.app_id, intent.number, intent.uuid)
        return do.Found("a table", commit)

    patch(TableTruth, "read_back", trusting)


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

    def keeping(self: Ledger, pieces: Any, before: int, repartitions: Any = ()) -> int:
        noted = list(self.empty)
        found = adopt(self, pieces, before, repartitions)
        self.empty = sorted([*noted, *(EmptyRun(number, number, self.run.number) for number in repartitions)])
        return found

    patch(Ledger, "adopt", keeping)
    patch(staging_folder, "empty_entry", lambda run: (f"empty={run.first}-{run.last % 2}", run._asdict(), True))


PLANTED: dict[str, Callable[[Patch], None]] = {
    "a drain takes what Spark has not committed": BUGS["a drain takes what Spark has not committed"],
    "the direct path delivers before Spark commits": direct_path,
    "a step depends on the order of its rows": order_decides,
    "a drain that an earlier run left is not tried again": drain_without_retries,
    "clean-up before the commit": BUGS["clean-up before the commit"],
    "no read-back": no_read_back,
    "staged folders are forgotten": BUGS["staged folders are forgotten"],
    "a half-written folder counts": BUGS["a half-written folder counts"],
    "an open intent is taken as committed": BUGS["an open intent is taken as committed"],
    "an open intent is taken as not committed": BUGS["an open intent is taken as not committed"],
    "an intent forgets what it leaves": BUGS["an intent forgets what it leaves"],
    "no intent": BUGS["no intent"],
    "nothing is synchronised": nothing_synchronised,
    "a timer is too late": timer_too_late,
    "any token fits": any_token,
    "an entry of a shard's log is forgotten": entry_forgotten,
    "a micro-batch that waits for room loses its record": record_goes,
    "a note goes on behind rows that replaced it": note_goes_on,
    **OF_HOST,
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
