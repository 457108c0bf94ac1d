# Databricks notebook source
# MAGIC %md
# MAGIC # 1. A tour: orders that wait for their payments
# MAGIC
# MAGIC Each order is an *operation* that waits for a payment until its deadline. Payments are *events*. The purgatory
# MAGIC gives every order exactly one outcome. This notebook streams two hours of orders and payments, and writes the
# MAGIC outcomes into a Delta table.

# COMMAND ----------

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from notebook_support import counters, data_files, landed, local_session, work_folder
from pyspark.sql import functions as F

from spark_purgatory import (
    Completions,
    Operations,
    Purgatory,
    RecordAccumulator,
    criteria,
    gauges,
)
from spark_purgatory.demo.landing import write_landing
from spark_purgatory.demo.runner import recount

if "spark" not in globals():
    spark = local_session()
folder = work_folder(globals().get("dbutils"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The data
# MAGIC
# MAGIC Six files of orders and six of payments, each with what landed in 15 minutes. An order has its own deadline: 10
# MAGIC minutes for a card, 20 for a wallet, 45 for an invoice. Some payments never come or come too late, some orders
# MAGIC land twice, and a few are broken.

# COMMAND ----------

written = write_landing(Path(folder, "landing"), operations=6000, seed=7)
print(written)

ORDERS = (
    "order_id string, customer_id bigint, method string, amount decimal(10,2), "
    "ordered_at timestamp, pay_by timestamp, landed_at timestamp"
)
PAYMENTS = (
    "payment_id string, order_id string, amount decimal(10,2), "
    "paid_at timestamp, landed_at timestamp"
)
orders = landed(spark, f"{folder}/landing/orders", ORDERS)
payments = landed(spark, f"{folder}/landing/payments", PAYMENTS)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The purgatory
# MAGIC
# MAGIC An order is complete at the first payment with its id. The rows of each input may arrive 10 minutes out of
# MAGIC order (`watermark`).

# COMMAND ----------

purgatory = Purgatory(
    operations=Operations(
        id="order_id",
        keys="order_id",
        created="ordered_at",
        deadline="pay_by",
        watermark="10 minutes",
    ),
    completions=Completions(key="order_id", time="paid_at", watermark="10 minutes"),
    criterion=criteria.any_key(),
    shards=4,
)
outcomes = purgatory.resolve(orders, payments)

# COMMAND ----------

# MAGIC %md
# MAGIC `RecordAccumulator` writes the outcomes into a Delta table, when a file is full or a row has waited as long as
# MAGIC `linger`. With `availableNow` the query reads everything there is, writes it, and ends.

# COMMAND ----------

accumulator = RecordAccumulator(
    path=f"{folder}/outcomes", partition_by="status", batch_size="16 MiB"
)
query = accumulator.write_stream(
    outcomes, checkpoint=f"{folder}/checkpoint", trigger={"availableNow": True}
)
query.awaitTermination()

table = accumulator.read(spark)
first = F.struct("order_id", "wait_ms", "reason")
one_of_each = table.groupBy("status").agg(
    F.min_by(first, F.struct("landed_at", "order_id")).alias("first")
)
one_of_each.select("status", "first.*").orderBy("status").show(truncate=False)
table.groupBy("status").count().orderBy("status").show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## No order is lost
# MAGIC
# MAGIC Orders received = outcomes + orders that still wait. The counters of the micro-batches, the table and the
# MAGIC checkpoint agree. Plain SQL over the landed files finds the same status for every order.

# COMMAND ----------

# The check of this notebook.
per_batch = counters(query)
waiting = gauges(spark, checkpoint=f"{folder}/checkpoint")["pending"]
assert per_batch["received"].sum() == written.orders
assert written.orders == table.count() + waiting
assert per_batch["pending_change"].sum() == waiting > 0

counted = recount(spark, Path(folder, "landing"), Path(folder, "outcomes"))
assert counted.pop("PENDING").expected == waiting
assert all(status.different == 0 for status in counted.values())
print(f"{written.orders:,} orders = {table.count():,} outcomes + {waiting:,} waiting")

# COMMAND ----------

# MAGIC %md
# MAGIC ## No paid order waited longer than its deadline
# MAGIC
# MAGIC `wait_ms` is the time from the order to its payment, in event time.

# COMMAND ----------

paid = table.where("status = 'COMPLETED'").select("method", "wait_ms").toPandas()
deadlines = {"card": 10, "wallet": 20, "invoice": 45}
figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
waits = [paid.loc[paid["method"] == method, "wait_ms"] / 60_000 for method in deadlines]
colors = ["tab:blue", "tab:orange", "tab:green"]
for method, waited, color in zip(deadlines, waits, colors, strict=True):
    axes.hist(
        waited,
        bins=np.arange(0, 46, 1),
        histtype="step",
        linewidth=2,
        color=color,
        label=f"paid by {method}",
    )
for (method, minutes), color in zip(deadlines.items(), colors, strict=True):
    axes.axvline(
        minutes, color=color, linestyle="--", label=f"deadline of {method}: {minutes} min"
    )
axes.set(
    title="How long completed orders waited for their payment",
    xlabel="wait (minutes)",
    ylabel="orders (logarithmic)",
)
axes.set_yscale("log")
axes.legend(ncols=2)
plt.show()

for method, minutes in zip(deadlines, waits, strict=True):
    assert minutes.between(0, deadlines[method]).all()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Orders leave when they are paid, or when the watermark reaches their deadline
# MAGIC
# MAGIC The changes of all micro-batches add up to the number of orders that wait. An order leaves as COMPLETED in the
# MAGIC micro-batch of its payment, and as EXPIRED once the watermark has reached its deadline, never before.

# COMMAND ----------

figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
number = np.arange(len(per_batch)) + 1
below = np.zeros(len(per_batch))
for status, color in {"completed": "#2e7d32", "expired": "#ef6c00"}.items():
    axes.bar(
        number,
        per_batch[status],
        color=color,
        bottom=below,
        width=0.6,
        label=f"{status.upper()} in this micro-batch",
    )
    below += per_batch[status].to_numpy()
axes.plot(number, per_batch["pending_change"].cumsum(), "k-o", label="waiting after it")
axes.set(
    title="Orders resolved and waiting, by micro-batch",
    xlabel="micro-batch",
    ylabel="orders",
    xticks=number,
)
axes.margins(y=0.35)
axes.legend(loc="upper left", ncols=3)
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## One file for each status
# MAGIC
# MAGIC The table is partitioned by status. A plain append would have written at least one file for each status in each
# MAGIC micro-batch ([notebook 4](04_small_files.py)).

# COMMAND ----------

files = data_files(spark, f"{folder}/outcomes", by="status")
statuses = [name for name in per_batch.columns if name.upper() in set(files["status"])]
plain = int((per_batch[statuses] > 0).to_numpy().sum())
print(files[["status", "rows", "bytes"]])

# COMMAND ----------

figure, axes = plt.subplots(figsize=(9, 3), layout="constrained")
bars = axes.barh(files["status"], files["bytes"] / 1024)
axes.bar_label(bars, [f"{rows:,} rows" for rows in files["rows"]], padding=4)
axes.margins(x=0.15)
axes.set(
    title=f"{len(files)} files in the table; a plain append makes at least {plain}",
    xlabel="size of the file (KiB)",
    ylabel="status",
)
plt.show()

assert len(files) == len(statuses) < plain
