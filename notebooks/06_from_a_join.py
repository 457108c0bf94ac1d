# Databricks notebook source
# MAGIC %md
# MAGIC # 6. From a stream-stream join to a purgatory
# MAGIC
# MAGIC This notebook runs a left outer join of two streams with a time limit, shows what it cannot say, runs the same
# MAGIC with a purgatory, and compares the two row by row.

# COMMAND ----------

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from notebook_support import land, landed, local_session, work_folder
from pyspark.sql import functions as F

from spark_purgatory import Completions, Operations, Purgatory, criteria

if "spark" not in globals():
    spark = local_session()
folder = work_folder(globals().get("dbutils"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The data
# MAGIC
# MAGIC 300 orders in three hours. Three of four are paid, some after the 30 minutes that an order may wait. 12 orders
# MAGIC were paid in two parts, 10 landed twice, and 8 landed two hours late.

# COMMAND ----------

# The rows of this notebook.
ORDERS, FILES = 300, 4
rng = np.random.default_rng(17)
ordered_at = pd.Timestamp("2024-05-06 09:00", tz="UTC") + pd.to_timedelta(
    np.sort(rng.integers(0, 10_800, ORDERS)), "s"
)
orders = pd.DataFrame(
    {"order_id": [f"order-{i:03}" for i in range(ORDERS)], "ordered_at": ordered_at}
)
late = rng.choice(ORDERS // 3, 8, replace=False)  # of the first hour
in_parts, twice = np.split(
    rng.choice(np.setdiff1d(np.arange(ORDERS), late), 22, replace=False), [12]
)
special = np.concatenate([in_parts, twice, late])

wait = pd.to_timedelta(
    np.where(rng.random(ORDERS) < 0.9, rng.integers(10, 1700, ORDERS), 2400), "s"
)
payments = pd.DataFrame({"order_id": orders["order_id"], "paid_at": ordered_at + wait})
payments = payments[(rng.random(ORDERS) < 0.75) | np.isin(np.arange(ORDERS), special)]
second = payments.loc[in_parts].assign(
    paid_at=orders["ordered_at"][in_parts] + pd.Timedelta("29 minutes")
)
first = second.assign(paid_at=second["paid_at"] - pd.Timedelta("20 minutes"))
payments = pd.concat([payments.drop(in_parts), first, second])

payments["method"] = rng.choice(["card", "cash"], len(payments))

# When a row lands: at its own time, or two hours later. One file for each hour; the last one
# closes the day.
landing = orders["ordered_at"].copy()
landing.loc[late] += pd.Timedelta("2 hours")
arriving = pd.concat(
    [orders.assign(lands_at=landing), orders.loc[twice].assign(lands_at=landing.loc[twice])]
)
hours = pd.date_range("2024-05-06 09:00", periods=FILES + 1, freq="h", tz="UTC")
for number in range(FILES):
    now = arriving["lands_at"].between(hours[number], hours[number + 1], inclusive="left")
    paid_now = payments["paid_at"].between(hours[number], hours[number + 1], inclusive="left")
    land(arriving[now].drop(columns="lands_at"), f"{folder}/orders", number)
    land(payments[paid_now], f"{folder}/payments", number)
closing = pd.Timestamp("2024-05-06 15:00", tz="UTC")
land(
    pd.DataFrame({"order_id": ["closing"], "ordered_at": [closing]}), f"{folder}/orders", FILES
)
land(pd.DataFrame({"order_id": ["nobody"], "paid_at": [closing]}), f"{folder}/payments", FILES)

# COMMAND ----------


# The rows of this notebook.
def streams():
    return (
        landed(spark, f"{folder}/orders", "order_id string, ordered_at timestamp"),
        landed(
            spark, f"{folder}/payments", "order_id string, paid_at timestamp, method string"
        ),
    )


def run(rows, name: str):
    """Write a stream into files; their rows but for the closing order, and the query."""
    writer = rows.writeStream.format("parquet").option(
        "checkpointLocation", f"{folder}/{name}_checkpoint"
    )
    query = writer.trigger(availableNow=True).start(f"{folder}/{name}")
    query.awaitTermination()
    return spark.read.parquet(f"{folder}/{name}").where("order_id <> 'closing'"), query


# COMMAND ----------

# MAGIC %md
# MAGIC ## The join

# COMMAND ----------

order_stream, payment_stream = streams()
left = order_stream.withWatermark("ordered_at", "10 minutes").alias("o")
right = payment_stream.withWatermark("paid_at", "10 minutes").alias("p")
joined = left.join(
    right,
    F.expr("""
        o.order_id = p.order_id
        AND p.paid_at BETWEEN o.ordered_at AND o.ordered_at + INTERVAL 30 MINUTES
    """),
    "leftOuter",
).select("o.order_id", "o.ordered_at", "p.paid_at", "p.method")
by_join, query = run(joined, "joined")
dropped = sum(
    operator["numRowsDroppedByWatermark"]
    for progress in query.recentProgress
    if "addBatch" in progress["durationMs"]
    for operator in progress["stateOperators"]
)
by_join.orderBy("ordered_at", "paid_at").show(5)
print(f"{by_join.count()} rows; {dropped} rows were late, and the join dropped them")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The same with a purgatory
# MAGIC
# MAGIC [The how-to page](../docs/how-to/from_a_join.md#what-replaces-each-part) says what replaces each part.

# COMMAND ----------

purgatory = Purgatory(
    operations=Operations(
        id="order_id",
        keys="order_id",
        created="ordered_at",
        timeout="30 minutes",
        watermark="10 minutes",
    ),
    completions=Completions(
        key="order_id", time="paid_at", columns=["method"], watermark="10 minutes"
    ),
    criterion=criteria.any_key(),
    emit="final",
    shards=2,
)
by_purgatory, _ = run(purgatory.resolve(*streams()), "outcomes")
by_purgatory.orderBy("ordered_at").select(
    "order_id", "status", "resolved_at", "late", "event.time", "event.method"
).show(5)
by_purgatory.groupBy("status", "late").count().orderBy("status", "late").show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Row by row
# MAGIC
# MAGIC An ordinary order has the same row in both.

# COMMAND ----------

# The check of this notebook.
ordinary = ~F.col("order_id").isin([f"order-{i:03}" for i in special])
expected = by_join.where(ordinary).select(
    "order_id",
    F.when(F.col("paid_at").isNull(), "EXPIRED").otherwise("COMPLETED").alias("status"),
    "paid_at",
    "method",
)
found = by_purgatory.where(ordinary).select(
    "order_id",
    "status",
    F.when(F.col("status") == "COMPLETED", F.col("resolved_at")).alias("paid_at"),
    "event.method",
)
assert expected.count() == found.count() == ORDERS - len(special)
assert expected.exceptAll(found).isEmpty() and found.exceptAll(expected).isEmpty()
print(f"{found.count()} ordinary orders: the same status and the same time of payment in both")

# COMMAND ----------

# MAGIC %md
# MAGIC ## What the join cannot say
# MAGIC
# MAGIC * Two payments of one order make two rows. The purgatory gives one outcome, at the first payment.
# MAGIC * An order that lands twice makes two equal rows. The purgatory says DUPLICATE, with a reason.
# MAGIC * A late order makes no row; only a counter of the query shows it. The purgatory gives its outcome, with `late`.
# MAGIC   Here it is EXPIRED: its payment came long before it and is forgotten.
# MAGIC * "Three of five acknowledgements" or "payments that add up to the amount" is not a join. It is a
# MAGIC   [criterion](../docs/criteria.md).

# COMMAND ----------

kinds = {
    "ordinary": sorted(set(range(ORDERS)) - set(special)),
    "paid in two parts": in_parts,
    "landed twice": twice,
    "landed late": late,
}
results = {
    "join": by_join.groupBy("order_id").count(),
    "purgatory": by_purgatory.where("status <> 'DUPLICATE'").groupBy("order_id").count(),
}
counts = {}
for name, rows in results.items():
    per_order = {row["order_id"]: row["count"] for row in rows.collect()}
    for kind, numbers in kinds.items():
        counts[name, kind] = [per_order.get(f"order-{i:03}", 0) for i in numbers]

assert set(counts["join", "ordinary"]) == {1}
assert set(counts["join", "paid in two parts"]) == set(counts["join", "landed twice"]) == {2}
assert set(counts["join", "landed late"]) == {0} and dropped == len(late)
assert all(set(counts["purgatory", kind]) == {1} for kind in kinds)
assert by_purgatory.where("status = 'DUPLICATE' AND reason IS NOT NULL").count() == len(twice)
assert {row["order_id"] for row in by_purgatory.where("late").collect()} == {
    f"order-{i:03}" for i in late
}

# COMMAND ----------

figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
for i, name in enumerate(results):
    rows = [np.mean(counts[name, kind]) for kind in kinds]
    bars = axes.bar(np.arange(len(kinds)) + 0.4 * i - 0.2, rows, width=0.4, label=name)
    axes.bar_label(bars)
axes.set_xticks(
    range(len(kinds)), [f"{kind}\n({len(numbers)} orders)" for kind, numbers in kinds.items()]
)
axes.set(
    title="Result rows for an order, without DUPLICATE rows",
    xlabel="kind of order",
    ylabel="rows for each order",
)
axes.margins(y=0.25)
axes.legend(loc="upper left", ncols=2)
plt.show()
