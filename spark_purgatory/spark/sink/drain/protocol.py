"""Rows into a Delta table exactly once, by way of a staging folder: the protocol, as decisions without Spark.

Terms. A *query* is a checkpoint: Spark gives it an id when it is made and keeps the id over restarts. A *micro-batch* b
of it is run again after a crash, with the same rows and number. Its rows are *staged* in *pieces* (`ledger`), and
*drain* N brings some pieces to the table in one Delta transaction: ``txnAppId`` the query and table, ``txnVersion`` N.
The *staging log* is the folder of entries beside the pieces (`staging_folder`).

`next_action` says what is to be done now, from the ledger, the policy and the time alone; `apply` takes in what came of
it, and nothing else changes the ledger. `sender` is the loop, `spark_actions` does an action on Spark, `table_truth`
compares the ledger with what the table says. A crash between any two actions is a case of the table below.

What counts. Spark runs micro-batch b only once every one before it was committed in the checkpoint, that is, once the
sink had returned from it. So the checkpoint itself says that what was staged before b is whole, and nothing needs to be
written to say so; of b it says nothing. A drain in b may take b's own rows: from then on the intent says that b counts.

Protocol. A micro-batch b, in a run's first call after the settling of what the last run left (D, E, F):

1. b <= last batch of the last intent: evaluate the DataFrame into ``noop`` (`Skip`), for Spark's state must be
   committed, and return. Else every micro-batch between that one and b must be there, as a folder with rows or in a
   note of those without; if one is not, what the query staged is lost. Stop.
2. `Stage`: write the rows to a folder of this run's own, ``<epoch>/batch=<b>-<run>``, evaluating the DataFrame once,
   and then a record of how many they are. Runs are numbered. Where several runs have staged a micro-batch, the folder
   of the last run counts that has all rows of its record; a half-written folder does not count, nor does one that an
   old run, still alive, writes later. Without rows: a note says so. With a new schema: a note of it comes first.
   `Admit`: the micro-batch counts once it fits into buffer_memory. If it may not, files are counted and drained first.

A drain, whenever the policy says so; several in one micro-batch, or none. The files staged since the last one are
counted (`Count`), many micro-batches in one job, and no earlier than the policy could need it (`backlog`). Then:

3. `Intend`: an entry of the log names N, the pieces taken, all that is left, and b: everything before it is superseded;
   and the table's version, after which N's is to come.
4. `Commit`: the rows of the pieces taken are counted once more; then they go to the table, each row compared with its
   hash, marked with N and, in userMetadata, with the intent's uuid. A thread does it (`beside`): b returns, and others
   are staged meanwhile; 5 and 6 follow between two actions of a later one. A flush and the end wait for it.
5. `ReadBack`: find N in the table's history, and the uuid with it; compare the rows committed with the pieces'.
6. `CleanUp`: an entry "done N"; then the entries before intent N, then pieces that nothing names, are removed.

A micro-batch that will fill files by itself goes direct: 3 with b in the place of pieces, 4 with its rows, 5, 6.

Invariant: a row of a micro-batch before the one that Spark runs is in a piece that the last intent left, or in a folder
of a later micro-batch (of several, the last run's), or in the table; never in two of them once the
last intent was settled. Nothing is removed before the commit that took it was read back.

| the run ended | the log says | the table says | the next run does |
| --- | --- | --- | --- |
| A. in 2, or after it, before an intent with b | less than b counts | | b again, in a folder of its own |
| B. after 3, b counting, before Spark noted b | b counts | | b again: step 1 |
| C. before the intent of 3 | no intent N | N - 1 | the policy decides anew |
| D. after 3, before the commit of 4 | intent N, not done | N - 1 | 4 with the same pieces; direct: when b comes again |
| E. after 4 | intent N, not done | N | 5, 6 |
| D or E | intent N, not done | its history was cut since the intent | 4 again, which Delta skips in E; 6 |
| F. in 6 | done N | N | 6 at the next drain; what was removed is no longer named |
| G. and the table was dropped or replaced | its id, done N at version V | another id | stop: TableLostError |
| G. and the table is an old copy of itself | done N at version V | less than V, or V is not N | stop: TableLostError |
| G. and the table was restored to before drain N | done N at version V | a RESTORE after it | stop: TableLostError |
| H. and another run commits as this one | intent N | another uuid, or more than N | stop: ForeignWriterError |
| H. and someone has its app id without its mark | intent N | not N, and skips it | stop: SkippedWriteError |
| I. and the checkpoint was deleted | nothing | N | a new query id: all rows of the source again, none skipped |
| J. and staged folders, or the log, were removed | a gap before b | | stop: StagingError |
| D. but its commit arrives later | intent N, not done | N - 1, then N | 4 again, which Delta skips or refuses; 5, 6 |
| K. but lives on, and stages b beside the next run | | | nothing: one folder counts, whichever run ended first |
| L. but lives on, and both began at once | | | stop: ForeignWriterError |
| M. and a staged file was removed, emptied or damaged | its record | | stop: StagingError |

Step 5 reads the history and does not rely on step 4, because Delta *silently* skips a write whose txnVersion is not
above the last. So a commit that nobody can know of is repeated (`history`). Step 1, and a direct commit that was
skipped, never leave a micro-batch unevaluated: Spark would fail with STATE_STORE_COMMIT_VALIDATION_FAILED.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_purgatory.errors import (
    BufferExhaustedError,
    BugError,
    DeliveryTimeoutError,
    PurgatoryError,
    StagingError,
    StorageError,
)
from spark_purgatory.spark.sink.drain import actions as do
from spark_purgatory.spark.sink.drain.actions import Action, Result, Work
from spark_purgatory.spark.sink.staging.backlog import most_bytes
from spark_purgatory.spark.sink.staging.ledger import DrainState, Failed, Ledger, StagedBatch, missing
from spark_purgatory.spark.sink.table.history import NO_VERSION, DrainCommit

if TYPE_CHECKING:
    from spark_purgatory.spark.sink.drain.policy_adapter import PolicyAdapter as Policy

LONGEST_WAIT_MS = 1000
PIECES_PER_FILE = 8
"""A staged file is at most this part of ``batch_size``: a batch that has no room for the next is at least 7/8 full."""
MOVES: Mapping[tuple[DrainState, type[Result]], DrainState] = {
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
"""How far a drain is after a result; a pair that is not here is a bug, and changes nothing."""
OF_DRAINS = tuple({result for _, result in MOVES})


# --- what is to be done ---------------------------------------------------------------------------


def next_action(ledger: Ledger, policy: Policy, work: Work, now_ms: int) -> Action:
    """The one next step. The same ledger, policy, work and time give the same step."""
    if ledger.fault is not None:
        return do.Stop(ledger.fault)
    if not ledger.is_compared:
        return do.Look()
    if not ledger.is_adopted:
        return do.Adopt()
    intent = ledger.intent
    if intent is not None and ledger.drain in (DrainState.WRITTEN, DrainState.UNSURE):
        return do.ReadBack(intent)
    if ledger.drain is DrainState.FOUND:
        return do.CleanUp()
    if (error := _why_stop(ledger, policy)) is not None:
        return do.Stop(error)
    is_intended = ledger.drain is DrainState.INTENDED and intent is not None and not intent.direct
    if is_intended and intent is not None and not policy.is_backing_off(now_ms):
        return do.Commit(intent, policy.cut_rows(intent.taken))
    if ledger.incoming is not None:
        return _admit(ledger, ledger.incoming, policy, work, now_ms)
    if work.batch_id is not None and not work.is_evaluated:
        return _take(ledger, work.batch_id, policy, work, now_ms)
    if work.batch_id is None and not work.flush:
        return do.Wait(LONGEST_WAIT_MS) if ledger.drain is DrainState.UNDERWAY else do.Return()
    if ledger.awaits_direct:
        return do.Return()
    if work.flush and ledger.has_staged:
        return _send_all(ledger, policy, work, now_ms)
    return _send(ledger, policy, now_ms, everything=False) or do.Return()


def _take(ledger: Ledger, batch_id: int, policy: Policy, work: Work, now_ms: int) -> Action:
    """Step 1 of a micro-batch, and how it goes on."""
    expected = ledger.last_batch + (0 if ledger.awaits_direct else 1)
    if batch_id > expected:
        return do.Stop(missing(ledger.names.checkpoint, ledger.names.folder, expected, batch_id))
    if batch_id < expected:
        return do.Skip()
    if ledger.awaits_direct and ledger.intent is not None:
        return do.Commit(ledger.intent, policy.rows_a_file())
    if (policy.fills_files or work.schema != ledger.schema) and ledger.has_staged:
        return _send_all(ledger, policy, work, now_ms)
    if policy.fills_files:
        return do.Intend(batch_id=batch_id)
    return do.Stage(now_ms, max(1, policy.rows_a_file() // PIECES_PER_FILE))


def _admit(ledger: Ledger, staged: StagedBatch, policy: Policy, work: Work, now_ms: int) -> Action:
    """The one bound of buffer_memory: what counts fits into it, but for a micro-batch that is larger than all of it."""
    free_bytes = policy.buffer_bytes - ledger.staged_bytes
    if most_bytes([*ledger.uncounted.values(), staged]) <= free_bytes:
        return do.Admit()
    if ledger.uncounted:
        return do.Count(tuple(ledger.uncounted.values()))
    if not ledger.incoming_pieces:
        return do.Count((staged,))
    if sum(piece.staged_bytes for piece in ledger.incoming_pieces) <= free_bytes:
        return do.Admit()
    if ledger.has_staged:
        return _send_all(ledger, policy, work, now_ms)
    return do.Intend(taken=ledger.incoming_pieces, batch_id=staged.batch_id)


def _send_all(ledger: Ledger, policy: Policy, work: Work, now_ms: int) -> Action:
    """The next step where everything staged has to go before anything else."""
    action = _send(ledger, policy, now_ms, everything=True)
    if action is not None:
        return action
    if ledger.drain is DrainState.UNDERWAY:
        return do.Wait(LONGEST_WAIT_MS)
    left_ms = max(work.begun_ms, policy.progress_ms) + policy.max_block_ms - now_ms
    if left_ms > 0:
        return do.Wait(min(left_ms, policy.backoff_ms, LONGEST_WAIT_MS))
    return do.Stop(
        BufferExhaustedError(
            f"table {ledger.names.table} took nothing for max_block, {policy.max_block_ms:,} ms, with "
            f"{ledger.staged_bytes:,} of {policy.buffer_bytes:,} bytes of buffer_memory staged: {_said(ledger)}. "
            "Staged rows wait; mend the table, raise buffer_memory, or wait longer (max_block)"
        )
    )


def _send(ledger: Ledger, policy: Policy, now_ms: int, everything: bool) -> Action | None:
    """The next step of a new drain; None if there is nothing to drain now, or the last drain is not done."""
    if not ledger.is_done:
        return None
    if ledger.uncounted and (everything or policy.must_count(ledger.uncounted, now_ms)):
        return do.Count(tuple(ledger.uncounted.values()))
    partitions = policy.ripe(now_ms, everything)
    return do.Intend(partitions=partitions) if partitions else None


def _why_stop(ledger: Ledger, policy: Policy) -> PurgatoryError | None:
    """Why the last failure ends the query; None if the drain is tried again, or none failed."""
    failure, table = ledger.failure, ledger.names.table
    if failure is None:
        return None
    if failure.is_refused:
        return StorageError(
            f"table {table} refused a drain; its rows stay staged. Mend the table and start again. Spark says: "
            f"{failure.said}"
        )
    if failure.is_lasting:
        return StorageError(
            f"table {table} cannot be written in this session, however often it is tried; its rows stay staged. Mend "
            f"the session and start again. Spark says: {failure.said}"
        )
    if not policy.in_drain:  # The drain is not of the policy's files, and it counts no tries of others.
        return StorageError(
            f"table {table} did not take drain {ledger.next_drain - 1}: {failure.said}. Nothing was lost. Mend the "
            "table and start again"
        )
    if policy.is_out_of_time:
        return DeliveryTimeoutError(
            f"table {table} did not take its files for delivery_timeout, {policy.delivery_timeout_ms:,} ms: "
            f"{failure.said}. Their rows stay staged and go out after a restart"
        )
    return None


# --- what came of it ------------------------------------------------------------------------------


def apply(ledger: Ledger, result: Result, work: Work) -> None:
    """Take in the result of an action: the only place where the ledger of a run, and what is left to do, change.

    BugError if the result cannot follow on the ledger's state; then nothing changes. StagingError,
    ForeignWriterError: what lies in the staging folder cannot count.
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
        case do.Skip():
            work.is_evaluated = True
        case do.Staged(batch):
            work.is_evaluated = True
            ledger.schema = work.schema
            if batch.rows:
                ledger.incoming = batch
                ledger.epochs.add(batch.epoch)
            else:
                ledger.add_empty(ledger.empty_run(batch.batch_id))
        case do.Counted(pieces_of):
            pieces = [piece for found in pieces_of.values() for piece in found]
            if ledger.incoming is not None and ledger.incoming.batch_id in pieces_of:
                ledger.incoming_pieces = tuple(pieces)
            else:
                ledger.pieces.update((piece.key, piece) for piece in pieces)
                ledger.uncounted = {}
        case do.Admit() if ledger.incoming is not None:
            ledger.add(ledger.incoming.batch_id, ledger.incoming.epoch, ())
            ledger.uncounted[ledger.incoming.batch_id] = ledger.incoming
            ledger.incoming, ledger.incoming_pieces = None, ()
        case do.Intended(intent):
            ledger.take(intent)
            ledger.failure = None
            if ledger.incoming is not None and ledger.incoming.batch_id == intent.last_batch:
                ledger.incoming, ledger.incoming_pieces = None, ()
        case do.Committed(before_version):
            ledger.before_version = before_version
            work.is_evaluated = work.is_evaluated or ledger.awaits_direct
        case Failed():
            ledger.failure = result
        case do.Found(table_id, commit):
            _found(ledger, table_id, commit)
        case do.CleanUp():
            ledger.epochs -= ledger.idle_epochs()


def _found(ledger: Ledger, table_id: str | None, commit: DrainCommit) -> None:
    """The table has the commit of the last intent."""
    intent, names = ledger.intent, ledger.names
    if intent is not None and intent.taken and commit.rows not in (None, intent.taken_rows):
        ledger.fault = StagingError(
            f"drain {intent.number} to table {names.table} committed {commit.rows:,} rows in version {commit.version}, "
            f"and its staged files held {intent.taken_rows:,}: they were damaged while they were read. Nothing was "
            "removed, the staged files wait. Compare them with the table before you start again"
        )
    ledger.failure, ledger.table_id = None, table_id
    ledger.table_version = None if commit.version == NO_VERSION else commit.version


def _said(ledger: Ledger) -> str:
    return ledger.failure.said if ledger.failure is not None else "no drain was tried"
