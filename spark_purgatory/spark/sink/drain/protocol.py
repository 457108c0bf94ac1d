"""Rows into a table exactly once, by way of a staging folder: the protocol, as decisions without Spark.

Terms. A *query* is a checkpoint: Spark gives it an id when it is made and keeps the id over restarts. A *micro-batch* b
of it is run again after a crash, with the same rows and number. Its rows are *staged* in *pieces* (`ledger`), and
*drain* N brings some pieces to the table in one transaction, marked with the query and with N.
The *staging log* is the folder of entries beside the pieces (`staging_folder`).

`next_action` says what is to be done now, from the ledger, the policy and the time alone; `apply` takes in what came of
it, and nothing else changes the ledger. `sender` is the loop, `spark_actions` does an action on Spark, `table_truth`
compares the ledger with what the table says. A crash between any two actions is a case of the table below.

What counts. Spark runs micro-batch b only after it has committed every one before it, state and offsets. So what was
staged before b is whole and final, and nothing needs to be written to say so. Of b that is not yet so: after a crash
Spark runs b again, from the state before it, and rows, settings, or the user's own functions may differ by then. The
rows of the run that Spark commits are the rows that fit to its state. Therefore no drain takes rows of a micro-batch
that Spark has not committed: drains are decided at the start of b, for all that was staged before it.

Protocol. A micro-batch b, in a run's first call after the settling of what the last run left (D, E, F):

1. Every micro-batch between the last intent's and b must be there, as a folder with rows or in a note of those without;
   if one is not, what the query staged is lost. Stop. If Spark has forgotten that it committed b (entries of its
   ``commits`` are gone) and a drain has taken b: evaluate the DataFrame into ``noop`` (`Skip`), because Spark's state
   must be committed. If its rows are not the rows that were taken, stop.
2. Drains, as many as the policy wants now: 4 to 7.
3. `Stage`: write the rows to a folder of this run's own, ``<epoch>/batch=<b>-<run>``, evaluating the DataFrame once,
   and then a record with their number and checksum. Runs are numbered. Where several runs have staged a micro-batch,
   what the last of them staged counts; a half-written folder does not count, nor does one that an old run, still alive,
   writes later. Without rows: a note says so. With a new schema: everything is drained first, then a note of it comes.
   `Admit`: the micro-batch counts once it fits into buffer_memory. If it may not, files are counted and drained first.
   One that is larger than all of buffer_memory counts once nothing else is staged.

A drain. The files staged since the last one are counted (`Count`), many micro-batches in one job, and no earlier than
the policy could need it (`backlog`). Then:

4. `Intend`: an entry of the log names N, the pieces taken, all that is left, and the last micro-batch: everything
   before it is superseded; and the table's version, after which N's is to come.
5. `Commit`: the rows of the pieces taken are counted and summed up once more; then they go to the table, each row
   compared with its hash, marked with N and with the intent's uuid. A thread does it (`Beside`): b
   and later ones are staged meanwhile; 6 and 7 follow between two actions of one of them. A flush and the end wait.
6. `ReadBack`: find N in the table's history, and the uuid with it; compare the rows committed with the pieces'.
7. `CleanUp`: an entry "done N"; then the entries before intent N, then pieces that nothing names, are removed.

Invariant: a row of a micro-batch before the one that Spark runs is in a piece that the last intent left, or in a folder
of a later micro-batch (of several, the last run's), or in the table; never in two of them once the
last intent was settled. Nothing is removed before the commit that took it was read back.

| the run ended | the log says | the table says | the next run does |
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
| H. and someone has its app id without its mark | intent N | not N, and skips it | stop: SkippedWriteError |
| I. and the checkpoint was deleted | nothing | N | a new query id: all rows of the source again, none skipped |
| J. and staged folders, or the log, were removed | a gap before b | | stop: StagingError |
| D. but its commit arrives later | intent N, not done | N - 1, then N | 5 again, which it skips or refuses; 6, 7 |
| K. but lives on, and stages b beside the next run | | | nothing: one folder counts, whichever run ended first |
| L. but lives on, and both began at once | | | stop: ForeignWriterError |
| M. and a staged file was removed, emptied or damaged | its record | | stop: StagingError |

Step 6 reads the history and does not rely on step 5: a table may *silently* skip what it has, and an answer may be
lost. A table that skips each drain that it ever had is given one again that nobody can know of (`History`). Step 1
never leaves a micro-batch unevaluated: Spark would fail with STATE_STORE_COMMIT_VALIDATION_FAILED.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_purgatory.errors import BufferExhaustedError, BugError, DeliveryTimeoutError, StagingError, StorageError
from spark_purgatory.spark.sink.drain import actions as do
from spark_purgatory.spark.sink.drain.actions import Action, Result, Work
from spark_purgatory.spark.sink.staging.backlog import most_bytes
from spark_purgatory.spark.sink.staging.ledger import DrainState, Failed, Ledger, missing
from spark_purgatory.spark.sink.staging.pieces import Contents, StagedBatch
from spark_purgatory.spark.sink.table.history import NO_VERSION

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


def _admit(ledger: Ledger, staged: StagedBatch, policy: Policy, work: Work, now_ms: int) -> Action:
    """The one bound of buffer_memory: what counts fits into it, but for a micro-batch that is larger than all of it."""
    if most_bytes([*ledger.uncounted.values(), staged]) <= policy.buffer_bytes - ledger.staged_bytes:
        return do.Admit()
    if ledger.uncounted:
        return do.Count(tuple(ledger.uncounted.values()))
    if staged.staged_bytes is None:
        return do.Count((staged,))
    return _send_all(ledger, policy, work, now_ms) if ledger.has_staged else do.Admit()


def _send_all(ledger: Ledger, policy: Policy, work: Work, now_ms: int) -> Action:
    """The next step where everything staged has to go before anything else."""
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
            f"table {ledger.names.table} took nothing for max_block, {policy.max_block_ms:,} ms, with "
            f"{ledger.staged_bytes:,} of {policy.buffer_bytes:,} bytes of buffer_memory staged: {said}. "
            "Staged rows wait; mend the table, raise buffer_memory, or wait longer (max_block)"
        )
    )


def _send(ledger: Ledger, policy: Policy, now_ms: int, everything: bool) -> Action | None:
    """The next step of a new drain; None if there is nothing to drain now, or the last drain is not done."""
    if not ledger.is_done:
        return None
    if ledger.uncounted and (everything or policy.must_count(ledger.uncounted, now_ms)):
        return do.Count(tuple(ledger.uncounted.values()))
    taken = policy.next_pieces(now_ms, everything)
    return do.Intend(taken) if taken else None


def _why_stop(ledger: Ledger, policy: Policy) -> StorageError | None:
    """Why the last failure ends the query; None if the drain is tried again, or none failed."""
    if (failure := ledger.failure) is None:
        return None
    if failure.is_refused or failure.is_lasting:
        what, place = "refused a drain", "table"
        if failure.is_lasting and not failure.is_refused:
            what, place = "cannot be written in this session, however often it is tried", "session"
        return StorageError(
            f"table {ledger.names.table} {what}; its rows stay staged. Mend the {place} and start again. Spark says: "
            f"{failure.said}"
        )
    if policy.is_out_of_time:
        return DeliveryTimeoutError(
            f"table {ledger.names.table} did not take its files for delivery_timeout, {policy.delivery_timeout_ms:,} "
            f"ms: {failure.said}. Their rows stay staged and go out after a restart"
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
        case do.Skipped(contents):
            work.is_evaluated = True
            if work.batch_id != ledger.last_batch or contents != ledger.last_contents:
                ledger.fault = _differs(ledger, work, contents)
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


def _differs(ledger: Ledger, work: Work, contents: Contents) -> StagingError:
    """Spark runs a micro-batch again that a drain has taken, and it is another one now."""
    return StagingError(
        f"checkpoint {ledger.names.checkpoint} runs micro-batch {work.batch_id} again, but drain "
        f"{ledger.next_drain - 1} has brought micro-batches up to {ledger.last_batch} to table {ledger.names.table}, "
        f"and the last of them had other rows: {ledger.last_contents} then, {contents} now. Entries of the "
        "checkpoint's folder 'commits' were lost, and the sources, the settings or the code have changed since. "
        "Nothing was written. Bring the lost entries back, or start once with the sources, settings and code of then"
    )
