"""What is staged, as the log and the staged folders say it: pure bookkeeping, the same after a restart as before.

A *piece* is the rows of one table partition in one staged file of a micro-batch. A micro-batch that has rows is a
folder of files and a *record*, an entry that says how many rows the folder holds; one that has none is in a note. So a
gap shows, and so does a folder that lost a file. An *intent* N says which pieces drain N takes and which it leaves, and
up to which micro-batch that is all there is: nothing before it needs to be read again. *Epoch* e is what is written
after intent e - 1 and up to intent e.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from uuid import uuid4

from spark_purgatory.errors import ForeignWriterError, StagingError
from spark_purgatory.spark.sink.staging.staging_folder import EPOCHS_A_GENERATION, StagingFolder

NO_BATCH = -1
"""The micro-batch before micro-batch 0, and the drain before drain 0."""


@dataclass(frozen=True)
class Piece:
    """The rows of a table partition in a staged file."""

    partition: str
    """Hash of the table partition's values, in hex; "" without partitions."""
    path: str
    """Below the staging folder."""
    rows: int
    staged_bytes: int
    """Its share of the file's, by rows."""
    batch_id: int
    epoch: int
    staged_ms: int
    run: int = 0
    """Number of the run that staged it."""

    @property
    def folder(self) -> str:
        """Below the staging folder."""
        return self.path.rpartition("/")[0]

    @property
    def is_legacy(self) -> bool:
        """Staged by a version that wrote neither row hashes nor records."""
        return self.path.startswith("epoch=")

    @property
    def key(self) -> tuple[str, str]:
        """Unique among pieces."""
        return self.path, self.partition


@dataclass(frozen=True)
class StagedBatch:
    """A micro-batch that this run has staged; what its files are has not been looked at."""

    batch_id: int
    epoch: int
    staged_ms: int
    path: str
    """Below the staging folder."""
    rows: int = 0
    plain_bytes: int = 0
    """Before any encoding."""


@dataclass(frozen=True)
class Run:
    """One life of a query: from a start to an end, however it comes."""

    number: int = 0
    """More than that of every run before it of which something is left; two that start at once have the same."""
    id: str = field(default_factory=lambda: uuid4().hex[:8])

    def batch_path(self, epoch: int, batch_id: int) -> str:
        """The one folder of a micro-batch in an epoch, below the staging folder: no other run writes there."""
        return f"{StagingFolder.epoch_path(epoch)}/{self.batch_name(batch_id)}"

    def batch_name(self, batch_id: int) -> str:
        """Name of a micro-batch's folder, and of its record."""
        return f"batch={batch_id:020d}-{self.number:06d}-{self.id}"


@dataclass(frozen=True)
class Intent:
    """What a drain will commit."""

    number: int
    """Of the drain, and its txnVersion."""
    uuid: str
    """In the commit's userMetadata: whose commit it is."""
    table_id: str | None
    """Delta's id of the table; None if it is to be made."""
    schema: str
    last_batch: int
    """The last micro-batch in ``taken`` or ``left``; with ``direct``, the one that this drain commits."""
    direct: bool
    """The rows of ``last_batch`` go to the table unstaged."""
    taken: tuple[Piece, ...]
    left: tuple[Piece, ...]
    epochs: tuple[int, ...]
    """Those whose files were not removed when the intent was made."""
    run: int
    """Number of the run that made it."""
    table_version: int | None = None
    """Of the table after the drain before it; None if that is not known."""
    base_version: int = -1
    """Of the table when the intent was made, -1 if there was none: the drain's own is a later one."""

    @property
    def taken_rows(self) -> int:
        """Rows of all pieces taken."""
        return sum(piece.rows for piece in self.taken)


