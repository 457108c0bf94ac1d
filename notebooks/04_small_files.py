# Databricks notebook source
# MAGIC %md
# MAGIC # 4. The accumulator against small files
# MAGIC
# MAGIC A plain streaming append writes at least one new file for each partition of the table in every micro-batch.
# MAGIC `RecordAccumulator` works like Kafka's producer: it collects rows for each partition until a file is full, or
# MAGIC until the oldest row has waited as long as `linger`. It takes any streaming DataFrame.

# COMMAND ----------


import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from notebook_support import data_files, land, landed, local_session, work_folder

from spark_purgatory import RecordAccumulator

if "spark" not in globals():
    spark = local_session()
folder = work_folder(globals().get("dbutils"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The data
# MAGIC
# MAGIC Six files of sensor readings from four cities. One micro-batch reads one file.

# COMMAND ----------

FILES, ROWS, CITIES = 6, 2800, ["Bern", "Lyon", "Porto", "Turku"]
rng = np.random.default_rng(11)
for number in range(FILES):
    readings = {
        "reading_id": np.arange(ROWS) + number * ROWS,
        "city": rng.choice(CITIES, ROWS, p=[0.4, 0.3, 0.2, 0.1]),
        "reading": [rng.bytes(60).hex() for _ in range(ROWS)],
    }
    land(pd.DataFrame(readings), f"{folder}/readings", number)

readings = landed(spark, f"{folder}/readings", "reading_id bigint, city string, reading string")

# COMMAND ----------

# MAGIC %md
# MAGIC ## A plain append

# COMMAND ----------

writer = (
    readings.writeStream.format("delta")
    .partitionBy("city")
    .option("checkpointLocation", f"{folder}/plain_check")
)
writer.trigger(availableNow=True).start(f"{folder}/plain").awaitTermination()
plain = data_files(spark, f"{folder}/plain", by="city")
print(plain.groupby("city")["bytes"].agg(files="count", mean_bytes="mean", max_bytes="max"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The accumulator
# MAGIC
# MAGIC The same stream, with files of about 384 KiB. The default is `batch_size="128 MiB"`.

# COMMAND ----------

BATCH_SIZE = 384 * 1024
accumulator = RecordAccumulator(
    path=f"{folder}/accumulated", partition_by="city", batch_size=BATCH_SIZE, linger="5 minutes"
)
query = accumulator.write_stream(
    readings, checkpoint=f"{folder}/acc_check", trigger={"availableNow": True}
)
query.awaitTermination()
accumulated = data_files(spark, f"{folder}/accumulated", by="city")
print(
    accumulated.groupby("city")["bytes"].agg(files="count", mean_bytes="mean", max_bytes="max")
)

# COMMAND ----------

# MAGIC %md
# MAGIC Both tables have the same rows, each exactly once.

# COMMAND ----------

both = [
    spark.read.format("delta").load(f"{folder}/{name}") for name in ("plain", "accumulated")
]
assert both[0].exceptAll(both[1]).isEmpty() and both[1].exceptAll(both[0]).isEmpty()
assert both[1].count() == FILES * ROWS

# COMMAND ----------

# MAGIC %md
# MAGIC ## Fewer files, of the size that was asked for

# COMMAND ----------

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
sinks = {"plain append": (plain, "tab:orange"), "RecordAccumulator": (accumulated, "tab:blue")}
for i, (name, (files, color)) in enumerate(sinks.items()):
    counts = files.groupby("city")["file"].count().reindex(CITIES)
    bars = left.bar(
        np.arange(len(CITIES)) + 0.4 * i - 0.2, counts, width=0.4, color=color, label=name
    )
    left.bar_label(bars)
    right.hist(
        files["bytes"] / 1024, bins=np.arange(0, 441, 20), color=color, alpha=0.8, label=name
    )
left.set_xticks(range(len(CITIES)), CITIES)
left.set(
    title="Files in each partition", xlabel="city (partition of the table)", ylabel="files"
)
left.margins(y=0.3)
right.axvline(BATCH_SIZE / 1024, color="black", linestyle="--", label="batch_size: 384 KiB")
right.set(title="Sizes of the files", xlabel="size (KiB)", ylabel="files")
left.legend(loc="upper center", ncols=2)
right.legend()
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC The sizes of files are estimated before they are written. One that is much smaller is the last of its partition,
# MAGIC because the query ended.

# COMMAND ----------

assert len(plain) == FILES * len(CITIES)
assert len(accumulated) * 2 < len(plain)
smaller = accumulated[accumulated["bytes"] < 0.6 * BATCH_SIZE]
assert (smaller.groupby("city").size() <= 1).all()
assert accumulated["bytes"].max() < 1.3 * BATCH_SIZE

# COMMAND ----------

# MAGIC %md
# MAGIC ## The accumulator commits when a file is full
# MAGIC
# MAGIC The history of each table has its commits, with the number of files that each added. Until a file is full its
# MAGIC rows are staged in the checkpoint's folder. `accumulator.read(spark, staged=True)` shows them too.

# COMMAND ----------


def files_by_version(name: str) -> pd.Series:
    """How many files the table had after each commit, from its history."""
    history = (
        spark.sql(f"DESCRIBE HISTORY '{folder}/{name}'")
        .toPandas()
        .set_index("version")
        .sort_index()
    )
    return (
        history["operationMetrics"]
        .map(lambda metrics: int(metrics.get("numAddedFiles", metrics.get("numFiles", 0))))
        .cumsum()
    )


figure, axes = plt.subplots(figsize=(9, 3.5), layout="constrained")
growth = {}
for name, (path, color) in {
    "plain append": ("plain", "tab:orange"),
    "RecordAccumulator": ("accumulated", "tab:blue"),
}.items():
    growth[name] = files_by_version(path)
    axes.plot(
        range(1, len(growth[name]) + 1), growth[name].to_numpy(), "o-", color=color, label=name
    )
axes.set(
    title="Files in the table after each commit",
    xlabel="commit",
    ylabel="files",
    xticks=range(1, FILES + 1),
)
axes.legend()
axes.grid(alpha=0.3)
plt.show()

assert len(growth["RecordAccumulator"]) < len(growth["plain append"])
assert growth["plain append"].iloc[-1] == len(plain)
assert growth["RecordAccumulator"].iloc[-1] == len(accumulated)
