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
from enum import Enum

from spark_purgatory.errors import START_OVER, ForeignWriterError, PurgatoryError, StagingError
from spark_purgatory.spark.sink.staging import layout

SOURCES_AGAIN = f"or {START_OVER}"
NO_BATCH = -1
"""The micro-batch before micro-batch 0, and the drain before drain 0."""


class DrainState(Enum):
    """How far the drain of the last intent is (`protocol`)."""

    DONE = "done"
    """The commit was read back, and that was noted; or there was no drain yet."""
    INTENDED = "intended"
    """The table does not have it: it is to be committed, for the first time or again."""
    UNDERWAY = "underway"
    """The drain is being committed beside the micro-batches."""
    UNSURE = "unsure"
    """The table may have it: a commit raised, or the run that made the intent has ended."""
    WRITTEN = "written"
    """The commit returned, which does not say that the table has it."""
    FOUND = "found"
    """The table has it."""


@dataclass(frozen=True)
class Piece:
    """The rows of a table partition in a staged file."""

    partition: str
    """Hash of the table partition's values, in hex; "" without partitions."""
    path: str
    """Below the staging folder."""
    rows: int
    staged_bytes: int
    """The piece's share of the file's bytes, by rows."""
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
    def key(self) -> tuple[str, str]:
        """Unique among pieces."""
        return self.path, self.partition


def by_partition(pieces: Iterable[Piece]) -> dict[str, list[Piece]]:
    """Pieces of each table partition: a file to be."""
    found: dict[str, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece.partition, []).append(piece)
    return found


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
    id: str = ""
    """Random."""

    def batch_path(self, epoch: int, batch_id: int) -> str:
        """The one folder of a micro-batch in an epoch, below the staging folder: no other run writes there."""
        return f"{layout.epoch_path(epoch)}/{self.batch_name(batch_id)}"

    def batch_name(self, batch_id: int) -> str:
        """Name of a micro-batch's folder, and of its record."""
        return f"batch={batch_id:020d}-{self.number:06d}-{self.id}"


@dataclass(frozen=True)
class Intent:
    """What a drain will commit."""

    number: int
    """The drain's number, and its txnVersion."""
    uuid: str
    """What the commit's userMetadata has: it says whose commit it is."""
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
    """Epochs whose files were not removed when the intent was made."""
    run: int
    """Number of the run that made it."""
    table_version: int | None = None
    """The table's version after the drain before this one; None if that is not known."""
    base_version: int = -1
    """The table's version when the intent was made, -1 if there was none: the drain's own is a later one."""

    @property
    def taken_rows(self) -> int:
        """Rows of all pieces taken."""
        return sum(piece.rows for piece in self.taken)


@dataclass(frozen=True)
class Names:
    """Names of what a ledger belongs to, for errors."""

    checkpoint: str = ""
    folder: str = ""
    table: str = ""
    app_id: str = ""


@dataclass(frozen=True)
class Failed:
    """The table did not take a drain, or could not be looked at before it."""

    said: str
    is_refused: bool = False
    """The table takes no such rows, however often it is tried."""
    is_lasting: bool = False
    """No try of this session can succeed."""


