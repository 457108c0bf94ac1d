"""The product's sink without Spark: all of its code but that which asks Spark, which is answered by a simulation.

`edges` replaces, for as long as histories are played, the few functions in which the sink reaches Spark: jobs over
staged files, the file operations of the staging log, the clock. Everything between them is the product's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from pyspark.errors import AnalysisException
from pyspark.sql import types as T

from spark_purgatory.config import SinkOptions
from spark_purgatory.core.state import shard_head
from spark_purgatory.errors import StagingError
from spark_purgatory.spark.host import log_host
from spark_purgatory.spark.move import import_log_host, tables
from spark_purgatory.spark.sink import record_accumulator
from spark_purgatory.spark.sink.drain import actions as do
from spark_purgatory.spark.sink.drain import policy_adapter, sender
from spark_purgatory.spark.sink.drain.sender import Beside, Sender, SparkActions
from spark_purgatory.spark.sink.staging import staged_files, staging_folder
from spark_purgatory.spark.sink.staging.ledger import Contents, Ledger, Piece
from spark_purgatory.spark.sink.staging.staged_files import StagedFiles
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder
from spark_purgatory.spark.sink.table import table_place
from tests.simulation.moves import columns_of
from tests.simulation.storage import CUT, DiskPath, Names, Store
from tests.simulation.table import Target

if TYPE_CHECKING:
    from tests.simulation.driver import Run
    from tests.simulation.simulation import Simulation

ROW_BYTES = 200
"""Two rows and a half fill a file of the smallest size."""
ROOT = "/checkpoint/staging"
SCHEMAS = {
    "s": T.StructType().add("row", T.LongType()),
    "t": T.StructType().add("row", T.LongType()).add("more", T.StringType()),
}
"""Columns of the query's rows."""
NOW: list[Simulation] = []
"""The simulation that is played now is the last one."""


class Spark:
    """What the sink asks of a session, beside jobs."""

    conf = SimpleNamespace(set=lambda name, value: None)
    streams = SimpleNamespace(active=())


SPARK = Spark()


class Frame:
    """A micro-batch's DataFrame: it is evaluated by a run."""

    sparkSession = SPARK

    def __init__(self, run: Run, batch_id: int, columns: str) -> None:
        self.run, self.batch_id, self.schema = run, batch_id, SCHEMAS[columns or "s"]


def _parts(frame: Frame) -> dict[str, list[int]]:
    parts: dict[str, list[int]] = {}
    for row in frame.run.evaluate(frame.batch_id):
        parts.setdefault("ab"[row % 2], []).append(row)
    return parts


def _contents(parts: Mapping[str, Sequence[int]]) -> Contents:
    return Contents(sum(map(len, parts.values())), sum(map(sum, parts.values())))


def _stage(of: object, frame: Frame, folder: str, max_file_rows: int) -> tuple[Contents, int]:
    simulation, parts = NOW[-1], _parts(frame)
    found = _contents(parts)
    files = simulation.checkpoint.files
    rows = [(name, row) for name in sorted(parts) for row in parts[name]]
    whole = []
    for start in range(0, len(rows), max_file_rows):
        file: dict[str, list[int]] = {}
        for name, row in rows[start : start + max_file_rows]:
            file.setdefault(name, []).append(row)
        whole.append(file)
    for number, file in enumerate(whole):
        simulation.reach("in stage")
        if simulation.fails_to_stage():
            raise StagingError("a micro-batch could not be staged: no space left on device")
        files[f"{folder}/part-{number:05d}-{frame.run.uuid}.parquet"] = file, simulation.wall_ms
    return found, found.rows * ROW_BYTES


def _evaluate(of: object, frame: Frame) -> Contents:
    return _contents(_parts(frame))


def _measured(spark: object, paths: Sequence[str]) -> list[Piece]:
    found = []
    for path in (path.removeprefix(f"{ROOT}/") for path in paths):
        inside = [name for name in NOW[-1].listed_files() if name == path or name.startswith(f"{path}/")]
        if not inside:
            raise AnalysisException(message=f"[PATH_NOT_FOUND] {len(paths)} paths")
        for name in inside:
            parts, staged_ms = NOW[-1].checkpoint.files[name]
            whole = staged_files.file_at(f"{ROOT}/{name}", staged_ms)
            if parts is CUT:
                raise StagingError(f"{name} was cut by a power loss and is read")
            for partition, rows in parts.items():
                measured = {"partition": partition, "rows": len(rows), "staged_bytes": len(rows) * ROW_BYTES}
                found.append(Piece(**{**vars(whole), **measured, "checksum": sum(rows)}))
    return sorted(found, key=lambda piece: (piece.batch_id, piece.path))


def _pieces_below(spark: object, folder: str, ledger: Ledger, before: int) -> list[Piece]:
    files = [staged_files.file_at(f"{ROOT}/{name}") for name in NOW[-1].listed_files()]
    may_count = staged_files.may_count_of(ledger, files, before)
    others = [each for each in files if each.folder not in may_count]
    return [*others, *_measured(spark, [f"{ROOT}/{path}" for path in sorted(may_count)])]


def _read_files(spark: object, folder: str, schema: object, files: Any, partition_by: object) -> list[int]:
    pieces = [piece for file in files for piece in file]
    if missing := {piece.path for piece in pieces} - NOW[-1].checkpoint.files.keys():
        raise StagingError(f"one of {len(pieces)} staged files is missing: {min(missing)}")
    return [row for piece in pieces for row in NOW[-1].checkpoint.files[piece.path][0][piece.partition]]


