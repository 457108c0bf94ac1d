"""Steps of the sink as data: the actions that `protocol` chooses, and their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from spark_purgatory.spark.sink.staging.ledger import Contents, Failed, Intent, Piece, StagedBatch, TakenBack
from spark_purgatory.spark.sink.table.history import DrainCommit, TableLook

# --- actions --------------------------------------------------------------------------------------


class Look:
    """Compare the log with the table. A run does this first."""


class Renumber(NamedTuple):
    """Give the last intent a number above those of drains that a RESTORE took back: Delta would skip theirs."""

    intent: Intent  # Without its uuid.


class Adopt:
    """Find what was staged before the micro-batch that Spark runs now."""


class Skip:
    """Evaluate the micro-batch and drop its rows: a drain took them before Spark lost its record of the commit."""


class Stage(NamedTuple):
    now_ms: int
    max_file_rows: int


class Count(NamedTuple):
    batches: tuple[StagedBatch, ...]


class Admit:
    """Let the incoming micro-batch count: it fits into buffer_memory."""


class Intend(NamedTuple):
    intent: Intent  # Without its uuid, and without what a look at the table gives.


class Check(NamedTuple):
    """Look at the table once more, before an intent is committed again or by another run."""

    intent: Intent


class Commit(NamedTuple):
    intent: Intent
    looked: TableLook
    to_count: tuple[Piece, ...] = ()  # The rows of these are counted once more before.
    max_file_rows: int = 0  # A file of the table is cut here; 0: nowhere.


class ReadBack(NamedTuple):
    intent: Intent
    looked: TableLook | None  # None if this run has not tried the commit.


class CleanUp:
    """Note that the drain is done, and remove the files that it made idle."""


class Wait(NamedTuple):
    ms: int


class Stop(NamedTuple):
    error: Exception


class Return:
    """End the call: nothing more can be done now."""


OfMicroBatch = Look | Renumber | Adopt | Skip | Stage | Count | Admit
Action = OfMicroBatch | Intend | Check | Commit | ReadBack | CleanUp | Wait | Stop | Return

# --- failpoints: named places before and after each durable step, where a crash could matter ------

STEPS = {Stage: "stage", Intend: "intend", Commit: "commit", ReadBack: "read back", CleanUp: "clean up"}
FAILPOINTS = tuple(f"{when} {step}" for step in (*STEPS.values(), "return") for when in ("before", "after"))
hook: Callable[[str], None] | None = None  # Called with the name of each failpoint reached. Only tests set it.


def reach(name: str) -> None:
    if hook is not None:
        hook(name)


# --- results --------------------------------------------------------------------------------------


class Looked(NamedTuple):
    table_id: str | None
    taken_back: TakenBack | None = None


class Renumbered(NamedTuple):
    """The intent that is durable now; it takes what the last one took and has not brought to the table."""

    intent: Intent


class Adopted(NamedTuple):
    pieces: Sequence[Piece]
    repartitions: Sequence[int] = ()  # Micro-batches that no sink saw.


class Skipped(NamedTuple):
    contents: Contents


class Staged(NamedTuple):
    """The micro-batch is in its folder, or in a note if it has no rows."""

    batch: StagedBatch


class Counted(NamedTuple):
    batches: tuple[StagedBatch, ...]
    pieces: Mapping[int, tuple[Piece, ...]]


class Intended(NamedTuple):
    intent: Intent
    looked: TableLook


class Checked(NamedTuple):
    """The table is the one that the query writes to, and takes the intent's rows."""

    looked: TableLook


class Begun:
    """The commit is running next to the micro-batches; its own result comes later."""


class Committed:
    """The commit returned."""


class Found(NamedTuple):
    table_id: str | None
    commit: DrainCommit


class NotThere(NamedTuple):
    """The table's history does not show the commit. If the table has it all the same, it skips the next try."""

    taken_back: TakenBack | None = None


# Admit, CleanUp and Wait are their own results.
OfDrain = Intended | Checked | Begun | Committed | Failed | Found | NotThere | CleanUp
Result = OfDrain | Looked | Renumbered | Adopted | Skipped | Staged | Counted | Admit | Wait


@dataclass
class Work:
    """One call of the loop: for a micro-batch, for a flush, for what is ripe. With none it ends the running drain."""

    spark: Any
    before: int  # The micro-batch that Spark runs now, or next.
    batch_id: int | None = None  # The micro-batch at hand.
    # The schema of the log once the rows are staged, after the schema that it has now: the same for the same columns.
    schema_after: Callable[[str | None], str | None] = lambda known: known
    flush: bool = False  # Everything staged must go to the table.
    ripe: bool = False  # Files that are full or have lingered must go to the table. There is no micro-batch.
    rows: Any = None  # The rows of the micro-batch at hand, as a DataFrame.
    begun_ms: int = 0
    is_evaluated: bool = False  # The rows were staged or skipped.
