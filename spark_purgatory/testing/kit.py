"""Assertions for tests of your own purgatory or pipeline, on DataFrames.

`comparable` prepares outcomes for chispa: ``assert_df_equality(comparable(a), comparable(b), ignore_row_order=True)``.
"""

from __future__ import annotations

from collections import Counter

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

SHOWN = 5  # ids that a failing assertion names


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
    only = [list((one - other).elements()) for one, other in (counts, counts[::-1])]
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
