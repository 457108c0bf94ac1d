"""The judge of a history: conservation, a reader at any step, the oracle, counters, bounds.

What counts is what Spark has committed: for each micro-batch the rows that the committed run read, and those that it
gave. Of these the judge demands:

1. A reader sees, table and staged rows together, each row of the committed micro-batches once, and no other row. It
   may be refused while a drain is open whose version may be among those that the table's history has lost: only the
   query, which commits the drain once more, finds out if the table has its rows.
2. At the end all of them are in the table, each once; or the query is stopped by an error that what was done to it
   explains, and then the table has no row that was not committed, and none twice.
3. They are what the oracle says of the rows that were read, and each operation that was read has one outcome or waits.
4. What the micro-batches counted is what they gave.
5. Files and entries stay few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_purgatory.core.engine.outcomes import ORPHAN_FIELDS, OUTCOME_FIELDS, evidence_fields
from spark_purgatory.core.spec.codes import Status
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.errors import ForeignWriterError, PurgatoryError
from spark_purgatory.spark.host.exchange import outcome_columns
from spark_purgatory.spark.sink.record_accumulator import _looked_at
from tests.simulation.sink import SPARK, Folder
from tests.simulation.storage import Disk
from tests.simulation.table import Target
from tests.simulation.tasks import CALLS, CHAINED_RULE
from tests.support.engine_driver import NAMES, OWN, from_blob, microseconds, multiset, outcome_rows
from tests.support.law_worlds import split_orphans, told
from tests.support.oracle import Evidence, decide
from tests.support.oracle_early import EarlyOracle

if TYPE_CHECKING:
    from tests.simulation.driver import Checkpoint, Evaluation
    from tests.simulation.simulation import Simulation
    from tests.simulation.tasks import Query, Rows

COLUMNS = tuple(name for name in NAMES if name not in ("late", "reason"))
MOST_ENTRIES = 60
MOST_FILES = 60


class Wrong(AssertionError):
    """A row is lost, doubled or false, or a promise is broken in another way."""


class Judge:
    """What is known to be true of a history."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.micro_batches: dict[int, Evaluation] = {}
        """As Spark has committed them, the last commit of each counting."""
        self.meaning: dict[int, dict[str, Any]] = {}
        """Rows by their numbers."""
        self.most_entries = MOST_ENTRIES
        self.is_undone = False
        """A RESTORE took rows of the query out of the table."""

    def committed(self, batch_id: int, evaluation: Evaluation) -> None:
        self.micro_batches[batch_id] = evaluation

    def numbers_of(self, blob: bytes | None, spec: EngineSpec) -> list[int]:
        """A call's outcomes as numbers, which are the same for equal rows."""
        if blob is None:
            return []
        numbers, rows = CALLS.of(("numbers", spec, blob), lambda: _numbered(blob, spec))
        self.meaning.update(zip(numbers, rows, strict=True))
        return numbers

    @property
    def every(self) -> Counter[int]:
        """All rows that Spark has committed, also where it has forgotten that."""
        return self._rows_before(len(self.micro_batches))

    def _rows_before(self, end: int) -> Counter[int]:
        numbers = (each.numbers for batch_id, each in self.micro_batches.items() if batch_id < end)
        return Counter(row for rows in numbers for row in rows)

    def look(self) -> None:
        """A reader of the table, and of the table with what is staged."""
        simulation, table, every = self.simulation, self.simulation.table, self.every
        self._check(table.ours() - every, "the table has rows that are not committed, or has them twice")
        if simulation.is_damaged or self.is_undone:
            return
        self._look_at(simulation.checkpoint, simulation.excused)
        if simulation.old is not None:
            with simulation.instead(simulation.old):
                self._look_at(simulation.old, simulation.excused + Counter({ForeignWriterError.__name__: 1}))

    def _look_at(self, checkpoint: Checkpoint, excused: Counter[str]) -> None:
        simulation, table, every = self.simulation, self.simulation.table, self.every
        target, folder = Target(simulation.sink_options, table, simulation.reach), Folder.of(SPARK, "/checkpoint")
        try:
            _, pieces, version = _looked_at(SPARK, target, "/checkpoint", folder)  # type: ignore[arg-type]
        except PurgatoryError as error:
            if excused[type(error).__name__] or ("was cut after drain" in str(error) and self._is_open_and_cut(folder)):
                return
            raise Wrong(f"a reader was refused, and nothing was done that explains it: {error!r}") from error
        rows = Counter(row for row in table.was.get(version, ()) if row >= 0)
        for piece in pieces:
            rows.update(checkpoint.files[piece.path][0][piece.partition])
        known = self._rows_before(checkpoint.next_batch)
        self._check(known - rows, "a reader of table and staged rows misses rows")
        self._check(rows - every, "a reader of table and staged rows sees rows twice, or too early")

    def _is_open_and_cut(self, folder: Folder) -> bool:
        names = {entry.name: entry.body for entry in folder.read_entries(SPARK)}  # type: ignore[arg-type]
        intents = (body for name, body in names.items() if name.startswith("intent="))
        last = max(intents, key=lambda body: body["number"])
        first_kept: int = self.simulation.table.versions[0]["version"]
        return f"done={last['number']}" not in names and first_kept > last["base_version"] + 1

    def _check(self, wrong: Counter[int], said: str) -> None:
        if wrong:
            first = self.meaning.get(min(wrong), {})
            raise Wrong(f"{said}: {wrong.total()}, such as { ({name: first.get(name) for name in ('row', 'status')}) }")

    def at_the_end(self, stopped: str) -> None:
        """Everything, once the query has come to its end or is stopped for good."""
        table = self.simulation.table
        self._check(table.ours() - self.every, "the table has rows that are not committed, or has them twice")
        query, batches = self.simulation.query, [each for _, each in sorted(self.micro_batches.items())]
        firsts = [each.first or each for each in batches]
        self._check_counters(firsts)
        self._check_oracle(query, self.simulation.scenario.criterion, firsts, is_over=not stopped)
        if query.then is not None:
            self._check_counters(batches)
            self._check_oracle(query.then, {"rule": CHAINED_RULE, "need": 1.0}, batches, is_over=not stopped)
        if stopped:
            return
        self._check(self.every - table.ours(), "rows are lost")
        self._check_bounds()

    def _check_counters(self, batches: Sequence[Evaluation]) -> None:
        for batch_id, each in enumerate(batches):
            statuses = Counter(self.meaning[number]["status"] for number in each.numbers)
            names = [status.name for status in Status if status != Status.ORPHAN]
            counted = {name: sum(result[name.lower()] for result in each.results) for name in names}
            received = sum(result["received"] for result in each.results)
            pending = sum(result["pending_change"] for result in each.results)
            if any(statuses[name] != count for name, count in counted.items()):
                raise Wrong(f"micro-batch {batch_id} counted {counted} and gave {dict(statuses)}")
            if received != len(each.rows.operations) or received - sum(counted.values()) != pending:
                raise Wrong(f"micro-batch {batch_id} counted {received} operations, {pending} more waiting")

    def _check_oracle(
        self, query: Query, criterion: Mapping[str, Any], batches: Sequence[Evaluation], is_over: bool
    ) -> None:
        rows = tuple(each.rows for each in batches)
        key = "oracle", query.spec, query.delay_ms, tuple(each.name for each in rows)
        said = CALLS.of(key, lambda: _told(query, criterion, rows))
        for batch_id, (each, expected) in enumerate(zip(batches, said, strict=True)):
            found = compared([self.meaning[number] for number in each.numbers], query.spec)
            if found != expected:
                missing, others = dict(expected - found), dict(found - expected)
                raise Wrong(f"micro-batch {batch_id}: the oracle says {missing}, and the outcomes are {others}")
        read, given = sum(len(each.operations) for each in rows), sum(_operations(self, each) for each in batches)
        if is_over and read != given:
            raise Wrong(f"{read} operations were read, and {given} have an outcome at the end")

    def _check_bounds(self) -> None:
        checkpoint = self.simulation.checkpoint
        log = checkpoint.log.names if isinstance(checkpoint.log, Disk) else checkpoint.log.objects
        if len(log) > self.most_entries or len(checkpoint.files) > MOST_FILES:
            raise Wrong(f"{len(log)} entries and {len(checkpoint.files)} staged files are left")


