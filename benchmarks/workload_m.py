"""Workload M: operations with k keys that live in different shards, complete when each key has had an event.

As workload W (`workload_w`): N operations in B batches of one minute of event time, waiting up to three minutes; one
Parquet file a batch and side, events ending three batches after operations; no watermark has a delay. In two worlds:

own      every key is one operation's alone: parts of an order, acks of a command. Three of four operations get an event
         on each key, at uniform points of their wait; of the others one key gets none. About k * N events.
shared   operations watch k of `SHARED_KEYS` keys: partitions, replicas, sensors. A key has an event every
         `SHARED_GAP_US` on average, whatever N is: few events, many operations.

What must come out follows from the arrays alone (`expected`), as in workload W: an operation is COMPLETED at the latest
of its keys' first events from its creation on, if that is not past its deadline; EXPIRED if the clock has passed its
deadline when the stream ends; else pending.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.workload_w import (
    BATCH_US,
    COMPLETING,
    LONGEST_DELAY_US,
    START_US,
    TAIL_BATCHES,
    timestamps,
    write_file,
)

Int64s = npt.NDArray[np.int64]

FORMAT = 1
"""Part of the cache's name: another number whenever the files of a seed change."""
SHARED_KEYS = 1000
SHARED_GAP_US = 20_000_000
SPAN_US = 1 << 40
"""Longer than any workload: a key's number times this, and a time, make one number."""
CHECK_MODULO = 1_000_003
FACTOR = 7919
WORLDS = ("own", "shared")


