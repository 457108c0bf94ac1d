"""Ids seen, until their deadline: what makes a second row of an id a DUPLICATE.

An id is live while its deadline lies ahead of the watermark, whether its operation is still pending or has ended: a
pending operation's deadline always does. So an entry is written once and never touched by the operation's end.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_purgatory.core.keys import KeyColumn
from spark_purgatory.core.runs import EMPTY, ROW_MASK, Bools, Column, Int64s, SortedRuns

FORGET_FLOOR = 1024
"""Entries below which forgetting is not worth a pass."""


class Ids:
    """Live ids by hash. An identity is one or more columns: the id; its watch key, where that is another column."""

    def __init__(self, width: int) -> None:
        self.index = SortedRuns()
        self.columns = [KeyColumn() for _ in range(width)]
        self.deadline_us = Column(EMPTY)

    def __len__(self) -> int:
        return len(self.deadline_us)

    def duplicates(
        self, identity: list[pa.Array], hashes: Int64s, created_us: Int64s, deadline_us: Int64s, watermark_us: int
    ) -> Bools:
        """Which rows of a batch repeat an id that is live, or one that stands earlier in the batch; (n,) bool.

        Within a batch rows stand in the order of (created, deadline); a later row is a duplicate if created no later
        than the deadline of the one that stands, and that is live.
        """
        order = np.argsort(hashes)
        repeated = self._live_before(identity, hashes, order, created_us, watermark_us)
        ascending = hashes[order]
        if bool((ascending[1:] == ascending[:-1]).any()):
            self._repeated_within(identity, hashes, created_us, deadline_us, watermark_us, repeated)
        return repeated

    def _live_before(
        self, identity: list[pa.Array], hashes: Int64s, order: Int64s, created_us: Int64s, watermark_us: int
    ) -> Bools:
        repeated = np.zeros(len(hashes), bool)
        found, slots = self.index.find(hashes[order])
        row = order[found]
        deadlines = self.deadline_us.values[slots]
        live = (deadlines > watermark_us) & (created_us[row] <= deadlines)
        row, slots = row[live], slots[live]
        for column, values in zip(self.columns, identity, strict=True):
            same = column.equal(slots, values, row)
            row, slots = row[same], slots[same]
        repeated[row] = True
        return repeated

    @staticmethod
    def _repeated_within(
        identity: list[pa.Array],
        hashes: Int64s,
        created_us: Int64s,
        deadline_us: Int64s,
        watermark_us: int,
        repeated: Bools,
    ) -> None:
        codes = [values.dictionary_encode().indices.fill_null(-1).to_numpy() for values in identity]
        left = np.flatnonzero(~repeated)
        left = left[np.lexsort((deadline_us[left], created_us[left], *(code[left] for code in codes), hashes[left]))]
        while len(left):
            # One round settles, for every id, the first row left and all rows within its wait.
            other = np.zeros(len(left) - 1, bool)
            for column in (hashes, *codes):
                other |= column[left[1:]] != column[left[:-1]]
            first = np.concatenate(([True], other))
            standing = left[first][np.cumsum(first) - 1]
            within = ~first & (created_us[left] <= deadline_us[standing]) & (deadline_us[standing] > watermark_us)
            repeated[left[within]] = True
            left = left[~first & ~within]

    def add(self, identity: list[pa.Array], hashes: Int64s, deadline_us: Int64s) -> None:
        """Remember ids, (n,), each until its deadline."""
        slots = np.arange(len(self), len(self) + len(hashes))
        self.index.add(np.sort((hashes & ~ROW_MASK) | slots))
        for column, values in zip(self.columns, identity, strict=True):
            column.append(values)
        self.deadline_us.append(deadline_us)

    def forget(self, watermark_us: int) -> None:
        """Drop ids whose deadline has passed, when they are a fifth of all."""
        live = np.flatnonzero(self.deadline_us.values > watermark_us)
        if len(self) - len(live) <= len(live) // 4 + FORGET_FLOOR:
            return
        new_slot = np.full(len(self), -1)
        new_slot[live] = np.arange(len(live))
        self.index.renumber(new_slot)
        for column in self.columns:
            column.keep(live)
        self.deadline_us = Column(self.deadline_us.values[live])
