"""The demo's check: the landing folders are counted again, in plain SQL that shares no code with the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

RECOUNT = """
WITH
received AS (
  SELECT *, order_id IS NULL OR ordered_at > now() + INTERVAL 1 DAY AS broken FROM landed_orders
),
orders AS (
  SELECT order_id, min(ordered_at) AS ordered_at, min(pay_by) AS pay_by, count(*) AS copies
  FROM received WHERE NOT broken GROUP BY order_id
),
-- The watermark when everything was read: the latest time of the slower input, less its 10 minutes.
clock AS (
  SELECT least((SELECT max(ordered_at) FROM received WHERE NOT broken),
               (SELECT max(paid_at) FROM landed_payments)) - INTERVAL 10 MINUTES AS watermark
),
-- Delayed payments land an hour after pay_by, all others within 10 minutes: half an hour separates them.
matched AS (
  SELECT o.order_id, o.pay_by, o.copies,
         bool_or(p.paid_at BETWEEN o.ordered_at AND o.pay_by AND p.landed_at < o.pay_by + INTERVAL 30 MINUTES) AS paid
  FROM orders o LEFT JOIN landed_payments p ON p.order_id = o.order_id
  GROUP BY o.order_id, o.pay_by, o.copies
),
decided AS (
  SELECT order_id, copies,
         CASE WHEN paid THEN 'COMPLETED' WHEN pay_by <= watermark THEN 'EXPIRED' ELSE 'PENDING' END AS status
  FROM matched CROSS JOIN clock
)
SELECT order_id, explode(concat(array(status), array_repeat('DUPLICATE', cast(copies - 1 AS int)))) AS status
FROM decided
UNION ALL
SELECT order_id, 'REJECTED' FROM received WHERE broken
"""


COMPARE = f"""
WITH both AS (
  SELECT order_id, status, 1 AS expected, 0 AS found FROM ({RECOUNT})
  UNION ALL
  SELECT order_id, status, 0 AS expected, 1 AS found FROM outcomes
),
orders AS (
  SELECT order_id, status, sum(expected) AS expected, sum(found) AS found FROM both GROUP BY order_id, status
)
SELECT status, sum(expected) AS expected, sum(found) AS found, sum(abs(expected - found)) AS different
FROM orders GROUP BY status
"""


@dataclass(frozen=True)
class Recount:
    """The rows of one status: expected from the folders, found in the table, and those without a partner."""

    expected: int
    found: int
    different: int


def recount(spark: SparkSession, landing: Path, outcomes: Path | str) -> dict[str, Recount]:
    """Count the folders and compare them with the table, a Delta table's folder or a name, order by order."""
    for name in ("orders", "payments"):
        spark.read.parquet(str(landing / name)).createOrReplaceTempView(f"landed_{name}")
    table = spark.table(outcomes) if isinstance(outcomes, str) else spark.read.format("delta").load(str(outcomes))
    table.createOrReplaceTempView("outcomes")
    rows = spark.sql(COMPARE).collect()
    return {row["status"]: Recount(row["expected"], row["found"], row["different"]) for row in rows}