@dataclass(frozen=True)
class Draw:
    """The workload as arrays."""

    world: str
    batches: int
    created_us: Int64s  # (N,) ascending
    deadline_us: Int64s  # (N,)
    keys: Int64s  # (N, k) numbers of keys
    event_key: Int64s  # (E,)
    event_us: Int64s  # (E,) ascending

    @property
    def rows(self) -> int:
        """Operations and events."""
        return len(self.created_us) + len(self.event_us)

    def by_batch(self) -> tuple[Int64s, Int64s]:
        """(operations, events) of every batch, the tail's included."""
        total = self.batches + TAIL_BATCHES
        operations = np.bincount((self.created_us - START_US) // BATCH_US, minlength=total)
        return operations, np.bincount((self.event_us - START_US) // BATCH_US, minlength=total)


@dataclass(frozen=True)
class Expected:
    """What must have come out when the stream ends: rows by status, and a sum over all that tells them apart."""

    completed: int
    expired: int
    checksum: int


def draw(world: str, operations: int, n_keys: int, batches: int, seed: int) -> Draw:
    """Draw a workload; the same arguments give the same one."""
    rng = np.random.default_rng(seed)
    batch = np.arange(operations, dtype=np.int64) * batches // operations
    created_us = np.sort(START_US + batch * BATCH_US + rng.integers(0, BATCH_US, operations))
    delay_us = rng.integers(1, LONGEST_DELAY_US, operations, endpoint=True)
    if world == "own":
        keys = np.arange(operations * n_keys, dtype=np.int64).reshape(operations, n_keys)
        event_us = created_us[:, None] + rng.integers(0, delay_us[:, None], (operations, n_keys), endpoint=True)
        silent = np.flatnonzero(rng.random(operations) >= COMPLETING)
        heard = np.ones((operations, n_keys), bool)
        heard[silent, rng.integers(0, n_keys, len(silent))] = False
        event_key, event_us = keys[heard], event_us[heard]
    else:
        # Distinct keys of a row, apart by steps that add up to less than all of them.
        steps = rng.integers(1, SHARED_KEYS // n_keys, (operations, n_keys))
        keys = (rng.integers(0, SHARED_KEYS, (operations, 1)) + np.cumsum(steps, axis=1)) % SHARED_KEYS
        span_us = (batches + TAIL_BATCHES) * BATCH_US
        n_events = SHARED_KEYS * span_us // SHARED_GAP_US
        event_key = rng.integers(0, SHARED_KEYS, n_events)
        event_us = START_US + rng.integers(0, span_us, n_events)
    order = np.argsort(event_us, kind="stable")
    return Draw(world, batches, created_us, created_us + delay_us, keys, event_key[order], event_us[order])


def completed_us(drawn: Draw) -> Int64s:
    """When every key of an operation has had an event, (N,); far in the future where one has none."""
    ascending = np.sort(drawn.event_key * SPAN_US + drawn.event_us - START_US)
    wanted = drawn.keys * SPAN_US + (drawn.created_us - START_US)[:, None]
    at = ascending.searchsorted(wanted)
    found = ascending[np.minimum(at, len(ascending) - 1)]
    hit = (at < len(ascending)) & (found // SPAN_US == drawn.keys)
    return np.where(hit, found % SPAN_US + START_US, np.iinfo(np.int64).max).max(axis=1)


def expected(drawn: Draw) -> Expected:
    """What must come out when the stream ends."""
    at_us = completed_us(drawn)
    completes = at_us <= drawn.deadline_us
    clock_us = min(int(drawn.created_us.max()), int(drawn.event_us.max())) // 1000 * 1000
    expires = ~completes & (drawn.deadline_us <= clock_us)
    decided = np.flatnonzero(completes | expires)
    resolved_us = np.where(completes, at_us, drawn.deadline_us)[decided]
    mixed = (decided * FACTOR + resolved_us - START_US + completes[decided]) % CHECK_MODULO
    return Expected(int(completes.sum()), int(expires.sum()), int(mixed.sum()))


def prepared(world: str, operations: int, n_keys: int, batches: int, seed: int, root: Path) -> tuple[Draw, Path]:
    """The workload and its files below ``root``, written now unless they lie there from an earlier run."""
    drawn = draw(world, operations, n_keys, batches, seed)
    folder = root / f"m{FORMAT}-{world}-{operations}-{n_keys}-{batches}-{seed}"
    if not folder.exists():
        # Under another name until complete, so that an interrupted run leaves nothing that looks whole.
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        write(drawn, partial)
        partial.rename(folder)
    return drawn, folder


def write(drawn: Draw, folder: Path) -> None:
    """The workload as files, one a batch and side, modification times in order of batches."""
    batch = (drawn.created_us - START_US) // BATCH_US
    for number in range(drawn.batches):
        rows = np.flatnonzero(batch == number)
        write_file(folder / "operations", number, _operations(drawn, rows))
    batch = (drawn.event_us - START_US) // BATCH_US
    for number in range(drawn.batches + TAIL_BATCHES):
        rows = np.flatnonzero(batch == number)
        write_file(folder / "events", number, _events(drawn, rows))


def _operations(drawn: Draw, rows: Int64s) -> pa.Table:
    n_keys = drawn.keys.shape[1]
    offsets = np.arange(0, (len(rows) + 1) * n_keys, n_keys, dtype=np.int32)
    return pa.table(
        {
            "op": _names("order", rows),
            "n": rows,
            "keys": pa.ListArray.from_arrays(offsets, _key_names(drawn, drawn.keys[rows].ravel())),
            "created": timestamps(drawn.created_us[rows]),
            "deadline": timestamps(drawn.deadline_us[rows]),
        }
    )


def _events(drawn: Draw, rows: Int64s) -> pa.Table:
    keys = drawn.event_key[rows]
    columns = {"key": _key_names(drawn, keys), "time": timestamps(drawn.event_us[rows])}
    if drawn.world == "own":
        columns["op"] = _names("order", keys // drawn.keys.shape[1])
    return pa.table(columns)


def _key_names(drawn: Draw, keys: Int64s) -> pa.Array:
    if drawn.world == "shared":
        return _names("partition", keys)
    n_keys = drawn.keys.shape[1]
    return pc.binary_join_element_wise(_names("order", keys // n_keys), pa.array(keys % n_keys).cast(pa.string()), "/")


def _names(prefix: str, numbers: Int64s) -> pa.Array:
    return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "-")
