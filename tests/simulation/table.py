"""A Delta table in memory, and the product's target on it: transactions, history, neighbours, clean-up, RESTORE.

A row is a number: those of the query are 0 and more, a neighbour's are below 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import AnalysisException, PySparkException

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import TableLostError
from spark_purgatory.spark.sink.table.delta_target import DeltaTarget
from spark_purgatory.spark.sink.table.history import (
    FIRST_LOOK,
    DeltaHistory,
    Mark,
    TableFacts,
    TableLook,
    metadata_of,
    whole_history,
)

Version = dict[str, Any]
"""A row of DESCRIBE HISTORY."""


@dataclass
class Table:
    """What Delta keeps."""

    id: str | None = None
    rows: tuple[int, ...] = ()
    versions: list[Version] = field(default_factory=list)
    """The history, the oldest first."""
    was: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The rows of each version that the history has."""
    drains: dict[str, int] = field(default_factory=dict)
    """Delta's own record: the last txnVersion of each app id."""
    fails: list[str] = field(default_factory=list)
    """What the next commits do: "absent", "arrived", "refused", "lasting", or "" nothing else."""
    last_undone: int = -1
    """The last RESTORE that took rows of the query back: a history that lacks it is none of ours."""

    @property
    def version(self) -> int:
        return self.versions[-1]["version"] if self.versions else -1

    def ours(self) -> Counter[int]:
        return Counter(row for row in self.rows if row >= 0)

    def add(self, operation: str, rows: tuple[int, ...], metadata: str | None = None, **parameters: str) -> None:
        self.id = self.id or "a table"
        output = len(rows) - len(self.rows)
        metrics = {"numOutputRows": str(output), "numFiles": "1", "numOutputBytes": str(100 * output)}
        said = {"operation": operation, "operationParameters": parameters, "operationMetrics": metrics, "at": ""}
        self.versions.append({"version": self.version + 1, "userMetadata": metadata, **said})
        self.rows = self.was[self.version] = rows

    def commit(self, rows: Sequence[int], app_id: str, number: int, metadata: str) -> None:
        """A transaction that is not above the app id's last is skipped, without a word."""
        if number > self.drains.get(app_id, -1):
            self.drains[app_id] = number
            self.add("WRITE", (*self.rows, *rows), metadata)

    def append(self, rows: Sequence[int], app_id: str, number: int, metadata: str) -> None:
        fault = self.fails.pop(0) if self.fails else ""
        if fault in ("", "arrived"):
            self.commit(rows, app_id, number, metadata)
        if fault == "refused":
            raise AnalysisException(message="[DELTA_SCHEMA] the table takes no such rows")
        if fault:
            said = "[DELTA_INVALID_PROTOCOL_VERSION] too new" if fault == "lasting" else "the storage does not answer"
            raise PySparkException(message=said)

    def neighbour(self) -> None:
        self.add("WRITE", (*self.rows, -1 - len(self.rows)))

    def optimize(self) -> None:
        self.add("OPTIMIZE", self.rows)

    def clean_up(self, kept: int) -> None:
        """The history loses its oldest versions; not the last RESTORE that matters."""
        first = min(self.version - kept + 1, self.last_undone if self.last_undone >= 0 else self.version)
        self.versions = [each for each in self.versions if each["version"] >= first]
        self.was = {number: rows for number, rows in self.was.items() if number >= first}

    def restore(self, back: int) -> bool:
        """Go so many versions back; whether rows of the query were taken back."""
        version = max(self.version - back, self.versions[0]["version"])
        before = self.ours()
        self.add("RESTORE", self.was[version], version=f'"{version}"')
        if before == self.ours():
            return False
        self.last_undone = self.version
        return True


class Target(DeltaTarget):
    """The product's target on such a table; what it asks Spark is answered here."""

    def __init__(self, options: SinkOptions, table: Table, reach: Callable[[str], None]) -> None:
        super().__init__(options)
        self.of, self.reach = table, reach

    def facts(self, spark: Any) -> TableFacts | None:
        return None if self.of.id is None else TableFacts(self.of.id, "/table", ())

    def history(self, spark: Any, since: int | None = None, first: int = FIRST_LOOK) -> DeltaHistory:
        return whole_history(lambda limit: self.of.versions[-limit:], None if since is None else since - 1, first)

    def check(self, spark: Any, table_id: str | None, schema: str, since: int | None) -> TableLook:
        facts = self.facts(spark)
        if table_id is not None and (facts is None or facts.id != table_id):
            raise TableLostError("the table is another one")
        return TableLook(facts, self.history(spark, since), schema)

    def append(self, rows: Any, looked: TableLook, mark: Mark, max_file_rows: int, check_alone: object) -> None:
        self.of.append(rows, mark.app_id, mark.number, metadata_of(mark))
