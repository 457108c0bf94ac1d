# Databricks notebook source
# MAGIC %md
# MAGIC # 5. What waits, and why: reading a checkpoint
# MAGIC
# MAGIC "Why has upload 17 no outcome yet?" `pending` reads the answer from the checkpoint as a DataFrame: one row for
# MAGIC each operation that waits. `gauges` gives totals. Both work while the query runs, and from another cluster.

# COMMAND ----------

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from notebook_support import counters, land, landed, local_session, work_folder
from pyspark.sql import functions as F

from spark_purgatory import Completions, Operations, Purgatory, criteria, gauges, pending

if "spark" not in globals():
    spark = local_session()
folder = work_folder(globals().get("dbutils"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The data
# MAGIC
# MAGIC An upload is complete when its five parts have come. Every two minutes an upload begins, for five hours. A small
# MAGIC one may take one hour, a large one three. Part `p4` goes through a bad line: many of them never come.

# COMMAND ----------

# The rows of this notebook.
UPLOADS, PARTS, FILES = 150, ["p1", "p2", "p3", "p4", "p5"], 5
rng = np.random.default_rng(5)
begun = pd.Timestamp("2024-05-06 08:00", tz="UTC") + pd.to_timedelta(
    np.arange(UPLOADS) * 2, "min"
)
size = rng.choice(["small", "large"], UPLOADS)
uploads = pd.DataFrame(
    {
        "upload_id": [f"upload-{i:03}" for i in range(UPLOADS)],
        "size": size,
        "parts": [PARTS] * UPLOADS,
        "begun_at": begun,
        "due_at": begun + pd.to_timedelta(np.where(size == "small", 60, 180), "min"),
    }
)
minutes = rng.gamma(2, 12, (UPLOADS, len(PARTS))).round(1)  # (uploads, parts)
lost = rng.random((UPLOADS, len(PARTS))) < [0.02, 0.02, 0.02, 0.4, 0.02]
of_upload, of_part = np.nonzero(~lost)
parts = pd.DataFrame(
    {
        "upload_id": uploads["upload_id"].to_numpy()[of_upload],
        "part": np.array(PARTS)[of_part],
        "stored_at": begun[of_upload] + pd.to_timedelta(minutes[of_upload, of_part], "min"),
    }
)
# Each hour makes a file, of what happened in it; what happens later has not landed.
edges = pd.date_range("2024-05-06 08:00", periods=FILES + 1, freq="h", tz="UTC")
for number in range(FILES):
    in_hour = slice(edges[number], edges[number + 1] - pd.Timedelta("1us"))
    land(
        uploads[uploads["begun_at"].between(in_hour.start, in_hour.stop)],
        f"{folder}/uploads",
        number,
    )
    land(
        parts[parts["stored_at"].between(in_hour.start, in_hour.stop)],
        f"{folder}/parts",
        number,
    )

# COMMAND ----------

# MAGIC %md
# MAGIC ## The query
# MAGIC
# MAGIC With `emit="final"` an outcome is held back until the watermark has reached its time. So an upload whose parts
# MAGIC have all come may still wait.

# COMMAND ----------

purgatory = Purgatory(
    operations=Operations(
        id="upload_id",
        keys="parts",
        created="begun_at",
        deadline="due_at",
        watermark="10 minutes",
    ),
    completions=Completions(key="part", time="stored_at", watermark="10 minutes"),
    criterion=criteria.all_keys(),
    scope="upload_id",
    emit="final",
    shards=2,
)
outcomes = purgatory.resolve(
    landed(spark, f"{folder}/uploads", "upload_id string, size string, parts array<string>, "
           "begun_at timestamp, due_at timestamp"),
    landed(spark, f"{folder}/parts", "upload_id string, part string, stored_at timestamp"),
)  # fmt: skip
checkpoint = f"{folder}/checkpoint"
writer = outcomes.writeStream.format("parquet").option("checkpointLocation", checkpoint)
query = writer.trigger(availableNow=True).start(f"{folder}/outcomes")
query.awaitTermination()
spark.read.parquet(f"{folder}/outcomes").groupBy("size", "status").count().orderBy(
    "size", "status"
).show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## What waits
# MAGIC
# MAGIC The columns of the uploads, and then: `watch_keys` (what it waits for), `missing_keys`, `matched` (events so
# MAGIC far), `criterion`, `reached`, `needed`, `progress`, `created_at`, `deadline_at`, `held_until`, `age_ms` and
# MAGIC `remaining_ms`. Ages and remaining times are measured from the watermark.

# COMMAND ----------

waiting = pending(spark, checkpoint=checkpoint).cache()
for name, value in gauges(spark, checkpoint=checkpoint).items():
    print(f"{name:32} {value}")

# COMMAND ----------

# MAGIC %md
# MAGIC The uploads whose deadline comes next:

# COMMAND ----------

minutes_left = F.round(F.col("remaining_ms") / 60_000, 1).alias("minutes_left")
soon = waiting.where("held_until IS NULL").orderBy("remaining_ms", "upload_id")
soon.select("upload_id", "size", "progress", "missing_keys", "deadline_at", minutes_left).show(
    5, truncate=False
)

# COMMAND ----------

# MAGIC %md
# MAGIC Complete uploads that are held until the watermark reaches the time of their last part:

# COMMAND ----------

held = waiting.where("held_until IS NOT NULL")
held.select("upload_id", "progress", "held_until", "deadline_at").orderBy("held_until").show(
    5, truncate=False
)

# COMMAND ----------

# MAGIC %md
# MAGIC pandas finds the same from the rows that landed.

# COMMAND ----------

stored = parts[parts["stored_at"] < edges[-1]].merge(uploads, on="upload_id")
stored = stored[stored["stored_at"] <= stored["due_at"]]
reached = stored.groupby("upload_id")["part"].nunique()
for row in waiting.collect():
    came = reached.get(row["upload_id"], 0)
    assert (row["reached"], row["needed"], row["progress"]) == (came, 5, f"{came} of 5")
    assert len(row["missing_keys"]) == 5 - came
    assert (row["held_until"] is not None) == (came == 5)
    assert row["remaining_ms"] > 0
outcome_ids = spark.read.parquet(f"{folder}/outcomes").select("upload_id")
assert waiting.count() + outcome_ids.count() == UPLOADS
assert waiting.select("upload_id").intersect(outcome_ids).isEmpty()
assert gauges(spark, checkpoint=checkpoint)["pending"] == waiting.count()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Part p4 is missing most often
# MAGIC
# MAGIC How much time is left, by how many parts have come; and which parts are missing.

# COMMAND ----------

now = (
    waiting.where("held_until IS NULL")
    .select("reached", "remaining_ms", "missing_keys")
    .toPandas()
)
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
groups = [now.loc[now["reached"] == n, "remaining_ms"] / 60_000 for n in range(5)]
colors = plt.get_cmap("viridis")(np.linspace(0.95, 0.1, 5))
left.hist(
    groups,
    bins=np.arange(0, 191, 10),
    stacked=True,
    color=colors,
    label=[f"{n} of 5" for n in range(5)],
)
left.set(
    title="Time left until the deadline", xlabel="time left (minutes)", ylabel="waiting uploads"
)
left.legend(title="parts that came")
missing = now["missing_keys"].explode().value_counts().reindex(PARTS, fill_value=0)
bars = right.bar(missing.index, missing)
right.bar_label(bars)
right.margins(y=0.15)
right.set(title="Parts that waiting uploads miss", xlabel="part", ylabel="waiting uploads")
plt.show()

assert missing.idxmax() == "p4"

# COMMAND ----------

# MAGIC %md
# MAGIC ## What waited after an earlier micro-batch
# MAGIC
# MAGIC A checkpoint keeps the state after its last 100 micro-batches. `batch_id` reads an earlier one.

# COMMAND ----------

changes = counters(query)["pending_change"].cumsum()
then = {
    batch_id: pending(
        spark, checkpoint=checkpoint, batch_id=batch_id, columns=["upload_id"]
    ).count()
    for batch_id in (0, 2)
}
print(then)

# COMMAND ----------

figure, axes = plt.subplots(figsize=(9, 3.5), layout="constrained")
axes.plot(changes.index, changes, "-o", label="from the counters of the query")
axes.scatter(
    list(then),
    list(then.values()),
    s=160,
    facecolors="none",
    edgecolors="tab:red",
    zorder=3,
    label="read with pending(batch_id=...)",
)
axes.set(
    title="Uploads that wait after each micro-batch",
    xlabel="micro-batch (batch_id)",
    ylabel="waiting uploads",
    xticks=changes.index,
    ylim=(0, None),
)
axes.legend()
axes.grid(alpha=0.3)
plt.show()

assert all(changes[batch_id] == count for batch_id, count in then.items())
