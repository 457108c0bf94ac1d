"""Operations by row: their times, needs and payload. The purgatory numbers the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays import numbers
from spark_purgatory.core.arrays.numbers import Floats, Numbers
from spark_purgatory.core.arrays.sorted_runs import EMPTY, Bools, GrowableArray, Int64s
from spark_purgatory.core.arrays.times import saturating_add
from spark_purgatory.core.arrays.value_column import ValueColumn, struct_array
from spark_purgatory.core.kafka.purgatory import Watchers
from spark_purgatory.core.spec.arrivals import OperationArrivals
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.errors import StateMismatchError

TIMES = ("created_us", "deadline_us")  # roles whose payload column the engine has as numbers


class Payload:
    """The operations' own columns as structs, by row, without those that the engine has already.

    If the created time, the deadline or the watch key is a payload column, only the engine's copy is kept, and it is
    put back when rows leave. The same holds for the id as long as it equals the key in every row.
    """

    def __init__(self, spec: EngineSpec, columns: Mapping[str, GrowableArray[np.int64]], watchers: Watchers) -> None:
        roles = dict(spec.roles)
        self._columns = columns  # the engine's own columns, by name, with `TIMES` of every row
        self._watchers = watchers  # their keys are the watch keys of every row, if a payload column has them
        self._time_at = {roles[role]: role for role in TIMES if role in roles}
        self._id_at, self._key_at = roles.get("id"), roles.get("keys")
        self.kind: pa.StructType | None = None  # the structs' type; None while there is no row
        self._own: dict[int, ValueColumn] = {}  # the columns that the engine does not have, by place
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def ids(self) -> ValueColumn:
        column = None if self._id_at is None or self.kind is None else self._column(self._id_at)
        return ValueColumn() if column is None else column

    def append(self, payload: pa.StructArray) -> None:
        """Add rows, (n,). The engine must have at least the rows before them."""
        columns = payload.flatten()
        if self.kind is None:
            self.kind = payload.type
            in_engine = {*self._time_at, self._key_at, None if self._key_at is None else self._id_at}
            self._own = {at: ValueColumn() for at in range(len(columns)) if at not in in_engine}
        if self._id_at is not None and self._id_differs(columns):
            self._own[self._id_at] = ValueColumn(self._watchers.keys.take(np.arange(self._rows)))
        for at, column in self._own.items():
            column.append(columns[at])
        self._rows += len(payload)

    def take(self, rows: Int64s | None = None) -> pa.StructArray:
        """Return rows, (n,), or all."""
        assert self.kind is not None, "bug: rows of an empty payload"
        made: dict[int, pa.Array] = {}
        parts = []
        for at, field in enumerate(self.kind):
            column = self._column(at)
            if column is None:
                times_us = self._columns[self._time_at[at]].values
                parts.append(pa.array(times_us if rows is None else times_us[rows]).view(field.type))
                continue
            if id(column) not in made:
                made[id(column)] = column.values if rows is None else column.take(rows)
            parts.append(made[id(column)])
        return struct_array(parts, list(self.kind), self._rows if rows is None else len(rows))

    def keep(self, rows: Bools) -> None:
        """Keep only flagged rows. The engine does the same afterwards."""
        self._rows = int(np.count_nonzero(rows))
        if not self._rows:
            self.kind, self._own = None, {}
        for column in self._own.values():
            column.keep(rows)

    def _id_differs(self, columns: list[pa.Array]) -> bool:
        """Return True if ids that equalled the keys until now no longer do."""
        if self._id_at is None or self._key_at is None or self._id_at in {self._key_at, *self._own}:
            return False
        return not columns[self._id_at].equals(columns[self._key_at])

    def _column(self, at: int) -> ValueColumn | None:
        """Return the column at a place; None for a time."""
        if at in self._time_at:
            return None
        own = self._own.get(at)
        return self._watchers.keys if own is None else own


def rule_numbers(spec: EngineSpec) -> list[str]:
    asked = {"need": spec.by_row, "level_need": spec.by_row, "sum_need": spec.by_row and spec.scale is not None}
    return [name for name, is_asked in asked.items() if is_asked]


def extra_columns(spec: EngineSpec) -> list[str]:
    asked = {"rule": spec.by_row, "id_hash": spec.operation_ids, "id_slot": spec.control_events}
    return [name for name, is_asked in asked.items() if is_asked]


def _column(name: str, held: str = "columns") -> Any:
    """Return a property that reads a column of ``columns`` or ``numbers``."""
    return property(lambda table: getattr(table, held)[name].values)


class OperationTable:
    """Columns of the operations that have a row: those that wait, and ended ones until they are compacted away."""

    created_us: Int64s = _column("created_us")  # (rows,)
    deadline_us: Int64s = _column("deadline_us")  # (rows,)
    id_hash: Int64s = _column("id_hash")  # (rows,) if events may name an operation
    id_slot: Int64s = _column("id_slot")  # (rows,) the row's slot in `SeenIds`, -1 if unknown; with control events
    rule: Int64s = _column("rule")  # (rows,) codes of `Rule`; if operations bring their rules, like the next two
    need: Floats = _column("need", "numbers")  # (rows,)
    level_need: Numbers = _column("level_need", "numbers")  # (entries,) in the query's number type

    def __init__(self, spec: EngineSpec, watchers: Watchers) -> None:
        self.spec = spec
        self.columns = {name: GrowableArray(EMPTY) for name in [*TIMES, *extra_columns(spec)]}
        self.numbers: dict[str, GrowableArray[Any]] = {
            name: GrowableArray(np.empty(0, np.float64 if spec.scale is None or name == "need" else np.int64))
            for name in rule_numbers(spec)
        }
        self.late_column = GrowableArray(np.empty(0, bool))
        self.payload = Payload(spec, self.columns, watchers)
        # Ascending rows that count events from another time than `usual_from_us`, and that time.
        self.late_rows, self.late_from_us = EMPTY, EMPTY
        self.own_ids = ValueColumn()  # ids by row, if the spec needs them and no payload column has them

    @property
    def ids(self) -> ValueColumn:
        """Ids by row, if the spec looks rows up by their id."""
        return self.own_ids if self.spec.role("id") is None else self.payload.ids

    def from_us_of(self, rows: Int64s) -> Int64s:
        from_us = self.usual_from_us(rows)
        if len(self.late_rows):
            at = np.minimum(self.late_rows.searchsorted(rows), len(self.late_rows) - 1)
            found = self.late_rows[at] == rows
            from_us[found] = self.late_from_us[at[found]]
        return from_us

    def usual_from_us(self, rows: Int64s | slice) -> Int64s:
        """Return the time from which operations that are on time count events."""
        return saturating_add(self.created_us[rows], -self.spec.lookback_us)

    @property
    def sum_need(self) -> Numbers:
        """(rows,) the sum that values must reach, in the query's number type."""
        return self.numbers["sum_need" if "sum_need" in self.numbers else "need"].values

    @property
    def late(self) -> Bools:
        """(rows,) bool: the row arrived behind the watermark."""
        return self.late_column.values

    def append(self, operations: OperationArrivals, from_us: Int64s, late: Bools, id_slot: Int64s) -> None:
        """Add operations, all (n,), as the next rows. Raises StateMismatchError if their columns have changed."""
        kept, payload = self.payload.kind, operations.payload
        if kept is not None and kept != payload.type:
            raise StateMismatchError(
                f"operations: the checkpoint has columns of {_types(kept)}, but the query {_types(payload.type)}: "
                "select the same columns in the same order, or start over with a new checkpoint and a new table"
            )
        first = len(self.late_column)
        given = {**vars(operations), "id_slot": id_slot}
        for name, column in self.columns.items():
            column.append(given[name])
        for name, number in self.numbers.items():
            self.numbers[name] = numbers.append(number, given[name])
        self.late_column.append(late)
        unusual = np.flatnonzero(from_us != self.usual_from_us(slice(first, None)))
        if len(unusual):
            self.late_rows = np.concatenate((self.late_rows, unusual + first))
            self.late_from_us = np.concatenate((self.late_from_us, from_us[unusual]))
        self.payload.append(payload)
        if self.spec.keeps_ids:
            self.own_ids.append(operations.ids)

    def keep(self, rows: Bools, entries: Bools) -> None:
        """Keep only flagged rows and watch entries; m rows become 0 .. m - 1."""
        for name, number in self.numbers.items():
            number.keep(entries if name == "level_need" else rows)
        for column in self.columns.values():
            column.keep(rows)
        if len(self.late_rows):
            kept = rows[self.late_rows]
            self.late_rows = np.cumsum(rows, dtype=np.int32)[self.late_rows[kept]].astype(np.int64) - 1
            self.late_from_us = self.late_from_us[kept]
        self.late_column.keep(rows)
        self.payload.keep(rows)
        if self.spec.keeps_ids:
            self.own_ids.keep(rows)


def _types(kind: pa.StructType) -> str:
    return ", ".join(str(field.type) for field in kind)
