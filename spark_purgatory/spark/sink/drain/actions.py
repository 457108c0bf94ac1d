"""Steps of the sink as data: what is to be done next, and what came of it (`protocol`).

A failpoint, named as the action is, lies before and after each action that writes or reads back: `HAS_FAILPOINTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from spark_purgatory.spark.sink.staging.ledger import Failed
from spark_purgatory.spark.sink.staging.pieces import Contents, Intent, Piece, StagedBatch
from spark_purgatory.spark.sink.table.history import DrainCommit

# --- what is to be done ---------------------------------------------------------------------------


class Look:
    """Compare the log with the table, which comes first in a run."""


class Adopt:
    """Find what was staged before the micro-batch that Spark runs now."""


class Skip:
    """Evaluate the micro-batch and drop its rows: a drain has brought them before Spark forgot that it committed it."""


class Stage(NamedTuple):
    """Write the rows of the micro-batch into the staging folder, and the record of them."""

    now_ms: int
    max_file_rows: int


class Count(NamedTuple):
    """Look into the files of staged micro-batches."""

    batches: tuple[StagedBatch, ...]


class Admit:
    """Let the incoming micro-batch count: it fits into buffer_memory."""


class Intend(NamedTuple):
    """Make an intent durable: these pieces go to the table."""

    taken: tuple[Piece, ...]


class Commit(NamedTuple):
    """Bring what an intent takes to the table."""

    intent: Intent
    max_file_rows: int = 0
    """Where a file of the table is cut; 0: nowhere."""


class ReadBack(NamedTuple):
    """Ask the table whether it has the commit of an intent."""

    intent: Intent


class CleanUp:
    """Note that the drain is done, and remove what it has made idle."""


class Wait(NamedTuple):
    """Do nothing for a time: the table has to be tried again."""

    ms: int


class Stop(NamedTuple):
    """End the query with an error."""

    error: Exception


class Return:
    """Nothing is left to be done now."""


Action = Look | Adopt | Skip | Stage | Count | Admit | Intend | Commit | ReadBack | CleanUp | Wait | Stop | Return
HAS_FAILPOINTS = {Stage: "stage", Intend: "intend", Commit: "commit", ReadBack: "read back", CleanUp: "clean up"}

# --- what came of it ------------------------------------------------------------------------------


class Looked(NamedTuple):
    """The table fits to the log, and has the commit of the last intent, or not."""

    table_id: str | None
    commit: DrainCommit | None


class Adopted(NamedTuple):
    """The contents of the staging folder."""

    pieces: Sequence[Piece]
    repartitions: Sequence[int] = ()
    """Micro-batches that no sink saw."""


class Skipped(NamedTuple):
    """The micro-batch was evaluated, and has these rows."""

    contents: Contents


class Staged(NamedTuple):
    """The micro-batch lies in its folder; without rows there is a note of it."""

    batch: StagedBatch


class Counted(NamedTuple):
    """The pieces of staged micro-batches."""

    pieces: Mapping[int, tuple[Piece, ...]]


class Intended(NamedTuple):
    """The intent is durable."""

    intent: Intent


class Begun:
    """The commit goes on beside the micro-batches, and its own result comes later."""


class Committed(NamedTuple):
    """The commit returned; the table was at ``before_version`` before it."""

    before_version: int


class Found(NamedTuple):
    """The table has the commit."""

    table_id: str | None
    commit: DrainCommit


class NotThere:
    """The table does not have the commit, or does not tell: a write that it has is skipped."""


Done = Admit | CleanUp | Wait
"""Actions of which nothing is to be said but that they were done: each is its own result."""
Result = Looked | Adopted | Skipped | Staged | Counted | Intended | Begun | Committed | Failed | Found | NotThere | Done


@dataclass
class Work:
    """What the loop was called for: a micro-batch, or to bring everything staged to the table, or both; with neither,
    to end the drain that is under way.
    """

    spark: Any
    """The session to do it in."""
    before: int
    """The micro-batch that Spark runs now, or next."""
    batch_id: int | None = None
    """The micro-batch at hand; None if there is none."""
    schema_after: Callable[[str | None], str | None] = lambda known: known
    """The schema to stage its rows with after rows of a known one: that one, if these are the same columns."""
    flush: bool = False
    """Everything staged must go to the table."""
    rows: Any = None
    """The rows of the micro-batch at hand, as a DataFrame."""
    begun_ms: int = 0
    is_evaluated: bool = False
    """Its rows were staged or skipped."""
