# Databricks notebook source
# MAGIC %md
# MAGIC # 3. What happens to late data
# MAGIC
# MAGIC The watermark is the only clock of the purgatory. A row is *late* if its time is at or before the watermark
# MAGIC when the row arrives. A stream-stream join drops such rows. The purgatory gives them an outcome, or counts
# MAGIC them.
# MAGIC
# MAGIC This notebook plays nine orders. Each may wait for 30 minutes, and each input may be 10 minutes out of order.

# COMMAND ----------

import matplotlib.dates as mdates
import matplotlib.pyplot as plt
import pandas as pd
from notebook_support import counters, land, landed, local_session, work_folder

from spark_purgatory import Completions, Operations, Purgatory, criteria, pending

if "spark" not in globals():
    spark = local_session()
folder = work_folder(globals().get("dbutils"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The data
# MAGIC
# MAGIC Five files of each input. One micro-batch reads one file of each.

# COMMAND ----------


# The rows of this notebook.
def at(clock: str) -> pd.Timestamp:
    return pd.Timestamp(f"2024-05-06 {clock}", tz="UTC")


BROKEN_CLOCK = pd.Timestamp("2042-01-01", tz="UTC")
orders = [
    [("A", at("12:00")), ("B", at("12:15"))],
    [("C", at("13:00")), ("F", BROKEN_CLOCK)],
    [("D", at("12:40")), ("E", at("12:05"))],  # both are late: the watermark is at 12:50
    [("G", at("13:50"))],
    [("H", at("14:15")), ("I", at("14:30"))],
]
payments = [
    [("A", at("12:10"))],
    [("C", at("13:05"))],
    [("D", at("12:55"))],
    [
        ("B", at("12:35")),
        ("nobody", at("13:55")),
    ],  # B's payment was made in time and comes too late
    [("H", at("14:31"))],
]
for number, (some_orders, some_payments) in enumerate(zip(orders, payments, strict=True)):
    land(
        pd.DataFrame(some_orders, columns=["order_id", "ordered_at"]),
        f"{folder}/orders",
        number,
    )
    land(
        pd.DataFrame(some_payments, columns=["order_id", "paid_at"]),
        f"{folder}/payments",
        number,
    )

# COMMAND ----------

purgatory = Purgatory(
    operations=Operations(
        id="order_id",
        keys="order_id",
        created="ordered_at",
        timeout="30 minutes",
        watermark="10 minutes",
        idle_after="1 minute",
    ),
    completions=Completions(
        key="order_id", time="paid_at", watermark="10 minutes", idle_after="1 minute"
    ),
    criterion=criteria.any_key(),
    max_future="1 day",
    shards=1,
)


def run(heartbeats: bool):
    """Read what has landed, on one checkpoint, and add the outcomes to one table."""
    outcomes = purgatory.resolve(
        landed(spark, f"{folder}/orders", "order_id string, ordered_at timestamp"),
        landed(spark, f"{folder}/payments", "order_id string, paid_at timestamp"),
        heartbeats=heartbeats,
    )
    writer = outcomes.writeStream.format("parquet").option(
        "checkpointLocation", f"{folder}/checkpoint"
    )
    query = writer.trigger(availableNow=True).start(f"{folder}/outcomes")
    query.awaitTermination()
    return query


query = run(heartbeats=False)
table = spark.read.parquet(f"{folder}/outcomes").orderBy("order_id")
table.drop("missing_keys", "reason").show(truncate=False)
table.where("reason IS NOT NULL").select("order_id", "reason").show(truncate=False)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Order by order
# MAGIC
# MAGIC * **A**, **C**, **H** were paid in time: COMPLETED.
# MAGIC * **B** was paid at 12:35, before its deadline at 12:45. But the payment arrived when the watermark had passed
# MAGIC   that deadline and B was already EXPIRED. An outcome never changes. The payment is counted in `events_late`.
# MAGIC * **D** arrived late (`late` is true), but its deadline was still ahead of the watermark, and its payment at
# MAGIC   12:55 came. Events before the watermark do not count for it, because they may be forgotten already.
# MAGIC * **E** arrived late (`late` is true), after its deadline. It is resolved at once.
# MAGIC * **F** has a time far in the future. It is REJECTED with a `reason` and does not move the watermark
# MAGIC   (`max_future`).
# MAGIC * **G** had a deadline at 14:20. It expired when the watermark reached 14:20, not before.
# MAGIC * **I** still waits: no row has moved the watermark to its deadline.

# COMMAND ----------

found = {row["order_id"]: (row["status"], row["late"]) for row in table.collect()}
assert found == {
    "A": ("COMPLETED", False),
    "B": ("EXPIRED", False),
    "C": ("COMPLETED", False),
    "D": ("COMPLETED", True),
    "E": ("EXPIRED", True),
    "F": ("REJECTED", False),
    "G": ("EXPIRED", False),
    "H": ("COMPLETED", False),
}
per_batch = counters(query)
assert per_batch["events_late"].sum() == 1
waiting = pending(spark, checkpoint=f"{folder}/checkpoint").collect()
assert [row["order_id"] for row in waiting] == ["I"]

# COMMAND ----------

# MAGIC %md
# MAGIC ## A row at or below the watermark is late
# MAGIC
# MAGIC In each micro-batch the watermark is the smaller of two times: the latest order and the latest payment before
# MAGIC this micro-batch, each less 10 minutes. Rows at or below the line are late. F is not in the picture.

# COMMAND ----------

figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
watermarks = per_batch["watermark"].reset_index(drop=True)
number = watermarks.index + 1
known = watermarks.notna()
axes.step(
    number[known],
    watermarks[known],
    where="mid",
    color="tab:red",
    label="watermark of the micro-batch",
)
for rows, shift, marker, name in (
    (orders, -0.12, "o", "order"),
    (payments, 0.12, "^", "payment"),
):
    points = [
        (i + 1, who, when)
        for i, batch in enumerate(rows)
        for who, when in batch
        if when != BROKEN_CLOCK
    ]
    for late in (False, True):
        chosen = [
            p for p in points if (known[p[0] - 1] and p[2] <= watermarks[p[0] - 1]) == late
        ]
        axes.scatter(
            [batch + shift for batch, _, _ in chosen],
            [when for _, _, when in chosen],
            marker=marker,
            color="tab:blue" if name == "order" else "tab:green",
            facecolors="none" if late else None,
            label=f"{name}, late" if late else name,
        )
        for batch, who, when in chosen:
            side = -8 if name == "order" else 8
            axes.annotate(
                who,
                (batch + shift, when),
                (side, 0),
                textcoords="offset points",
                va="center",
                ha="right" if side < 0 else "left",
            )
axes.set(
    title="Rows by micro-batch and event time",
    xlabel="micro-batch",
    ylabel="event time (UTC)",
    xticks=number,
)
axes.yaxis.set_major_formatter(mdates.DateFormatter("%H:%M"))
axes.legend(loc="upper left")
axes.grid(alpha=0.3)
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Late orders get their outcome too

# COMMAND ----------

COLORS = {"COMPLETED": "#2e7d32", "EXPIRED": "#ef6c00", "waiting": "#90caf9"}
when_ordered = {who: when for batch in orders for who, when in batch if when != BROKEN_CLOCK}
when_paid = {who: when for batch in payments for who, when in batch if who in when_ordered}
names = sorted(when_ordered)
figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
for status, color in COLORS.items():
    chosen = [who for who in names if found.get(who, ("waiting", False))[0] == status]
    starts = [mdates.date2num(when_ordered[who]) for who in chosen]
    axes.barh(
        [names.index(who) for who in chosen],
        30 / 1440,
        left=starts,
        color=color,
        height=0.5,
        label=status,
    )
paid = [mdates.date2num(when) for when in when_paid.values()]
axes.scatter(
    paid, [names.index(who) for who in when_paid], color="black", zorder=3, label="payment"
)
ticks = [f"{who}, late" if found.get(who, ("", False))[1] else who for who in names]
axes.set_yticks(range(len(names)), ticks)
axes.invert_yaxis()
axes.xaxis.set_major_locator(mdates.MinuteLocator([0, 30]))
axes.xaxis.set_major_formatter(mdates.DateFormatter("%H:%M"))
axes.margins(x=0.03)
axes.set(title="From order to deadline, by outcome", xlabel="event time (UTC)", ylabel="order")
axes.legend()
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## A source is silent, and the last order expires all the same
# MAGIC
# MAGIC Order I waits, and no more rows come. With `idle_after="1 minute"` each micro-batch adds a heartbeat row to a
# MAGIC silent input, whose time is now less one minute. The first run above had `heartbeats=False`, because it still
# MAGIC read a backlog. The next run has them, and I expires.

# COMMAND ----------

run(heartbeats=True)
spark.read.parquet(f"{folder}/outcomes").where("order_id = 'I'").show(truncate=False)

# COMMAND ----------

last = spark.read.parquet(f"{folder}/outcomes").where("order_id = 'I'").collect()
assert [(row["status"], row["wait_ms"]) for row in last] == [("EXPIRED", 30 * 60_000)]
assert pending(spark, checkpoint=f"{folder}/checkpoint").isEmpty()
