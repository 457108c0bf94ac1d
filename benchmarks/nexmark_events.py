"""Events of Nexmark, as its published generator draws them (github.com/nexmark/nexmark, its default configuration).

Of 50 events in a row one is a person, three are auctions and 46 are bids; 10,000 of them fill a second of event time.
An auction is open for 1 ms up to twice the time in which 100 auctions come. Half of the bids go to the *hot* auction,
the first of the last hundred; the others to one of the last 100 auctions, or of ten that are still to come. Three
quarters of the bidders are hot in the same way. Prices are 100 times a power of ten from 0 to 6, uniform in the
exponent. Texts fill an auction up to some 500 bytes and a bid up to some 100.

The draws are numpy's, from a seed. Query 9 reads no person, so persons take their place in time and are not written.
Auctions and bids lie in one folder, one file a micro-batch, in the order of their times, as in Nexmark's one topic; a
row has the columns of both, and null in those of the other.
A last file has an auction and a bid of an hour later, on keys of their own: with it the clock passes all that is open.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.workload_w import START_US, timestamps, write_file

Int64s = npt.NDArray[np.int64]

FORMAT = 2
"""Part of the cache's name: another number whenever the files of a seed change."""
PERSONS, AUCTIONS, BIDS = 1, 3, 46
EPOCH = PERSONS + AUCTIONS + BIDS
EVENTS_A_MS = 10
IN_FLIGHT, LEAD, HOT = 100, 10, 100
ACTIVE_PEOPLE = 1000
FIRST_ID, FIRST_CATEGORY, CATEGORIES = 1000, 10, 5
AUCTION_BYTES, BID_BYTES = 500, 100
IS_AUCTION, IS_BID = 1, 2
"""Values of the column ``kind``."""
CLOSING_MS = 3_600_000
"""How much later than all others the last auction and bid are."""


@dataclass(frozen=True)
class Events:
    """Events on disk."""

    folder: Path
    count: int
    """Events in all, persons included."""
    rows: int
    """Of them auctions and bids, without the last two."""
    rows_by_batch: tuple[int, ...]


def prepared(count: int, batches: int, seed: int, root: Path) -> Events:
    """So many events below ``root``, written now unless they lie there from an earlier run."""
    folder = root / f"nexmark{FORMAT}-{count}-{batches}-{seed}"
    numbers = [np.arange(part[0], part[-1] + 1) for part in np.array_split(np.arange(count), batches)]
    if not folder.exists():
        partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
        rng = np.random.default_rng(seed)
        for batch, part in enumerate(numbers):
            write_file(partial, batch, drawn(part, rng))
        write_file(partial, batches, closing(count))
        try:
            partial.rename(folder)
        except OSError:
            shutil.rmtree(partial)  # Another run was quicker.
    rows = tuple(int(np.count_nonzero(part % EPOCH >= PERSONS)) for part in numbers)
    return Events(folder, count, sum(rows), rows)


def drawn(numbers: Int64s, rng: np.random.Generator) -> pa.Table:
    """The auctions and bids among the events of these numbers, ascending, as rows of one table."""
    is_auction = (numbers % EPOCH >= PERSONS) & (numbers % EPOCH < PERSONS + AUCTIONS)
    is_bid = numbers % EPOCH >= PERSONS + AUCTIONS
    auctions, bids = _auctions(numbers[is_auction], rng), _bids(numbers[is_bid], rng)
    rows = pa.concat_tables([auctions, bids], promote_options="default")
    return rows.take(pa.array(np.argsort(np.concatenate((numbers[is_auction], numbers[is_bid])), kind="stable")))


def closing(count: int) -> pa.Table:
    """The last auction and the last bid, which meet nothing."""
    at_us = timestamps(_time_us(np.array([count + CLOSING_MS * EVENTS_A_MS] * 2)))
    later = timestamps(_time_us(np.array([count + 2 * CLOSING_MS * EVENTS_A_MS])))
    auction, bid = drawn(np.array([1]), np.random.default_rng(0)), drawn(np.array([4]), np.random.default_rng(0))
    auction = auction.set_column(auction.schema.get_field_index("expires"), "expires", later)
    rows = pa.concat_tables([auction, bid], promote_options="default")
    for name, column in (("auction", pa.array([-1, -2])), ("time", at_us)):
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return rows


