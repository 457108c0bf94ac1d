"""Steps of the sink as data: what is to be done next, and what came of it (`protocol`).

A failpoint, named as the action is, lies before and after each action that writes or reads back: `HAS_FAILPOINTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class Stage:
    """Write the rows of the micro-batch into the staging folder, and the record of them."""

    now_ms: int
    max_file_rows: int


@dataclass(frozen=True)
class Count:
    """Look into the files of staged micro-batches."""

    batches: tuple[StagedBatch, ...]


class Admit:
    """Let the incoming micro-batch count: it fits into buffer_memory."""


@dataclass(frozen=True)
class Intend:
    """Make an intent durable: these pieces go to the table."""

    taken: tuple[Piece, ...]


@dataclass(frozen=True)
class Commit:
    """Bring what an intent takes to the table."""

    intent: Intent
    max_file_rows: int = 0
    """Where a file of the table is cut; 0: nowhere."""


@dataclass(frozen=True)
class ReadBack:
    """Ask the table whether it has the commit of an intent."""

    intent: Intent


class CleanUp:
    """Note that the drain is done, and remove what it has made idle."""


@dataclass(frozen=True)
class Wait:
    """Do nothing for a time: the table has to be tried again."""

    ms: int


@dataclass(frozen=True)
class Stop:
    """End the query with an error."""

    error: Exception


class Return:
    """Nothing is left to be done now."""


Action = Look | Adopt | Skip | Stage | Count | Admit | Intend | Commit | ReadBack | CleanUp | Wait | Stop | Return
HAS_FAILPOINTS = {Stage: "stage", Intend: "intend", Commit: "commit", ReadBack: "read back", CleanUp: "clean up"}

# --- what came of it ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Looked:
    """The table fits to the log, and has the commit of the last intent, or not."""

    table_id: str | None
    commit: DrainCommit | None


@dataclass(frozen=True)
class Adopted:
    """What lies in the staging folder."""

    pieces: Sequence[Piece]
    repartitions: Sequence[int] = ()
    """Micro-batches that no sink saw."""


@dataclass(frozen=True)
class Skipped:
    """The micro-batch was evaluated, and has these rows."""

    contents: Contents


@dataclass(frozen=True)
class Staged:
    """The micro-batch lies in its folder; without rows there is a note of it."""

    batch: StagedBatch


@dataclass(frozen=True)
class Counted:
    """The pieces of staged micro-batches."""

    pieces: Mapping[int, tuple[Piece, ...]]


@dataclass(frozen=True)
class Intended:
    """The intent is durable."""

    intent: Intent


class Begun:
    """The commit goes on beside the micro-batches, and its own result comes later."""


@dataclass(frozen=True)
class Committed:
    """The commit returned; the table was at ``before_version`` before it."""

    before_version: int


@dataclass(frozen=True)
class Found:
    """The table has the commit."""

    table_id: str | None
    commit: DrainCommit


class NotThere:
    """The table does not have the commit, or does not tell: a write that it has is skipped."""


class CleanedUp:
    """The drain is done, and that was noted."""


class Admitted:
    """The incoming micro-batch counts."""


class Waited:
    """Time has passed."""


Result = (
    Looked | Adopted | Skipped | Staged | Counted | Admitted | Intended | Begun | Committed | Failed | Found | NotThere
    | CleanedUp | Waited
)  # fmt: skip


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
    schema: str = ""
    """The schema of its rows."""
    continued: Callable[[str | None], str] | None = None
    """The schema to stage its rows with after rows of a known one: that one, if these are the same columns."""
    flush: bool = False
    """Whether to bring everything staged to the table."""
    rows: Any = None
    """The rows of the micro-batch at hand, as a DataFrame."""
    begun_ms: int = 0
    is_evaluated: bool = False
    """Its rows were staged or skipped."""

    def schema_after(self, known: str | None) -> str:
        """What its rows are staged with. A drain moves the known one forward to a version of the table."""
        return self.schema if self.continued is None else self.continued(known)

    def brings_schema_other_than(self, known: str | None) -> bool:
        """Whether the micro-batch at hand has other columns, so that what was staged has to go first."""
        return self.batch_id is not None and self.schema_after(known) != known
