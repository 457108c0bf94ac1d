"""Rows into a table exactly once, by way of a staging folder: the protocol, as decisions without Spark.

Terms. A *query* is a checkpoint: Spark gives it an id and keeps the id over restarts. After a crash Spark runs a
*micro-batch* b again, under the same number. Its rows are *staged* in *pieces* (`ledger`). *Drain* N brings some pieces
to the table in one transaction, which is marked with the query and with N. The *staging log* is the folder of entries
next to the pieces (`staging_folder`).

`next_action` chooses the next action from the ledger, the policy and the time alone. `apply` takes in the result;
nothing else changes the ledger. `sender` is the loop, `spark_actions` does an action on Spark, `table_truth` compares
the ledger with the table. A crash between any two actions is a case of the table below.

Rows that count. Spark runs micro-batch b only after it has committed the state and offsets of every earlier one, so
rows that were staged before b are final without a note. The rows of b are not final yet: after a crash Spark runs b
again from the state before it, and rows, settings, or the user's own functions may differ by then. Only the rows of the
run that Spark commits fit its state. Therefore drains are decided at the start of b, and take rows staged before it.

Protocol for a micro-batch b. The first call of a run first settles what the last run left (D, E, F).

1. Every micro-batch between the last intent's and b must be there, as a folder with rows or in a note of empty ones. If
   one is missing, staged rows are lost: stop. If Spark lost its record that it committed b (entries of its ``commits``
   are gone) and a drain has taken b, evaluate the DataFrame into ``noop`` (`Skip`), because Spark's state must be
   committed. If its rows are not the rows that were taken, stop.
2. Drains, as many as the policy wants now: 4 to 7.
3. `Stage`: write the rows to a folder of this run's own, ``<epoch>/batch=<b>-<run>``, evaluating the DataFrame once,
   and then a record with their number and checksum. A micro-batch without rows gets a note. A new schema gets a note
   once everything is drained. Runs are numbered: if several runs staged a micro-batch, the last run's folder counts. A
   half-written folder does not count, and neither does a folder that an old run, still alive, writes later.
   `Admit`: the micro-batch counts once it fits into buffer_memory. If it may not fit, files are counted and drained
   first. A micro-batch that is larger than all of buffer_memory counts once nothing else is staged.

A drain first counts the files that were staged since the last one (`Count`): many micro-batches in one job, as late as
the policy allows (`backlog`).

4. `Intend`: an entry of the log names N, the pieces taken, all pieces left, the last micro-batch, and the table's
   version, which precedes N's. It supersedes all earlier entries.
5. `Commit`: count and sum the rows of the pieces taken once more, unless that was done right before 4. Then write them
   to the table, each row compared with its hash, marked with N and the intent's uuid. A thread does it (`Beside`) while
   later micro-batches are staged; 6 and 7 follow between two of their actions. A flush and the end wait for the thread.
6. `ReadBack`: find N and its uuid in the table's history, and compare the number of rows committed with the pieces'.
7. `CleanUp`: write "done N". Then remove pieces that nothing names, and the entries before intent N but for the record
   of a micro-batch that waits for room.

Invariant: a row of a micro-batch before b is in a piece that the last intent left, in a folder of a later micro-batch
(the last run's, if there are several), or in the table. It is in exactly one of them once the last intent is settled.
Nothing is removed before the commit that took it was read back.

| the run ended | the log has | the table has | the next run does |
| --- | --- | --- | --- |
| A. in 3, or after it, before Spark committed b | less than b counts | | b again, in a folder of its own |
| B. later, and Spark's last commits were lost | b counts | | b again: step 1 |
| C. before the intent of 4 | no intent N | N - 1 | the policy decides again |
| D. after 4, before the commit of 5 | intent N, not done | N - 1 | 5 with the same pieces |
| E. after 5 | intent N, not done | N | 6, 7 |
| D or E | intent N, not done | its history was cut since the intent | 5 again, which the table skips in E; 7 |
| F. in 7 | done N | N | 7 at the next drain; what was removed is no longer named |
| G. and the table was dropped or replaced | its id, done N at version V | another id | stop: TableLostError |
| G. and the table is an old copy of itself | done N at version V | no version V, or V is not N | stop: TableLostError |
| G. and the table was restored to before drain N | done N at version V | V is not part of it | stop: TableLostError |
| H. and another run commits as this one | intent N | another uuid, or more than N | stop: ForeignWriterError |
| H. and someone used its app id without its mark | intent N | not N, and skips it | stop: SkippedWriteError |
| I. and the checkpoint was deleted | nothing | N | a new query id: all rows of the source again, none skipped |
| J. and staged folders, or the log, were removed | a gap before b | | stop: StagingError |
| D. but its commit arrives later | intent N, not done | N - 1, then N | 5 again, which it skips or refuses; 6, 7 |
| K. but lives on, and stages b like the next run | | | nothing: one folder counts, whichever run ended first |
| L. but lives on, and both began at once | | | stop: ForeignWriterError |
| M. and a staged file was removed, emptied or damaged | its record | | stop: StagingError |

Step 6 reads the history and does not rely on step 5: a table may *silently* skip a drain that it has, and an answer
may be lost. If the history cannot tell, the drain is written again, and the table may skip it (`History`). Step 1
never leaves a micro-batch unevaluated, or Spark would fail with STATE_STORE_COMMIT_VALIDATION_FAILED.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_purgatory.errors import BufferExhaustedError, BugError, DeliveryTimeoutError, StagingError, StorageError
from spark_purgatory.spark.sink.drain import actions as do
from spark_purgatory.spark.sink.staging.backlog import most_bytes
from spark_purgatory.spark.sink.staging.ledger import DrainState, Failed, Ledger, missing
from spark_purgatory.spark.sink.staging.pieces import StagedBatch
from spark_purgatory.spark.sink.table.history import NO_VERSION

if TYPE_CHECKING:
    from spark_purgatory.spark.sink.drain.policy_adapter import PolicyAdapter as Policy

LONGEST_WAIT_MS = 1000
PIECES_PER_FILE = 8  # Staged files per ``batch_size``: a batch without room for the next piece is at least 7/8 full.
# The state of a drain after a result. Any other pair is a bug, and changes nothing.
MOVES: Mapping[tuple[DrainState, type[do.Result]], DrainState] = {
    (DrainState.DONE, do.Intended): DrainState.INTENDED,
    (DrainState.DONE, Failed): DrainState.DONE,
    (DrainState.INTENDED, do.Begun): DrainState.UNDERWAY,
    (DrainState.INTENDED, do.Committed): DrainState.WRITTEN,
    (DrainState.INTENDED, Failed): DrainState.UNSURE,
    (DrainState.UNDERWAY, do.Committed): DrainState.WRITTEN,
    (DrainState.UNDERWAY, Failed): DrainState.UNSURE,
    (DrainState.UNSURE, do.Found): DrainState.FOUND,
    (DrainState.UNSURE, do.NotThere): DrainState.INTENDED,
    (DrainState.WRITTEN, do.Found): DrainState.FOUND,
    (DrainState.FOUND, do.CleanUp): DrainState.DONE,
}
OF_DRAINS = tuple({result for _, result in MOVES})


# --- the next action -----------------------------------------------------------------------------


def next_action(ledger: Ledger, policy: Policy, work: do.Work, now_ms: int) -> do.Action:
    """Return the next action, which depends on the arguments alone."""
    if ledger.fault is not None:
        return do.Stop(ledger.fault)
    if not ledger.is_compared:
        return do.Look()
    if not ledger.is_adopted:
        return do.Adopt()
    if (intent := ledger.intent) is not None and ledger.drain in (DrainState.WRITTEN, DrainState.UNSURE):
        return do.ReadBack(intent)
    if ledger.drain is DrainState.FOUND:
        return do.CleanUp()
    if (error := _why_stop(ledger, policy)) is not None:
        return do.Stop(error)
    if intent is not None and ledger.drain is DrainState.INTENDED and not policy.is_backing_off(now_ms):
        return do.Commit(intent, policy.cut_rows(intent.taken))
    if ledger.incoming is not None:
        return _admit(ledger, ledger.incoming, policy, work, now_ms)
    if work.is_evaluated:
        return do.Return()  # Spark has not committed the micro-batch: no drain may take it.
    if (work.flush or work.schema_after(ledger.schema) != ledger.schema) and ledger.has_staged:
        return _send_all(ledger, policy, work, now_ms)
    if work.batch_id is None:
        return do.Wait(LONGEST_WAIT_MS) if ledger.drain is DrainState.UNDERWAY else do.Return()
    expected = ledger.last_batch + 1
    if work.batch_id > expected:
        return do.Stop(missing(ledger.names.checkpoint, ledger.names.folder, expected, work.batch_id))
    if work.batch_id < expected:
        return do.Skip()
    rows = policy.sizes.rows_for("", policy.batch_bytes // PIECES_PER_FILE)
    return _send(ledger, policy, now_ms, everything=False) or do.Stage(now_ms, rows)


def _admit(ledger: Ledger, staged: StagedBatch, policy: Policy, work: do.Work, now_ms: int) -> do.Action:
    """Keep what counts within buffer_memory, except for a micro-batch that is larger than all of it."""
    if most_bytes([*ledger.uncounted.values(), staged]) <= policy.buffer_bytes - ledger.staged_bytes:
        return do.Admit()
    if ledger.uncounted:
        return do.Count(tuple(ledger.uncounted.values()))
    if staged.staged_bytes is None:
        return do.Count((staged,))
    return _send_all(ledger, policy, work, now_ms) if ledger.has_staged else do.Admit()


def _send_all(ledger: Ledger, policy: Policy, work: do.Work, now_ms: int) -> do.Action:
    """Return the next action while everything staged must go to the table first."""
    if (action := _send(ledger, policy, now_ms, everything=True)) is not None:
        return action
    if ledger.drain is DrainState.UNDERWAY:
        return do.Wait(LONGEST_WAIT_MS)
    left_ms = max(work.begun_ms, policy.progress_ms) + policy.max_block_ms - now_ms
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
    if not ledger.is_done:
        return None
    if ledger.uncounted and (everything or policy.must_count(ledger.uncounted, now_ms)):
        return do.Count(tuple(ledger.uncounted.values()))
    taken = policy.next_pieces(now_ms, everything)
    return do.Intend(taken) if taken else None


def _why_stop(ledger: Ledger, policy: Policy) -> StorageError | None:
    """Return the error by which the last failure ends the query; None if the drain can be tried again."""
    if (failure := ledger.failure) is None:
        return None
    if failure.remedy:
        return StorageError(
            f"table {ledger.names.table} cannot take a drain, however often it is tried: {failure.said}. Nothing of "
            f"the drain was written, and its rows stay staged. {failure.remedy}"
        )
    if policy.is_out_of_time:
        return DeliveryTimeoutError(
            f"table {ledger.names.table} did not take its files for delivery_timeout, {policy.delivery_timeout_ms:,} "
            f"ms: {failure.said}. Their rows stay staged and go out after a restart"
        )
    return None


# --- its result ----------------------------------------------------------------------------------


def apply(ledger: Ledger, result: do.Result, work: do.Work) -> None:
    """Take in the result of an action; nothing else changes the ledger of a run and its work.

    BugError if the result cannot follow the ledger's state; then nothing changes. StagingError, ForeignWriterError if
    the files in the staging folder cannot count.
    """
    if isinstance(result, OF_DRAINS):
        if (ledger.drain, type(result)) not in MOVES:
            raise BugError(f"a drain that is {ledger.drain.value} cannot be {type(result).__name__}")
        ledger.drain = MOVES[(ledger.drain, type(result))]
    match result:
        case do.Looked(table_id, commit):
            ledger.is_compared, ledger.table_id = True, table_id
            if not ledger.is_done:
                apply(ledger, do.NotThere() if commit is None else do.Found(table_id, commit), work)
        case do.Adopted(pieces, repartitions):
            lost = ledger.adopt(pieces, work.before, repartitions)
            ledger.is_adopted = True
            if lost < work.before:
                ledger.fault = missing(ledger.names.checkpoint, ledger.names.folder, lost, work.before)
        case do.Skipped(contents):
            work.is_evaluated = True
            if work.batch_id != ledger.last_batch or contents != ledger.last_contents:
                ledger.fault = StagingError(
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
        case do.Counted(pieces_of):
            ledger.count(pieces_of)
        case do.Admit():
            ledger.admit()
        case do.Intended(intent):
            ledger.take(intent)
            ledger.failure = None
        case do.Committed(before_version):
            ledger.before_version = before_version
        case Failed():
            ledger.failure = result
        case do.Found(table_id, commit):
            ledger.failure, ledger.table_id = None, table_id
            ledger.table_version = None if commit.version == NO_VERSION else commit.version
            taken_rows = commit.rows if ledger.intent is None else ledger.intent.taken_rows
            if commit.rows not in (None, taken_rows):
                ledger.fault = StagingError(
                    f"drain {commit.number} to table {ledger.names.table} committed {commit.rows:,} rows in version "
                    f"{commit.version}, and its staged files held {taken_rows:,}: they were damaged while they were "
                    "read. Nothing was removed, the staged files wait. Compare them with the table before you start "
                    "again"
                )
        case do.CleanUp():
            ledger.epochs -= ledger.idle_epochs()
        case do.Begun() | do.NotThere() | do.Wait():
            pass
        case _:
            raise BugError(f"{result!r} is not the result of an action")
