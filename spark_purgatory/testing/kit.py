"""A test kit for your own purgatory: your two DataFrames as streams, in random micro-batches, with restarts.

With ``emit="final"`` a stream gives the outcomes of a batch query, in whatever order and split its rows arrive. With
``emit="early"`` it gives the same statuses. The kit tries some orders, with your columns and configuration::

    def test_our_orders_come_out_alike_however_they_arrive(spark, tmp_path):
        outcomes = assert_stream_equals_batch(purgatory, orders, payments, tmp_path, seed=1)
        assert_exactly_once(orders, outcomes, id="order_id", may_be_pending=True)

`comparable` prepares outcomes for chispa: ``assert_df_equality(comparable(a), comparable(b), ignore_row_order=True)``.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.config import Completions, Operations
from spark_purgatory.config.options import watermark_ms
from spark_purgatory.errors import ConfigError
from spark_purgatory.schema import ORPHAN_COLUMNS, OUTCOME_COLUMNS
from spark_purgatory.spark.checkpoint.start_check import settings_to_start
from spark_purgatory.spark.operator.inputs import field_column
from spark_purgatory.spark.operator.purgatory import Purgatory
from spark_purgatory.spark.storage.spark_access import settings_at_start
from spark_purgatory.testing.splits import splits, watermark_us_after

SHOWN = 5  # ids that a failing assertion names


def assert_stream_equals_batch(
    purgatory: Purgatory,
    operations: DataFrame,
    completions: DataFrame,
    folder: Path | str,
    seed: int = 0,
    batches: int = 4,
    restarts: int = 1,
) -> DataFrame:
    """Stream both DataFrames in random micro-batches and compare the outcomes with those of a batch query.

    Every row is on time. Operations that wait at the last watermark have no outcome in either. Times must be after
    1970.

    Under ``emit="early"`` only the operations' own columns and ``status`` are compared, because the others depend on
    the order of arrival. Control events, or several rows with one id, are then refused: statuses would also
    depend on it.

    Args:
        purgatory: The configuration under test.
        operations: A batch DataFrame of operations.
        completions: A batch DataFrame of events.
        folder: An empty folder for the streams' files and the checkpoint.
        seed: The seed of the random order of arrival and split.
        batches: The number of micro-batches.
        restarts: The largest number of restarts on the same checkpoint.

    Returns:
        The outcomes of the stream.

    Raises:
        AssertionError: The outcomes differ; the message shows rows of both.
        ConfigError: ``emit`` is "early", and the statuses depend on the order of arrival.

    Example::

        assert_stream_equals_batch(purgatory, orders, payments, tmp_path, seed=1)
    """
    if purgatory.emit == "early":
        _check_early(purgatory, operations)
    shape = {"seed": seed, "batches": batches, "restarts": restarts}
    streamed, watermark_us = stream_outcomes(purgatory, operations, completions, folder, **shape)
    # A stream of no rows has its watermark at 0, where `as_of` cannot be.
    as_of = F.timestamp_micros(F.lit(max(watermark_us, 1000)))
    decided = purgatory.resolve(operations, completions, as_of=as_of)
    added = (*OUTCOME_COLUMNS, *purgatory.evidence_columns, *(ORPHAN_COLUMNS if purgatory.orphans != "none" else ()))
    known = ("status",) if purgatory.emit == "early" else tuple(name for name in added if name != "late")
    ignored = tuple(purgatory.prefix + name for name in added if name not in known)
    where = f"emit={purgatory.emit!r}, seed {seed}, {batches} micro-batches, {restarts} restarts"
    assert_outcomes_equal(streamed, decided, where, ignored)
    return streamed


def stream_outcomes(
    purgatory: Purgatory,
    operations: DataFrame,
    completions: DataFrame,
    folder: Path | str,
    seed: int = 0,
    batches: int = 4,
    restarts: int = 1,
) -> tuple[DataFrame, int]:
    """Stream both DataFrames in random micro-batches; arguments as in `assert_stream_equals_batch`.

    A restart is left out if rows of both inputs do not follow it.

    Returns:
        The outcomes, and the last watermark in microseconds since 1970.

    Example::

        outcomes, watermark_us = stream_outcomes(purgatory, orders, payments, tmp_path)
    """
    rng, folder = random.Random(seed), Path(folder)
    sides = {"created": operations, "time": completions}
    configs: dict[str, Operations | Completions] = {"created": purgatory.operations, "time": purgatory.completions}
    tables = {field: frame.toArrow() for field, frame in sides.items()}
    delays_us = {field: watermark_ms(config) * 1000 for field, config in configs.items()}
    created, times = (
        [{field: us, "row": i} for i, us in enumerate(_times_us(frame, configs[field], field))]
        for field, frame in sides.items()
    )
    delays = {"operations_delay_us": delays_us["created"], "events_delay_us": delays_us["time"]}
    plan = splits(rng, created, times, batches, **delays, lookback_us=purgatory.us_of("lookback"))[:-3]
    # After a restart, Spark's watermark does not move until both inputs have rows again.
    rests = [(number, plan[number:]) for number in range(1, len(plan))]
    heard = [n for n, rest in rests if any(batch.operations for batch in rest) and any(batch.events for batch in rest)]
    stops = {*rng.sample(heard, min(restarts, len(heard))), len(plan)}
    watermark_us, latest_us = 0, dict[str, int]()
    for number, batch in enumerate(plan, start=1):
        for field, chosen in (("created", batch.operations), ("time", batch.events)):
            _land(folder / field, number, tables[field].take(pa.array([row["row"] for row in chosen], pa.int64())))
        arrived = [("created", row) for row in batch.operations] + [("time", row) for row in batch.events]
        watermark_us = watermark_us_after(arrived, latest_us, delays_us, watermark_us)
        if number in stops:
            _run(purgatory, sides, folder)
            latest_us.clear()
    return operations.sparkSession.read.parquet(str(folder / "outcomes")), watermark_us


def assert_outcomes_equal(
    left: DataFrame, right: DataFrame, where: str = "", ignore: tuple[str, ...] = ("late",)
) -> None:
    """Raise AssertionError unless both DataFrames have the same rows, in any order.

    Args:
        left: Outcomes.
        right: Outcomes.
        where: Text that the error's message includes.
        ignore: Columns that may differ; ``late`` depends on the order of arrival.

    Example::

        assert_outcomes_equal(outcomes, expected)
    """
    counts = [Counter(str(row) for row in comparable(frame, ignore).collect()) for frame in (left, right)]
    only = [list((mine - theirs).elements()) for mine, theirs in (counts, counts[::-1])]
    if only[0] or only[1]:
        shown = "\n".join(f"  {side} {row}" for side, rows in zip("<>", only, strict=True) for row in rows[:SHOWN])
        raise AssertionError(f"{len(only[0])} rows only on the left, {len(only[1])} only on the right {where}\n{shown}")


def comparable(outcomes: DataFrame, ignore: tuple[str, ...] = ("late",)) -> DataFrame:
    """Return outcomes without ``ignore`` and with sorted missing keys, to compare them in any order of rows.

    Args:
        outcomes: Outcomes.
        ignore: Columns to leave out.

    Example::

        chispa.assert_df_equality(comparable(outcomes), comparable(expected), ignore_row_order=True)
    """
    kept = [name for name in outcomes.columns if name not in ignore]
    columns = {name: F.sort_array(name) if name.endswith("missing_keys") else F.col(f"`{name}`") for name in kept}
    return outcomes.select(*(column.alias(name) for name, column in columns.items()))


def assert_exactly_once(
    operations: DataFrame,
    outcomes: DataFrame,
    id: str | list[str],
    may_be_pending: bool = False,
    status: str = "status",
) -> None:
    """Raise AssertionError unless there is exactly one outcome for each row of operations, and no other outcome.

    You can use it for any pipeline that must write each row into a table exactly once.

    Args:
        operations: The rows that went in.
        outcomes: The rows that came out; ORPHAN rows are left out.
        id: The column, or columns, in both that identify an operation.
        may_be_pending: True if operations may still wait.
        status: The outcomes' status column, for example "outcome_status" with ``prefix``. Without such a column
            all rows count.

    Raises:
        AssertionError: Ids are lost, duplicated or unexpected; the message counts them and names some.

    Example::

        assert_exactly_once(orders, outcomes, id="order_id")
    """
    names = [id] if isinstance(id, str) else id
    if status in outcomes.columns:
        outcomes = outcomes.where(~F.col(f"`{status}`").eqNullSafe("ORPHAN"))
    sides = [
        frame.select(*names, F.lit(given).alias("expected"), F.lit(1 - given).alias("found"))
        for frame, given in ((operations, 1), (outcomes, 0))
    ]
    counted = sides[0].unionByName(sides[1]).groupBy(*names)
    both = counted.agg(F.sum("expected").alias("expected"), F.sum("found").alias("found"))
    wrong = both.where("found > expected" if may_be_pending else "found <> expected").collect()
    if wrong:
        kinds = Counter("lost" if r.found < r.expected else "duplicated" if r.expected else "unexpected" for r in wrong)
        shown = ", ".join(f"{tuple(row)}" for row in wrong[:SHOWN])
        raise AssertionError(f"{dict(kinds)} of {both.count()} ids; ({', '.join(names)}, expected, found): {shown}")


def _check_early(purgatory: Purgatory, operations: DataFrame) -> None:
    """Raise ConfigError if the statuses of early outcomes depend on the order of arrival."""
    if purgatory.completions.kind is not None:
        raise ConfigError(
            f"emit='early', and completions.kind={purgatory.completions.kind!r} is set. Statuses would depend on the "
            "order in which control events arrive: test with emit='final', or without completions.kind"
        )
    fields: dict[str, Any] = {"operations.id": purgatory.operations.id, "scope": purgatory.scope}
    if not isinstance(purgatory.operations.keys, (list, tuple)):
        fields["operations.keys"] = purgatory.operations.keys
    named = {field: value for field, value in fields.items() if value is not None}
    identity = [field_column(operations, value, field).alias(field) for field, value in named.items()]
    if repeated := operations.groupBy(*identity).count().where("count > 1").count():
        raise ConfigError(
            f"emit='early', and {repeated} values of operations.id have several rows each. The order of arrival would "
            "decide which row is a DUPLICATE: test with emit='final', or with one row for each id"
        )


def _times_us(frame: DataFrame, config: Operations | Completions, field: str) -> list[int | None]:
    time = field_column(frame, getattr(config, field), f"{type(config).__name__.lower()}.{field}")
    return frame.select(F.unix_micros(time.cast(T.TimestampType())).alias("us")).toArrow()["us"].to_pylist()


def _land(folder: Path, number: int, table: pa.Table) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number:05}.parquet"
    pq.write_table(table, path)
    # Spark reads files in the order of their modification times.
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def _run(purgatory: Purgatory, sides: dict[str, DataFrame], folder: Path) -> None:
    reader = sides["time"].sparkSession.readStream.option("maxFilesPerTrigger", 1)
    operations, completions = (reader.schema(f.schema).parquet(str(folder / field)) for field, f in sides.items())
    outcomes, checkpoint = purgatory.resolve(operations, completions), str(folder / "checkpoint")
    writer = outcomes.writeStream.format("parquet").option("path", str(folder / "outcomes"))
    with settings_at_start(outcomes.sparkSession, settings_to_start(outcomes, checkpoint)):
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
