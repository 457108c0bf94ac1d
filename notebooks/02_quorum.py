# Databricks notebook source
# MAGIC %md
# MAGIC # 2. A quorum of acknowledgements
# MAGIC
# MAGIC A command goes to five replicas. It is done when three of them have acknowledged it. Each command is an
# MAGIC operation that waits for several keys, and each acknowledgement is an event on one key.

# COMMAND ----------

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from notebook_support import local_session
from pyspark.sql import functions as F

from spark_purgatory import Completions, Operations, Purgatory, criteria

if "spark" not in globals():
    spark = local_session()

# COMMAND ----------

# MAGIC %md
# MAGIC ## The data
# MAGIC
# MAGIC 400 commands, one a second, each with a timeout of 2 seconds. `r1` answers in 40 ms. `r5` answers in a second
# MAGIC and loses a third of its answers.

# COMMAND ----------

# The rows of this notebook.
COMMANDS, TIMEOUT_MS = 400, 2000
REPLICAS = ["r1", "r2", "r3", "r4", "r5"]
USUAL_MS = [40, 60, 150, 500, 1000]
LOST = [0.02, 0.02, 0.05, 0.10, 0.33]

rng = np.random.default_rng(3)
answers_ms = np.round(
    np.array(USUAL_MS) * rng.lognormal(0, 0.6, (COMMANDS, 5))
)  # (commands, replicas)
answers_ms[rng.random((COMMANDS, 5)) < LOST] = np.inf
sent_at = pd.Timestamp("2024-05-06 12:00", tz="UTC") + pd.to_timedelta(np.arange(COMMANDS), "s")
names = np.array([f"command-{i:03}" for i in range(COMMANDS)])

commands = spark.createDataFrame(
    pd.DataFrame({"command_id": names, "sent_at": sent_at, "replicas": [REPLICAS] * COMMANDS})
)
which, replica = np.nonzero(np.isfinite(answers_ms))
acknowledgements = spark.createDataFrame(
    pd.DataFrame(
        {
            "command_id": names[which],
            "replica": np.array(REPLICAS)[replica],
            "acked_at": sent_at[which] + pd.to_timedelta(answers_ms[which, replica], "ms"),
        }
    )
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Three of five
# MAGIC
# MAGIC `keys` is an array column: the replicas. `quorum(3)` holds when three different keys have had an event. A
# MAGIC replica's name alone does not identify the command, so `scope="command_id"` routes both inputs: a key is then a
# MAGIC replica *of a command*. Two streams would give the same outcomes as these two batch DataFrames.

# COMMAND ----------


def purgatory(criterion):
    return Purgatory(
        operations=Operations(
            id="command_id", keys="replicas", created="sent_at", timeout=f"{TIMEOUT_MS} ms"
        ),
        completions=Completions(key="replica", time="acked_at"),
        criterion=criterion,
        scope="command_id",
        shards=4,
    )


three_of_five = purgatory(criteria.quorum(3)).resolve(commands, acknowledgements).cache()
three_of_five.select("command_id", "status", "wait_ms", "matched", "missing_keys").orderBy(
    "command_id"
).show(5, False)
three_of_five.groupBy("status").count().orderBy("status").show()

# COMMAND ----------

# MAGIC %md
# MAGIC The wait is the time of the third acknowledgement. numpy finds the same from the answers.

# COMMAND ----------

# The check of this notebook.
third_ms = np.sort(answers_ms, axis=1)[:, 2]
found = three_of_five.orderBy("command_id").toPandas()
assert (found["status"] == np.where(third_ms <= TIMEOUT_MS, "COMPLETED", "EXPIRED")).all()
assert (found["wait_ms"] == np.minimum(third_ms, TIMEOUT_MS)).all()
print("all", len(found), "commands agree")

# COMMAND ----------

# MAGIC %md
# MAGIC ## What a stricter rule costs
# MAGIC
# MAGIC The same commands with one acknowledgement, with three of five, and with all five.

# COMMAND ----------

rules = {
    "any_key(): the first": purgatory(criteria.any_key()).resolve(commands, acknowledgements),
    "quorum(3): three of five": three_of_five,
    "all_keys(): all five": purgatory(criteria.all_keys()).resolve(commands, acknowledgements),
}
figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
shares = []
for label, outcomes in rules.items():
    waits_ms = np.sort(
        outcomes.where("status = 'COMPLETED'").select("wait_ms").toPandas()["wait_ms"]
    )
    shares.append(len(waits_ms) / COMMANDS)
    axes.step(
        waits_ms, np.arange(1, len(waits_ms) + 1) / COMMANDS * 100, where="post", label=label
    )
axes.axvline(TIMEOUT_MS, color="grey", linestyle="--", label="time-out: 2,000 ms")
axes.set(
    title="Commands that are complete after a wait",
    xlabel="wait (ms, logarithmic)",
    ylabel="share of commands (%)",
)
axes.set_xscale("log")
axes.legend(loc="upper left")
axes.grid(alpha=0.3)
plt.show()

assert shares == sorted(shares, reverse=True)

# COMMAND ----------

# MAGIC %md
# MAGIC ## A rule for each row
# MAGIC
# MAGIC With `by_row` each command brings its own rule and its own number. A command with an unknown rule is REJECTED,
# MAGIC with the reason. It does not stop the query.

# COMMAND ----------

number = F.substring("command_id", 9, 3).cast("int")
own_rules = commands.withColumn(
    "rule",
    F.when(number == 7, "most_keys")
    .when(number % 3 == 0, "any_key")
    .when(number % 3 == 1, "quorum")
    .otherwise("all_keys"),
).withColumn("need", F.when(F.col("rule") == "quorum", 3))
by_row = (
    purgatory(criteria.by_row(rule="rule", need="need"))
    .resolve(own_rules, acknowledgements)
    .cache()
)
by_row.groupBy("rule", "status").count().orderBy("rule", "status").show()
by_row.where("status = 'REJECTED'").select("command_id", "status", "reason").show(
    truncate=False, vertical=True
)

# COMMAND ----------

rejected = by_row.where("status = 'REJECTED'").collect()
assert [row["command_id"] for row in rejected] == ["command-007"]
quorums = by_row.where("rule = 'quorum'").select("command_id", "status", "wait_ms")
assert quorums.exceptAll(three_of_five.select("command_id", "status", "wait_ms")).isEmpty()

# COMMAND ----------

# MAGIC %md
# MAGIC ## The missing keys name the slow replica
# MAGIC
# MAGIC `missing_keys` has the keys without an event. For commands that waited for all five and expired, these are the
# MAGIC replicas that did not answer in time.

# COMMAND ----------

expired = rules["all_keys(): all five"].where("status = 'EXPIRED'")
blamed = (
    expired.select(F.explode("missing_keys").alias("replica"))
    .groupBy("replica")
    .count()
    .toPandas()
)
blamed = blamed.set_index("replica")["count"].reindex(REPLICAS, fill_value=0)

figure, axes = plt.subplots(figsize=(9, 3.5), layout="constrained")
bars = axes.bar(blamed.index, blamed)
axes.bar_label(bars)
axes.margins(y=0.15)
axes.set(
    title=f"Replicas without an answer in time, in {expired.count()} expired commands",
    xlabel="replica",
    ylabel="commands",
)
plt.show()

assert blamed.to_dict() == dict(
    zip(REPLICAS, (answers_ms > TIMEOUT_MS).sum(axis=0), strict=True)
)