@dataclass
class Ledger:
    """All that counts. ``pieces`` are in the order in which they were staged."""

    pieces: dict[tuple[str, str], Piece] = field(default_factory=dict)
    """What is staged and counted, by key; what the intent takes is not among it."""
    uncounted: dict[int, StagedBatch] = field(default_factory=dict)
    """Micro-batches after all pieces, whose own pieces are not known yet, by number."""
    schema: str | None = None
    """The schema of all rows staged, as JSON; None if none were."""
    last_batch: int = NO_BATCH
    """The last micro-batch that counts."""
    intent: Intent | None = None
    """The last one."""
    drain: DrainState = DrainState.DONE
    """How far the last intent's drain is."""
    epochs: set[int] = field(default_factory=set)
    """Epochs that may hold files."""
    incoming: StagedBatch | None = None
    """A micro-batch that is staged and does not count yet: whether it fits is not decided."""
    incoming_pieces: tuple[Piece, ...] = ()
    """The pieces of ``incoming``, once they were counted."""
    run: Run = field(default_factory=Run)
    """The one that keeps this ledger."""
    empty: list[tuple[int, int]] = field(default_factory=list)
    """First and last of each row of micro-batches without rows, after the last intent."""
    records: Mapping[str, int] = field(default_factory=dict)
    """Rows of each staged folder that an earlier run completed, by the folder's path below the staging folder."""
    table_version: int | None = None
    """The table's version after the last drain that was read back; None if that is not known."""
    table_id: str | None = None
    """Delta's id of the table; None as long as there is none."""
    names: Names = field(default_factory=Names)
    """What errors name."""
    failure: Failed | None = None
    """Why the table did not take the last drain that was tried; None once it took one."""
    fault: PurgatoryError | None = None
    """What the query cannot go on with."""
    before_version: int | None = None
    """The table's version before the commit that returned last."""
    is_compared: bool = False
    """The log was compared with the table, which comes first in a run."""
    is_adopted: bool = False
    """What was staged since the last intent counts; it comes second in a run."""

    @property
    def is_done(self) -> bool:
        """The last intent's commit was read back, and that was noted."""
        return self.drain is DrainState.DONE

    @property
    def next_drain(self) -> int:
        """Number of the next new intent, and the epoch of what is staged now."""
        return 0 if self.intent is None else self.intent.number + 1

    @property
    def staged_bytes(self) -> int:
        """Bytes of all pieces that count and were not read back in the table."""
        taken = () if self.is_done or self.intent is None else self.intent.taken
        return sum(piece.staged_bytes for piece in (*taken, *self.pieces.values()))

    @property
    def has_staged(self) -> bool:
        """Some row that counts was not read back in the table."""
        is_open = not self.is_done and self.intent is not None and bool(self.intent.taken)
        return is_open or bool(self.pieces) or bool(self.uncounted)

    @property
    def awaits_direct(self) -> bool:
        """The last intent's rows were to go direct, and may not have: its micro-batch has to come again."""
        return self.intent is not None and self.intent.direct and not self.is_done

    def add(self, batch_id: int, epoch: int, pieces: Iterable[Piece]) -> None:
        """A micro-batch counts, and so do its pieces."""
        self.pieces.update((piece.key, piece) for piece in pieces)
        self.last_batch = batch_id
        self.epochs.update({self.next_drain, epoch})

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

    def unknown(self, pieces: Iterable[Piece], before: int) -> list[int]:
        """Micro-batches up to ``before`` of which there is neither a piece nor a note."""
        known = {piece.batch_id for piece in pieces}.union(*(range(first, last + 1) for first, last in self.empty))
        return [batch_id for batch_id in range(self.last_batch + 1, before) if batch_id not in known]

    def adopt(self, pieces: Iterable[Piece], before: int, repartitions: Iterable[int] = ()) -> int:
        """Let staged micro-batches count that came after the last intent, up to ``before``, which Spark runs now.

        Of a micro-batch that several runs have staged, the last folder counts that holds all the rows of its record.
        ``repartitions`` are micro-batches that Spark's own ``repartition`` made: they have no rows. Returns the first
        micro-batch of which nothing is known, ``before`` if all are.

        Raises:
            StagingError: A folder holds other rows than its record says, and no other folder of the micro-batch is
                complete.
            ForeignWriterError: Two runs staged a micro-batch at once.
        """
        self.empty = sorted([*self.empty, *((batch_id, batch_id) for batch_id in repartitions)])
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
                f"written. Bring the folder back, {SOURCES_AGAIN}"
            )
        if not complete:
            return []
        last = max(complete, key=lambda folder: _made_in(folders[folder][0]))
        of_last = [folder for folder in complete if _made_in(folders[folder][0]) == _made_in(folders[last][0])]
        if len(of_last) > 1:
            raise ForeignWriterError(
                f"{of_last[0]} and {of_last[1]} of the staging folder were written by two runs of the query at "
                "once. Nothing was committed. Stop one of them, remove its folder, and start again"
            )
        return folders[last]

    def intent_of(
        self, taken: tuple[Piece, ...], batch_id: int | None, schema: str, table_id: str | None, base_version: int,
        *, uuid: str,
    ) -> Intent:  # fmt: skip
        """The next drain's intent, which is not made yet: it brings ``taken``, and leaves the other pieces.

        ``batch_id``: of the micro-batch that counts with it; None if it only brings what counts already.
        """
        keys = {piece.key for piece in taken}
        return Intent(
            number=self.next_drain,
            uuid=uuid,
            table_id=table_id,
            schema=schema,
            last_batch=self.last_batch if batch_id is None else batch_id,
            direct=not taken,
            taken=taken,
            left=tuple(piece for piece in self.pieces.values() if piece.key not in keys),
            epochs=tuple(sorted(self.epochs | {self.next_drain})),
            run=self.run.number,
            table_version=self.table_version,
            base_version=base_version,
        )

    def take(self, intent: Intent) -> None:
        """A drain was decided."""
        self.intent = intent
        self.last_batch = intent.last_batch
        self.pieces = {piece.key: piece for piece in intent.left}
        self.schema = intent.schema
        self.epochs.update(intent.epochs)
        self.empty = []

    def idle_folders(self) -> list[str]:
        """Folders below the staging folder that nothing that counts needs, once the last intent is done."""
        number = self.next_drain - 1
        paths = [layout.log_path(number - 1)] if number > 0 else []
        paths += [layout.epoch_path(epoch) for epoch in sorted(self.idle_epochs())]
        generation = self.idle_generation()
        if generation is not None:
            paths += [f"{kind}/generation={generation}" for kind in ("rows", "log")]
        return paths

    def idle_epochs(self) -> set[int]:
        """Epochs whose files nothing that counts needs, once the last intent is done."""
        return {epoch for epoch in self.epochs if epoch < self.next_drain and epoch not in self._needed_epochs()}

    def idle_generation(self) -> int | None:
        """The generation to be emptied now, because it is used next; None if there is none, or it is needed."""
        if self.next_drain % layout.EPOCHS_A_GENERATION:
            return None
        following = layout.generation(self.next_drain + layout.EPOCHS_A_GENERATION)
        in_use = {layout.generation(epoch) for epoch in self._needed_epochs()}
        return None if following in in_use else following

    def _needed_epochs(self) -> set[int]:
        needed = {piece.epoch for piece in self.pieces.values()} | {self.next_drain}
        if self.incoming is not None:
            needed.add(self.incoming.epoch)
        return needed | {staged.epoch for staged in self.uncounted.values()}


def _made_in(piece: Piece) -> tuple[int, int]:
    return piece.run, piece.epoch


def missing(checkpoint: str, folder: str, first: int, batch_id: int) -> StagingError:
    """What a query staged is lost, from micro-batch ``first`` on."""
    return StagingError(
        f"checkpoint {checkpoint} is at micro-batch {batch_id}, but {folder} has them only up to {first - 1} (-1: "
        "none): the folder was removed, the checkpoint was made by another sink, or Spark's repartition has left out a "
        f"micro-batch that had failed. Nothing was written. Bring the folder back, {SOURCES_AGAIN}"
    )
