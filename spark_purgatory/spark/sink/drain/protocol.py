"""Rows into a table exactly once, by way of a staging folder: docs/protocol.md as decisions without Spark.

`next_action` chooses the next action from the ledger, the policy and the time alone. `apply` takes in the result;
nothing else changes the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_purgatory.errors import BufferExhaustedError, BugError, DeliveryTimeoutError, StagingError, StorageError
from spark_purgatory.spark.sink.drain import actions as do
from spark_purgatory.spark.sink.staging.ledger import DrainState, Failed, Intent, Ledger, Piece, StagedBatch, TakenBack
from spark_purgatory.spark.sink.table.history import NO_VERSION

if TYPE_CHECKING:
    from spark_purgatory.spark.sink.drain.policy_adapter import PolicyAdapter as Policy

LONGEST_WAIT_MS = 1000
PIECES_PER_FILE = 8  # Staged files per ``batch_size``: a batch without room for the next piece is at least 7/8 full.
# The state of a drain after a result. Any other pair is a bug, and changes nothing.
MOVES: Mapping[tuple[DrainState, type[do.Result]], DrainState] = {
    (DrainState.DONE, do.Intended): DrainState.READY,
    (DrainState.DONE, Failed): DrainState.DONE,
    (DrainState.INTENDED, do.Checked): DrainState.READY,
    (DrainState.INTENDED, Failed): DrainState.UNSURE,
    (DrainState.READY, do.Begun): DrainState.UNDERWAY,
    (DrainState.READY, do.Committed): DrainState.WRITTEN,
    (DrainState.READY, Failed): DrainState.UNSURE,
    (DrainState.UNDERWAY, do.Committed): DrainState.WRITTEN,
    (DrainState.UNDERWAY, Failed): DrainState.UNSURE,
    (DrainState.UNSURE, do.Found): DrainState.FOUND,
    (DrainState.UNSURE, do.NotThere): DrainState.INTENDED,
    (DrainState.WRITTEN, do.Found): DrainState.FOUND,
    (DrainState.WRITTEN, do.NotThere): DrainState.INTENDED,
    (DrainState.FOUND, do.CleanUp): DrainState.DONE,
}


# --- the next action -----------------------------------------------------------------------------


def next_action(ledger: Ledger, policy: Policy, work: do.Work, now_ms: int) -> do.Action:
    if not ledger.is_compared:
        return do.Look()
    if (intent := ledger.intent) is not None and ledger.drain in (DrainState.WRITTEN, DrainState.UNSURE):
        return do.ReadBack(intent, ledger.looked)
    if ledger.taken_back is not None and ledger.drain in (DrainState.DONE, DrainState.INTENDED):
        return do.Renumber(_renumbered(ledger, ledger.taken_back))
    if not ledger.is_adopted:
        return do.Adopt()
    if ledger.drain is DrainState.FOUND:
        return do.CleanUp()
    if (error := _why_stop(ledger, policy)) is not None:
        return do.Stop(error)
    if intent is not None and ledger.drain is DrainState.INTENDED and not policy.is_backing_off(ledger, now_ms):
        return do.Check(intent)
    if intent is not None and ledger.looked is not None and ledger.drain is DrainState.READY:
        to_count = tuple(piece for piece in intent.taken if piece.key not in ledger.just_counted)
        return do.Commit(intent, ledger.looked, to_count, policy.cut_rows(intent.taken))
    if ledger.incoming is not None:
        return _admit(ledger, ledger.incoming, policy, work, now_ms)
    if work.is_evaluated:
        return do.Return()  # Spark has not committed the micro-batch: no drain may take it.
    if (work.flush or work.schema_after(ledger.schema) != ledger.schema) and ledger.has_staged:
        return _send_all(ledger, policy, work, now_ms)
    if work.ripe:
        return _send_all(ledger, policy, work, now_ms, everything=False)
    if work.batch_id is None:
        return do.Wait(LONGEST_WAIT_MS) if ledger.drain is DrainState.UNDERWAY else do.Return()
    expected = ledger.last_batch + 1
    if work.batch_id < expected:
        return do.Skip()
    if work.batch_id == expected:
        rows = policy.sizes.rows_for(policy.batch_bytes // PIECES_PER_FILE)
        return _send(ledger, policy, now_ms, everything=False) or do.Stage(now_ms, rows)
    return do.Stop(ledger.missing(expected, work.batch_id))


def _admit(ledger: Ledger, staged: StagedBatch, policy: Policy, work: do.Work, now_ms: int) -> do.Action:
    """Keep what counts within buffer_memory, except for a micro-batch that is larger than all of it."""
    most_bytes = sum(batch.most_bytes for batch in (*ledger.uncounted.values(), staged))
    if most_bytes <= policy.buffer_bytes - ledger.staged_bytes:
        return do.Admit()
    if ledger.uncounted:
        return do.Count(tuple(ledger.uncounted.values()))
    if staged.staged_bytes is None:
        return do.Count((staged,))
    return _send_all(ledger, policy, work, now_ms) if ledger.has_staged else do.Admit()


def _send_all(ledger: Ledger, policy: Policy, work: do.Work, now_ms: int, everything: bool = True) -> do.Action:
    """Return the next action while everything staged, or everything that is ripe, must go to the table first."""
    if (action := _send(ledger, policy, now_ms, everything)) is not None:
        return action
    if not everything and ledger.is_done:
        return do.Return()
    if ledger.drain is DrainState.UNDERWAY:
        return do.Wait(LONGEST_WAIT_MS)
    left_ms = max(work.begun_ms, ledger.progress_ms) + policy.max_block_ms - now_ms
    if left_ms > 0:
        return do.Wait(min(left_ms, policy.backoff_ms, LONGEST_WAIT_MS))
    said = ledger.failure.said if ledger.failure is not None else "no drain was tried"
    return do.Stop(
        BufferExhaustedError(
            f"table {ledger.names.table} took nothing for max_block, {policy.max_block_ms:,} ms: {said}. Its staged "
            f"rows wait, {ledger.staged_bytes:,} of {policy.buffer_bytes:,} bytes of buffer_memory. Repair the table, "
            "or raise max_block, or buffer_memory if it is nearly full"
        )
    )


def _send(ledger: Ledger, policy: Policy, now_ms: int, everything: bool) -> do.Action | None:
    """Return the next action of a new drain; None if nothing should be drained now or the last drain is not done."""
    if not ledger.is_done or policy.is_backing_off(ledger, now_ms):
        return None
    if ledger.uncounted and (everything or policy.must_count(ledger, now_ms)):
        return do.Count(tuple(ledger.uncounted.values()))
    taken = policy.next_pieces(ledger, now_ms, everything)
    return do.Intend(_intent(ledger, taken)) if taken else None


def _intent(ledger: Ledger, taken: tuple[Piece, ...]) -> Intent:
    keys = {piece.key for piece in taken}
    return Intent(
        number=ledger.next_drain,
        schema=ledger.schema,
        last_batch=ledger.last_batch,
        last_contents=ledger.last_contents,
        taken=taken,
        left=tuple(piece for piece in ledger.pieces.values() if piece.key not in keys),
        epochs=tuple(sorted(ledger.epochs | {ledger.next_drain})),
        run=ledger.run.number,
        table_version=ledger.table_version,
    )


def _renumbered(ledger: Ledger, taken_back: TakenBack) -> Intent:
    """Return the last intent with a number above the drains that were taken back; without rows if it is done."""
    number = max(taken_back.number, ledger.next_drain - 1) + 1
    return replace(
        ledger.intent or Intent(number, schema=ledger.schema, run=ledger.run.number),
        number=number,
        table_id=ledger.table_id,
        taken=ledger.taken,
        epochs=tuple(sorted(ledger.epochs | {number})),
        table_version=taken_back.version,
        base_version=taken_back.version,
    )


def _why_stop(ledger: Ledger, policy: Policy) -> StorageError | None:
    """Return the error by which the last failure ends the query; None if the drain can be tried again."""
    if (failure := ledger.failure) is None:
        return None
    if failure.remedy:
        return StorageError(
            f"table {ledger.names.table} cannot take a drain, however often it is tried: {failure.said}. Nothing of "
            f"the drain was written, and its rows stay staged. {failure.remedy}"
        )
    if policy.is_out_of_time(ledger):
        return DeliveryTimeoutError(
            f"table {ledger.names.table} did not take its files for delivery_timeout, {policy.delivery_timeout_ms:,} "
            f"ms: {failure.said}. Their rows stay staged and go out after a restart"
        )
    return None


# --- its result ----------------------------------------------------------------------------------


def apply(ledger: Ledger, result: do.Result, work: do.Work, now_ms: int) -> None:
    """Take in the result of an action. BugError, with nothing changed, if it cannot follow the ledger's state.

    StagingError, ForeignWriterError if files in the staging folder cannot count, or a micro-batch has other rows.
    """
    if isinstance(result, do.OfDrain):
        if (ledger.drain, type(result)) not in MOVES:
            raise BugError(f"a drain that is {ledger.drain.value} cannot be {type(result).__name__}")
        ledger.drain = MOVES[(ledger.drain, type(result))]
    match result:
        case do.Looked(table_id, taken_back):
            ledger.is_compared, ledger.table_id, ledger.taken_back = True, table_id, taken_back
        case do.Renumbered(intent):
            ledger.renumber(intent)
        case do.Adopted(pieces, repartitions):
            ledger.adopt(pieces, work.before, repartitions)
            ledger.is_adopted, ledger.adopted_ms = True, now_ms
        case do.Skipped(contents):
            work.is_evaluated = True
            if work.batch_id != ledger.last_batch or contents != ledger.last_contents:
                raise StagingError(
                    f"checkpoint {ledger.names.checkpoint} runs micro-batch {work.batch_id} again, but drain "
                    f"{ledger.next_drain - 1} has brought micro-batches up to {ledger.last_batch} to table "
                    f"{ledger.names.table}, and the last of them had other rows: {ledger.last_contents} then, "
                    f"{contents} now. Entries of the checkpoint's folder 'commits' were lost, and the sources, the "
                    "settings or the code have changed since. Nothing was written. Bring the lost entries back, or "
                    "start once with the sources, settings and code of then"
                )
        case do.Staged(batch):
            work.is_evaluated = True
            ledger.schema = work.schema_after(ledger.schema)
            ledger.stage(batch)
        case do.Counted(_, pieces_of):
            ledger.count(pieces_of)
        case do.Admit():
            ledger.admit()
        case do.Intended(intent, looked):
            ledger.begin(intent, looked, now_ms)
        case do.Checked(looked):
            ledger.begin_again(looked, now_ms)
        case Failed():
            ledger.fail(result, now_ms)
        case do.NotThere(taken_back):
            ledger.lack(taken_back, now_ms)
        case do.Found(table_id, commit):
            ledger.deliver(table_id, None if commit.version == NO_VERSION else commit.version, now_ms)
        case do.CleanUp():
            ledger.end()
        case do.Begun() | do.Committed() | do.Wait():
            pass
        case _:
            raise BugError(f"{result!r} is not the result of an action")