@dataclass
class Ledger:
    """All that counts. ``pieces`` are in the order in which they were staged."""

    pieces: dict[tuple[str, str], Piece] = field(default_factory=dict)
    """By key; what the intent takes is not among them."""
    uncounted: dict[int, StagedBatch] = field(default_factory=dict)
    """By micro-batch: those after all pieces, whose own are not known yet."""
    schema: str | None = None
    """Of all rows staged."""
    last_batch: int = NO_BATCH
    """The last micro-batch that counts."""
    intent: Intent | None = None
    """The last one."""
    is_done: bool = True
    """The last intent's commit was read back, and that was noted."""
    epochs: set[int] = field(default_factory=set)
    """Those that may hold files."""
    writing_epoch: int | None = None
    """That of a micro-batch which does not count yet, and must not be removed before that is decided."""
    run: Run = field(default_factory=Run)
    """The one that keeps this ledger."""
    empty: list[tuple[int, int]] = field(default_factory=list)
    """First and last of each row of micro-batches without rows, after the last intent."""
    records: Mapping[str, int] = field(default_factory=dict)
    """Rows of each staged folder that an earlier run completed, by the folder's path below the staging folder."""
    has_records: bool = True
    """False if what is staged was staged by a version that wrote no records."""
    table_version: int | None = None
    """Of the table after the last drain that was read back; None if that is not known."""
    table_id: str | None = None
    """Delta's id of the table that it was; None as long as there is none."""

    @property
    def next_drain(self) -> int:
        """Number of the next new intent, and the epoch of what is staged now."""
        return 0 if self.intent is None else self.intent.number + 1

    @property
    def staged_bytes(self) -> int:
        """Of all pieces that count and were not read back in the table."""
        taken = () if self.is_done or self.intent is None else self.intent.taken
        return sum(piece.staged_bytes for piece in (*taken, *self.pieces.values()))

    @property
    def awaits_direct(self) -> bool:
        """The last intent's rows were to go direct, and may not have: its micro-batch has to come again."""
        return self.intent is not None and self.intent.direct and not self.is_done

    def add(self, batch_id: int, epoch: int, pieces: Iterable[Piece]) -> None:
        """A micro-batch counts, and so do its pieces."""
        self.pieces.update((piece.key, piece) for piece in pieces)
        self.last_batch = batch_id
        self.epochs.update({self.next_drain, epoch})

    def add_uncounted(self, staged: StagedBatch) -> None:
        """A micro-batch counts, whatever its pieces are."""
        self.add(staged.batch_id, staged.epoch, ())
        self.uncounted[staged.batch_id] = staged

    def empty_run(self, batch_id: int) -> tuple[int, int]:
        """The run of micro-batches without rows that ends with this one."""
        if self.empty and self.empty[-1][1] == batch_id - 1:
            return self.empty[-1][0], batch_id
        return batch_id, batch_id

    def add_empty(self, run: tuple[int, int]) -> None:
        """The last micro-batch of a run counts."""
        if self.empty and self.empty[-1][0] == run[0]:
            self.empty.pop()
        self.empty.append(run)
        self.last_batch = run[1]

    def adopt(self, pieces: Iterable[Piece], before: int) -> int:
        """Let staged micro-batches count that came after the last intent, up to ``before``, which Spark runs now.

        Of a micro-batch that several runs have staged, the last folder counts that holds all the rows of its record.
        Returns the first micro-batch of which nothing is known, ``before`` if all are.

        Raises:
            StagingError: A folder holds other rows than its record says, and no other folder of the micro-batch is
                complete.
            ForeignWriterError: Two runs staged a micro-batch at once.
        """
        found: dict[int, dict[str, list[Piece]]] = {}
        last_run = self.intent.run if self.intent else NO_BATCH
        for piece in pieces:
            self.epochs.add(piece.epoch)
            last_run = max(last_run, piece.run)
            if self.last_batch < piece.batch_id < before:
                found.setdefault(piece.batch_id, {}).setdefault(piece.folder, []).append(piece)
        self.run = replace(self.run, number=last_run + 1)
        chosen = {batch_id: self._complete(folders) for batch_id, folders in found.items()}
        whole = {batch_id: staged for batch_id, staged in chosen.items() if staged}
        known = self.last_batch + 1
        for first, last in sorted([*self.empty, *((batch_id, batch_id) for batch_id in whole)]):
            if first <= known:
                known = max(known, last + 1)
        if known < before:
            return known
        for batch_id, staged in sorted(whole.items()):
            self.add(batch_id, staged[0].epoch, staged)
        self.last_batch = max(self.last_batch, before - 1)
        return before

    def _complete(self, folders: Mapping[str, list[Piece]]) -> list[Piece]:
        """The pieces of the folder that counts; none if no folder has a record, and each has to have one."""
        rows = {folder: sum(piece.rows for piece in staged) for folder, staged in folders.items()}
        recorded = [folder for folder in folders if folder in self.records]
        complete = [folder for folder in recorded if rows[folder] == self.records[folder]]
        if recorded and not complete:
            folder = recorded[-1]
            raise StagingError(
                f"{folder} in the staging folder holds {rows[folder]:,} rows in {len(folders[folder])} pieces, and its "
                f"record says {self.records[folder]:,}: a file of it was removed, emptied or damaged. Nothing was "
                "written. Bring the folder back, or start with a new checkpoint, which reads the sources again"
            )
        if not complete and self.has_records:
            return []
        candidates = complete or sorted(folders, key=lambda folder: rows[folder])[-1:]
        if not complete:
            candidates = [folder for folder in folders if rows[folder] == rows[candidates[0]]]
        last = max(candidates, key=lambda folder: (folders[folder][0].run, folders[folder][0].epoch))
        of_last = [f for f in candidates if _made_in(folders[f][0]) == _made_in(folders[last][0])]
        if len(of_last) > 1:
            raise ForeignWriterError(
                f"{of_last[0]} and {of_last[1]} of the staging folder were written by two runs of the query at "
                "once. Nothing was committed. Stop one of them, remove its folder, and start again"
            )
        return folders[last]

    def take(self, intent: Intent) -> None:
        """A drain was decided."""
        self.intent, self.is_done = intent, False
        self.last_batch = intent.last_batch
        self.pieces = {piece.key: piece for piece in intent.left}
        self.schema = intent.schema
        self.epochs.update(intent.epochs)
        self.empty = []

    def idle_epochs(self) -> set[int]:
        """Epochs whose files nothing that counts needs, once the last intent is done."""
        return {epoch for epoch in self.epochs if epoch < self.next_drain and epoch not in self._needed_epochs()}

    def idle_generation(self) -> int | None:
        """The generation to be emptied now, because it is used next; None if there is none, or it is needed."""
        if self.next_drain % EPOCHS_A_GENERATION:
            return None
        following = StagingFolder.generation(self.next_drain + EPOCHS_A_GENERATION)
        in_use = {StagingFolder.generation(epoch) for epoch in self._needed_epochs()}
        return None if following in in_use else following

    def _needed_epochs(self) -> set[int]:
        needed = {piece.epoch for piece in self.pieces.values()} | {self.next_drain}
        if self.writing_epoch is not None:
            needed.add(self.writing_epoch)
        return needed | {staged.epoch for staged in self.uncounted.values()}


def _made_in(piece: Piece) -> tuple[int, int]:
    return piece.run, piece.epoch