class Folder(StagingFolder):
    """The product's staging folder: its log on the simulated disk, or in the object store; staged rows beside it."""

    @classmethod
    def of(cls, spark: object, checkpoint: str) -> Folder:
        on_disk = NOW[-1].scenario.storage == "disk"
        return cls(checkpoint, DiskPath(checkpoint) if on_disk else None)  # type: ignore[arg-type]

    def _spark_lines(self, spark: object, others_write: bool) -> list[tuple[str, str]]:
        return _store().listed(f"{self.uri}/log")

    def remove(self, spark: Any, path: str) -> None:
        if path.startswith("rows"):
            files = NOW[-1].checkpoint.files
            for name in sorted(name for name in files if name.startswith(f"{path}/")):
                NOW[-1].reach("before remove")
                files.pop(name, None)
        else:
            super().remove(spark, path)


def _store() -> Store:
    store = NOW[-1].checkpoint.log
    assert isinstance(store, Store)
    return store


class SimulatedSender(Sender):
    """The product's loop, on a simulated table."""

    def __init__(self, simulation: Simulation, options: Mapping[str, Any]) -> None:
        super().__init__(SinkOptions(path="/table", partition_by="p", **options), "/checkpoint")
        self.target = Target(self.options, simulation.table, simulation.reach)
        self.actions = SparkActions(self.options, "/checkpoint", self.target)
        self.beside = Aside(simulation, self)


class Aside(Beside):
    """A commit beside the micro-batches: it ends in the micro-batch after the one that began it, or is waited for."""

    def __init__(self, simulation: Simulation, of: Sender) -> None:
        super().__init__()
        self.simulation, self.of = simulation, of
        self.commit: Callable[[], do.Result] | None = None
        self.batch_id, self.is_waited_for = -1, False

    def begin(self, spark: Any, commit: Callable[[Any], do.Result]) -> bool:
        how = self.simulation.scenario.beside
        if not how:
            return False
        self.batch_id, self.is_waited_for = self.simulation.checkpoint.next_batch, False
        early = commit(spark) if how == "at once" else None
        self.commit = partial(commit, spark) if early is None else lambda: early
        self.simulation.under_way = None if early else self.commit
        return True

    def result(self) -> do.Result | None:
        commit = self.commit
        if commit is None or not (self.is_waited_for or self.simulation.checkpoint.next_batch > self.batch_id):
            return None
        self.commit = self.simulation.under_way = None
        return commit()

    def wait(self, ms: int) -> None:
        if self.commit is None:
            self.simulation.clock_ms += 1000
        self.is_waited_for = True


@contextmanager
def edges() -> Iterator[None]:
    """Let simulations answer what the sink asks of Spark, of files and of clocks."""
    next_batch = SimpleNamespace(of=lambda spark, checkpoint: NOW[-1].checkpoint.next_batch).of
    app_id = SimpleNamespace(of=lambda spark, checkpoint: NOW[-1].checkpoint.app_id).of
    none = SimpleNamespace(of=lambda *given: []).of
    clock = SimpleNamespace(
        time_ns=lambda: NOW[-1].wall_ms * 1_000_000, monotonic_ns=lambda: NOW[-1].clock_ms * 1_000_000
    )
    tokens = SimpleNamespace(token_hex=lambda size: f"{NOW[-1].random.getrandbits(8 * size):0{2 * size}x}")
    place = SimpleNamespace(path="/table", table=None)
    nowhere = lambda *given: nullcontext()  # noqa: E731
    answers: list[tuple[Any, str, Any]] = [
        (shard_head, "LOG_ENTRIES", (2, 4)),
        (do, "hook", lambda name: NOW[-1].reach(name)),
        (policy_adapter, "time", clock),
        *((module, "secrets", tokens) for module in (log_host, import_log_host)),
        (tables, "_ddl", columns_of),
        (sender, "next_batch", next_batch),
        (sender, "moved_to", lambda *given: None),
        *((sender, name, value) for name, value in (("StagingFolder", Folder), ("app_id_of", app_id))),
        *((sender, name, value) for name, value in (("repartitions_in", none), ("settings", nowhere))),
        *((StagedFiles, name, value) for name, value in (("stage", _stage), ("evaluate", _evaluate))),
        *((staged_files, name, value) for name, value in (("measured", _measured), ("read_files", _read_files))),
        *((staged_files, name, value) for name, value in (("pieces_below", _pieces_below),)),
        *((staging_folder, name, value) for name, value in (("os", Names), ("shutil", Names), ("Path", DiskPath))),
        (staging_folder, "settings", nowhere),
        (staging_folder, "write_line", lambda spark, path, line, mode: _store().write(path, line, mode)),
        (staging_folder, "write_nothing", lambda spark, path, mode: _store().remove(path)),
        (table_place, "app_id_of", app_id),
        (table_place, "claimed_by", lambda *given: {}),
        (record_accumulator, "resolved", lambda *given: place),
        (record_accumulator, "next_batch", next_batch),
        (record_accumulator, "repartitions_in", none),
        (record_accumulator, "pieces_below", _pieces_below),
    ]
    with ExitStack() as patches:
        for module, name, value in answers:
            patches.enter_context(patch.object(module, name, value))
        yield