def compared(outcomes: list[dict[str, Any]], spec: EngineSpec) -> Counter[Any]:
    """Outcomes of operations by the columns that the oracle knows, ORPHANs, and the events that outcomes carry."""
    found, orphans = split_orphans(outcomes)
    columns = COLUMNS if spec.final else (*COLUMNS, "late")
    carried = told(outcomes) if spec.evidence is not None else Counter[Any]()
    return multiset(found, *columns) + Counter({("ORPHAN", *one): n for one, n in orphans.items()}) + carried


def _operations(judge: Judge, evaluation: Evaluation) -> int:
    return sum(judge.meaning[number]["status"] != "ORPHAN" for number in evaluation.numbers)


def _told(query: Query, criterion: Mapping[str, Any], batches: Sequence[Rows]) -> list[Counter[Any]]:
    spec, said, before = query.spec, [], Counter[Any]()
    clocks_ms = [max(rows.watermark_ms - query.delay_ms, 0) for rows in batches]
    evidence = None
    if spec.evidence is not None:
        evidence = Evidence(("note",), spec.evidence.most, spec.evidence_order == "value")
    types = {type(event["value"]) for rows in batches for event in rows.events}
    early = EarlyOracle(criterion, spec.lookback_us, True, spec.whole_operations, types, evidence)
    for rows, clock_ms in zip(batches, clocks_ms, strict=True) if not spec.final else ():
        said.append(compared(early.step(rows.operations, rows.events, clock_ms), spec))
    for number, clock_ms in enumerate(clocks_ms if spec.final else ()):
        so_far = batches[: number + 1]
        everything = decide(
            [row for each in so_far for row in each.operations],
            [row for each in so_far for row in each.events],
            watermark_us=clock_ms * 1000,
            criterion=criterion,
            lookback_us=spec.lookback_us,
            doubles=True,
            whole_operations=spec.whole_operations,
            orphans=spec.orphans,
            evidence=evidence,
        )
        now = compared(everything, spec)
        said.append(now - before)
        before = now
    return said


def _numbered(blob: bytes, spec: EngineSpec) -> tuple[list[int], list[dict[str, Any]]]:
    orphans, evidence = spec.orphans != "none", evidence_fields(spec)
    schema = pa.schema([*OWN, *OUTCOME_FIELDS, *evidence, *(ORPHAN_FIELDS if orphans else ())])
    rows = []
    for batch in from_blob(blob).to_batches():
        columns = outcome_columns(batch, schema, evidence, orphans)
        rows += outcome_rows(pa.RecordBatch.from_arrays(columns, schema=schema))
    return [_number(row) for row in rows], rows


def _number(row: dict[str, Any]) -> int:
    at = row["resolved_at"]
    names = (*(name for name in NAMES if name != "resolved_at"), "event", "events")
    said = repr([*(row.get(name) for name in names), None if at is None else microseconds(at)])
    return int.from_bytes(blake2b(said.encode(), digest_size=7).digest(), "little")
