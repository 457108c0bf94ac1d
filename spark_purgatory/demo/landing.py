"""Landing folders of orders and payments: ninety minutes of a shop's morning, made up from a seed.

An order must be paid by ``pay_by``, which depends on the method. Its fate is drawn:

| outcome | share | what lands | becomes |
| --- | --- | --- | --- |
| paid in time | 80 % | a payment, up to 8 minutes out of order | COMPLETED |
| paid too late | 6 % | a payment made after ``pay_by`` | EXPIRED |
| payment delayed | 3 % | one made in time that lands over an hour after ``pay_by`` | EXPIRED |
| never paid | 11 % | nothing | EXPIRED |

An order whose ``pay_by`` is near the end is still pending. Also, 1 % of the orders land twice (DUPLICATE), some have no
id, and a few come from a clock that runs decades ahead (both REJECTED).

File i of a folder has the rows that landed in the i-th 15 minutes, in the order of landing, and the date of its end. So
the watermark, 10 minutes behind, never passes an order or a payment of the first two kinds before it lands, and has
passed ``pay_by`` by half an hour when a delayed payment lands. `spark_purgatory.demo.runner` relies on both.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Int64s = npt.NDArray[np.int64]
Columns = dict[str, Any]

MINUTE_MS = 60_000
START_MS = 1_709_280_000_000  # 2024-03-01 08:00 UTC; all times are whole milliseconds, like Spark's watermark
FILES = 6
FILE_MS = 15 * MINUTE_MS
SPAN_MS = FILES * FILE_MS

METHODS = np.array(["card", "wallet", "invoice"])
METHOD_SHARES = (0.6, 0.3, 0.1)
PAY_WITHIN_MS = np.array([10, 20, 45]) * MINUTE_MS
PAID, TOO_LATE, DELAYED, NEVER = range(4)
FATE_SHARES = (0.80, 0.06, 0.03, 0.11)

MAX_ORDER_LAG_MS = 4 * MINUTE_MS
MAX_PAYMENT_LAG_MS = 8 * MINUTE_MS
DELAYED_AFTER_MS = 60 * MINUTE_MS
OUT_OF_ORDER_SHARE = 0.03
TWICE_SHARE = 0.01
NO_ID_SHARE = 0.001
BROKEN_CLOCKS = 3
BROKEN_CLOCK_MS = 2_300_000_000_000  # in the year 2042


@dataclass(frozen=True)
class Landed:
    orders: int
    payments: int
    files: int


def write_landing(folder: Path, operations: int, seed: int) -> Landed:
    """Write ``folder/orders`` and ``folder/payments``; the same arguments give the same files.

    With fewer than 1000 operations a file may be empty and the watermark stop, which the recount does not expect.
    """
    rng = np.random.default_rng(seed)
    orders = _orders(rng, operations)
    payments = _payments(rng, orders)
    spoilt = _with_spoilt(rng, orders)
    n_orders = _write_files(folder / "orders", spoilt)
    n_payments = _write_files(folder / "payments", payments)
    return Landed(n_orders, n_payments, 2 * FILES)


def _orders(rng: np.random.Generator, n: int) -> Columns:
    ordered_ms = START_MS + np.sort(rng.integers(0, SPAN_MS, n))
    method = rng.choice(len(METHODS), n, p=METHOD_SHARES)
    return {
        "order_id": np.char.add("order-", np.arange(n).astype(str)),
        "customer_id": rng.integers(1, 1 + n // 3, n),
        "method": METHODS[method],
        "cents": rng.integers(100, 50_000, n),
        "ordered_ms": ordered_ms,
        "pay_by_ms": ordered_ms + PAY_WITHIN_MS[method],
        "landed_ms": ordered_ms + _lag_ms(rng, n, MAX_ORDER_LAG_MS),
    }


def _payments(rng: np.random.Generator, orders: Columns) -> Columns:
    n = len(orders["order_id"])
    fate = rng.choice(4, n, p=FATE_SHARES)
    ordered_ms, pay_by_ms = orders["ordered_ms"], orders["pay_by_ms"]
    # Most people pay at once, and some at the last moment.
    in_time_ms = ordered_ms + (rng.random(n) ** 3 * (pay_by_ms - ordered_ms)).astype(np.int64)
    too_late_ms = pay_by_ms + rng.integers(1, 15 * MINUTE_MS, n)
    paid_ms = np.where(fate == TOO_LATE, too_late_ms, in_time_ms)
    landed_ms = paid_ms + _lag_ms(rng, n, MAX_PAYMENT_LAG_MS)
    delayed_ms = pay_by_ms + DELAYED_AFTER_MS + rng.integers(0, 15 * MINUTE_MS, n)
    landed_ms = np.where(fate == DELAYED, delayed_ms, landed_ms)
    paid = np.flatnonzero(fate != NEVER)
    return {
        "payment_id": np.char.add("payment-", paid.astype(str)),
        "order_id": orders["order_id"][paid],
        "cents": orders["cents"][paid],
        "paid_ms": paid_ms[paid],
        "landed_ms": landed_ms[paid],
    }


def _lag_ms(rng: np.random.Generator, n: int, most_ms: int) -> Int64s:
    """Return the milliseconds from event to landing: seconds for most, up to ``most_ms`` for some."""
    usual = np.minimum(rng.exponential(3000, n), most_ms)
    return np.where(rng.random(n) < OUT_OF_ORDER_SHARE, rng.integers(0, most_ms, n), usual).astype(np.int64)


def _with_spoilt(rng: np.random.Generator, orders: Columns) -> Columns:
    n = len(orders["order_id"])
    twice = np.flatnonzero(rng.random(n) < TWICE_SHARE)
    again = {name: column[twice] for name, column in orders.items()}
    again["landed_ms"] = again["landed_ms"] + rng.integers(0, 3 * MINUTE_MS, len(twice))
    spoilt = rng.choice(n, BROKEN_CLOCKS + int(NO_ID_SHARE * n), replace=False)
    broken = {name: column[spoilt] for name, column in orders.items()}
    broken["order_id"] = np.char.add("broken-", np.arange(len(spoilt)).astype(str)).astype(object)
    broken["order_id"][BROKEN_CLOCKS:] = None
    for name in ("ordered_ms", "pay_by_ms"):
        broken[name][:BROKEN_CLOCKS] = BROKEN_CLOCK_MS
    parts = (orders, again, broken)
    return {name: np.concatenate([part[name] for part in parts]) for name in orders}


def _write_files(folder: Path, columns: Columns) -> int:
    """Write a file for each 15 minutes of landing, with that date; rows that land later are left out."""
    folder.mkdir(parents=True)
    landed_ms = columns["landed_ms"]
    order = np.argsort(landed_ms, kind="stable")
    table = _table({name: column[order] for name, column in columns.items()})
    edges = np.searchsorted(landed_ms[order], START_MS + FILE_MS * np.arange(FILES + 1))
    for i, (start, end) in enumerate(pairwise(edges)):
        path = folder / f"part-{i:03d}.parquet"
        pq.write_table(table.slice(start, end - start), path)
        closed_s = (START_MS + FILE_MS * (i + 1)) / 1000
        os.utime(path, (closed_s, closed_s))
    return int(edges[-1] - edges[0])


def _table(columns: Columns) -> pa.Table:
    """Convert ``*_ms`` to timestamps and ``cents`` to a decimal amount."""
    arrays = {}
    for name, column in columns.items():
        if name.endswith("_ms"):
            at = name.removesuffix("_ms")
            name = at if at == "pay_by" else f"{at}_at"
            arrays[name] = pa.array(column * 1000).cast(pa.timestamp("us", "UTC"))
        elif name == "cents":
            hundred = pa.scalar(100, pa.decimal128(12, 0))
            cents = pa.array(column).cast(pa.decimal128(19, 0)).cast(pa.decimal128(12, 2))
            arrays["amount"] = pc.divide(cents, hundred).cast(pa.decimal128(10, 2))
        else:
            arrays[name] = pa.array(column)
    return pa.table(arrays)
