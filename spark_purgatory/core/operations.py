"""Operations by row: their times and their payload, beside the purgatory that numbers them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_purgatory.core.keys import KeyColumn
from spark_purgatory.core.runs import EMPTY, Bools, Column, Int64s
from spark_purgatory.errors import StateMismatchError

TIME_COLUMNS = ("created_us", "from_us", "deadline_us")


class OperationRows:
    """Columns of the operations that have a row, waiting or ended and not yet compacted away."""

    def __init__(self) -> None:
        self.columns = {name: Column(EMPTY) for name in TIME_COLUMNS}
        self.late_column = Column(np.empty(0, bool))
        self.payload = KeyColumn()

    @property
    def created_us(self) -> Int64s:
        """(rows,) int64."""
        return self.columns["created_us"].values

    @property
    def from_us(self) -> Int64s:
        """(rows,) int64: the earliest event time that counts for the operation."""
        return self.columns["from_us"].values

    @property
    def deadline_us(self) -> Int64s:
        """(rows,) int64."""
        return self.columns["deadline_us"].values

    @property
    def late(self) -> Bools:
        """(rows,) bool: arrived behind the watermark."""
        return self.late_column.values

    def append(
        self, created_us: Int64s, from_us: Int64s, deadline_us: Int64s, late: Bools, payload: pa.StructArray
    ) -> None:
        """Add operations, all (n,), as the next rows. Raises StateMismatchError where their columns are others now."""
        kept = self.payload.chunks
        if kept and kept[0].type != payload.type:
            raise StateMismatchError(
                f"operations: the checkpoint holds columns of {_types(kept[0])}, the query brings {_types(payload)}: "
                "bring the same columns in the same order, or start a new checkpoint"
            )
        for name, values in zip(TIME_COLUMNS, (created_us, from_us, deadline_us), strict=True):
            self.columns[name].append(values)
        self.late_column.append(late)
        self.payload.append(payload)

    def keep(self, rows: Int64s) -> None:
        """Keep only ``rows``, (m,) ascending; they become rows 0 .. m - 1."""
        self.columns = {name: Column(column.values[rows]) for name, column in self.columns.items()}
        self.late_column = Column(self.late[rows])
        self.payload.keep(rows)


def _types(payload: pa.StructArray) -> str:
    return ", ".join(str(field.type) for field in payload.type)