def _auctions(numbers: Int64s, rng: np.random.Generator) -> pa.Table:
    n, time_us = len(numbers), _time_us(numbers)
    horizon_ms = (_time_us(numbers + IN_FLIGHT * EPOCH // AUCTIONS) - time_us) // 1000
    open_ms = 1 + rng.integers(0, np.maximum(2 * horizon_ms, 1))
    initial = _prices(n, rng)
    names, descriptions = _texts(3 + rng.integers(0, 17, n), rng), _texts(3 + rng.integers(0, 97, n), rng)
    used = 48 + _lengths(names) + _lengths(descriptions)
    return pa.table(
        {
            "kind": pa.array(np.full(n, IS_AUCTION, np.int8)),
            "auction": pa.array(FIRST_ID + _last_auction(numbers)),
            "time": timestamps(time_us),
            "expires": timestamps(time_us + 1000 * open_ms),
            "item_name": names,
            "description": descriptions,
            "initial_bid": pa.array(initial),
            "reserve": pa.array(initial + _prices(n, rng)),
            "seller": pa.array(_people(numbers, 4, 0, rng)),
            "category": pa.array(FIRST_CATEGORY + rng.integers(0, CATEGORIES, n)),
            "extra": _extra(used, AUCTION_BYTES, rng),
        }
    )


def _bids(numbers: Int64s, rng: np.random.Generator) -> pa.Table:
    n, last = len(numbers), _last_auction(numbers)
    first = np.maximum(last - IN_FLIGHT, 0)
    auction = np.where(rng.random(n) < 0.5, last // HOT * HOT, first + rng.integers(0, last - first + 1 + LEAD))
    return pa.table(
        {
            "kind": pa.array(np.full(n, IS_BID, np.int8)),
            "auction": pa.array(FIRST_ID + auction),
            "time": timestamps(_time_us(numbers)),
            "bidder": pa.array(_people(numbers, 4, 1, rng)),
            "price": pa.array(_prices(n, rng)),
            "bid_extra": _extra(np.full(n, 32), BID_BYTES, rng),
        }
    )


def _time_us(numbers: Int64s) -> Int64s:
    return START_US + numbers // EVENTS_A_MS * 1000


def _last_auction(numbers: Int64s) -> Int64s:
    """The last auction up to each event that is an auction or a bid, from 0."""
    return numbers // EPOCH * AUCTIONS + np.minimum(numbers % EPOCH - PERSONS, AUCTIONS - 1)


def _people(numbers: Int64s, hot_ratio: int, hot_place: int, rng: np.random.Generator) -> Int64s:
    """Persons: one in ``hot_ratio`` is any of those that are active or about to come, the others are the hot one."""
    n, last = len(numbers), numbers // EPOCH
    active = np.minimum(last + 1, ACTIVE_PEOPLE)
    anyone = last + 1 - active + rng.integers(0, active + LEAD)
    found = np.where(rng.integers(0, hot_ratio, n) > 0, last // HOT * HOT + hot_place, anyone)
    return np.asarray(FIRST_ID + found, np.int64)


def _prices(n: int, rng: np.random.Generator) -> Int64s:
    return np.rint(10.0 ** (6 * rng.random(n)) * 100).astype(np.int64)


def _extra(used: Int64s, wanted: int, rng: np.random.Generator) -> pa.Array:
    """Texts that fill rows up to a size, give or take a fifth of what is left."""
    left = np.maximum(wanted - used, 0)
    fifth = np.rint(left * 0.2).astype(np.int64)
    return _texts(left - fifth + rng.integers(0, np.maximum(2 * fifth, 1)), rng)


def _texts(lengths: Int64s, rng: np.random.Generator) -> pa.Array:
    """Random letters, so many in each text."""
    ends = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    letters = rng.integers(ord("a"), ord("z") + 1, int(ends[-1]), np.uint8)
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(ends), pa.py_buffer(letters))


def _lengths(texts: pa.StringArray) -> Int64s:
    return np.diff(np.frombuffer(texts.buffers()[1], np.int32)).astype(np.int64)
