"""Events delivered again on the same key: their number and their sum in any range of a segment.

Key and event id identify an event here; `cross_key_redelivery` handles deliveries on other keys. In a range, an event
counts at its first position. Position i is a *redelivery* if an equal event is between the range's start and i, that
is if ``previous[i] >= start``. A wavelet matrix over ``previous`` answers this for any number of ranges, in one pass
for each bit. Worked example, x delivered three times::

    position       0  1  2  3  4
    event          x  y  x  z  x       redeliveries at 2 and 4; previous: 0 and 2
    range 0 .. 4   2 of 5 are redeliveries    (0 >= 0, 2 >= 0)
    range 1 .. 4   1 of 4 is                  (0 <  1, 2 >= 1)
    range 3 .. 4   none                       (2 <  3)
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays.exact_sums import limbs_of
from spark_purgatory.core.arrays.numbers import Numbers, addends
from spark_purgatory.core.arrays.sorted_runs import Bools, Int64s, is_first


class Redeliveries:
    """The r positions of events that were delivered before in their group, and the positions of those deliveries."""

    def __init__(self, at: Int64s, previous: Int64s, weights: Int64s) -> None:
        self.at, self.previous = at, previous  # (r,) ascending; (r,)
        # By bit of ``previous``: zeros before each place, and sums of weights in the order after the bit.
        self._levels: list[tuple[int, Int64s, Int64s]] = []
        order = np.arange(len(at))
        self._sums = _prefix(weights)
        for bit in range(int(previous.max(initial=0)).bit_length() - 1, -1, -1):
            one = (previous[order] >> bit & 1).astype(bool)
            zeros = np.concatenate(([0], np.cumsum(~one)))
            order = np.concatenate((order[~one], order[one]))
            self._sums = _prefix(weights[:, order])
            self._levels.append((bit, zeros, self._sums))

    @staticmethod
    def of(group: Int64s, event_ids: pa.Array, value: Numbers | None) -> Redeliveries | None:
        """Find the redeliveries among events in order by group and id (null: no id); None if nothing is repeated."""
        named, codes, group = _by_id(group, event_ids)
        same: Bools = (codes[1:] == codes[:-1]) & (group[1:] == group[:-1])
        if not same.any():
            return None
        at, previous = named[1:][same], named[:-1][same]
        order = np.argsort(at)
        at, previous = at[order], previous[order]
        weights = np.ones((1, len(at)), np.int64)
        if value is not None:
            weights = np.concatenate((weights, limbs_of(addends(value[at]))))
        return Redeliveries(at, previous, weights)

    def total(self, low: Int64s, high: Int64s) -> Int64s:
        """Return the number of redeliveries in each range ``low[i] .. high[i] - 1``, then the limbs of their sum."""
        start, end = self.at.searchsorted(low), self.at.searchsorted(high)
        total = np.zeros((len(self._sums), len(low)), np.int64)
        bits = self._levels[0][0] + 1 if self._levels else 0
        beyond = low >> bits > 0  # no previous place is so late
        for bit, zeros, sums in self._levels:
            one = (low >> bit & 1).astype(bool)
            ones_start, ones_end = zeros[-1] + start - zeros[start], zeros[-1] + end - zeros[end]
            total += np.where(one, 0, sums[:, ones_end] - sums[:, ones_start])
            start, end = np.where(one, ones_start, zeros[start]), np.where(one, ones_end, zeros[end])
        total += self._sums[:, end] - self._sums[:, start]
        total[:, beyond] = 0
        return total


def first_in_ranges(previous: Int64s, starts: Int64s, ends: Int64s, before: Int64s) -> tuple[Int64s, Int64s]:
    """Find the positions ``starts[i] .. ends[i] - 1`` with ``previous < before[i]``; returns i and position, (m,) each.

    Blocks of positions are halved, and only blocks with a find are read. The cost is log2(positions) for each find, and
    does not depend on the lengths of the ranges.
    """
    least = [previous]
    while len(least[-1]) > 1:
        below = least[-1]
        least.append(np.minimum(below[: len(below) // 2 * 2 : 2], below[1::2]))
        if len(below) % 2:
            least[-1] = np.append(least[-1], below[-1])
    which, block = np.arange(len(starts)), np.zeros(len(starts), np.int64)
    for level in range(len(least) - 1, -1, -1):
        holds = (block << level < ends[which]) & ((block + 1) << level > starts[which])
        holds[holds] = least[level][block[holds]] < before[which[holds]]
        which, block = which[holds], block[holds]
        if level:
            which, block = which.repeat(2), (2 * block).repeat(2)
            block[1::2] += 1
    return which, block


def shared_ids(group: Int64s, event_ids: pa.Array) -> tuple[Int64s, Int64s]:
    """Return ascending positions of the events whose id is in more than one group, and a number for each id."""
    named, codes, group = _by_id(group, event_ids)
    groups = np.bincount(codes[is_first(codes) | is_first(group)])
    shared = groups[codes] > 1
    at, codes = named[shared], codes[shared]
    order = np.argsort(at)
    return at[order], codes[order]


def _by_id(group: Int64s, event_ids: pa.Array) -> tuple[Int64s, Int64s, Int64s]:
    """Sort events with an id by id, group and place; returns position, a number for the id, and group."""
    codes = event_ids.dictionary_encode().indices.fill_null(-1).to_numpy().astype(np.int64)
    named = np.flatnonzero(codes >= 0)
    named = named[np.lexsort((group[named], codes[named]))]
    return named, codes[named], group[named]


def _prefix(weights: Int64s) -> Int64s:
    return np.concatenate((np.zeros((len(weights), 1), np.int64), np.cumsum(weights, axis=1)), axis=1)
