"""The operations' own columns by row, without those that the engine has already.

If the created time, the deadline or the watch key is a payload column, only the engine's copy is kept, and it is put
back when rows leave. The same holds for the id as long as it equals the key in every row.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays.sorted_runs import Bools, GrowableArray, Int64s, count_of
from spark_purgatory.core.arrays.value_column import ValueColumn
from spark_purgatory.core.kafka.watchers import Watchers
from spark_purgatory.core.spec.engine_spec import EngineSpec

TIMES = ("created_us", "deadline_us")  # roles whose payload column the engine has as numbers


class Payload:
    """The operations' columns as structs, by row."""

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
    def chunks(self) -> list[pa.Array]:
        """All rows, valid until the payload changes."""
        if self.kind is None:
            return []
        columns = [self._column(at) for at in range(self.kind.num_fields)]
        bounds = np.unique(np.concatenate([[0, self._rows], *(each.starts for each in columns if each)])).tolist()
        return [self._slice(columns, start, end) for start, end in pairwise(bounds)]

    @property
    def ids(self) -> ValueColumn:
        """The ids, if a payload column has them."""
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
            keys = [self._watchers.keys.take(np.arange(self._rows))] if self._rows else []
            self._own[self._id_at] = ValueColumn.restored(keys)
        for at, column in self._own.items():
            column.append(columns[at])
        self._rows += len(payload)

    def take(self, rows: Int64s) -> pa.StructArray:
        assert self.kind is not None, "bug: rows of an empty payload"
        made: dict[int, pa.Array] = {}
        columns = []
        for at, field in enumerate(self.kind):
            column = self._column(at)
            if column is None:
                columns.append(pa.array(self._columns[self._time_at[at]].values[rows]).view(field.type))
                continue
            if id(column) not in made:
                made[id(column)] = column.take(rows)
            columns.append(made[id(column)])
        return _structs(columns, self.kind, len(rows))

    def keep(self, rows: Bools) -> None:
        """Keep only flagged rows. The engine does the same afterwards."""
        self._rows = count_of(rows)
        if not self._rows:
            self.kind, self._own = None, {}
        for column in self._own.values():
            column.keep(rows)

    def merge(self) -> None:
        """Merge chunks, as `ValueColumn.merge` does."""
        for column in self._own.values():
            column.merge()

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

    def _slice(self, columns: list[ValueColumn | None], start: int, end: int) -> pa.StructArray:
        assert self.kind is not None
        parts = []
        for at, column in enumerate(columns):
            if column is None:
                parts.append(pa.array(self._columns[self._time_at[at]].values[start:end]).view(self.kind[at].type))
                continue
            chunk = int(column.starts.searchsorted(start, side="right")) - 1
            parts.append(column.chunks[chunk].slice(start - int(column.starts[chunk]), end - start))
        return _structs(parts, self.kind, end - start)


def _structs(columns: list[pa.Array], kind: pa.StructType, rows: int) -> pa.StructArray:
    if not columns:
        return pa.Array.from_buffers(kind, rows, [None])
    return pa.StructArray.from_arrays(columns, fields=list(kind))
