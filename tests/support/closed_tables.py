"""A Delta table that takes no files for a while, though nothing about it is wrong: its folder is."""

from __future__ import annotations

import string
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession


@contextmanager
def closed(spark: SparkSession, table: Path) -> Iterator[None]:
    """Every write fails as a storage does: the table's files get folders, and each folder's name is a file's."""
    names = [table / name for name in string.ascii_letters + string.digits]
    properties = "'delta.randomizeFilePrefixes' = 'true', 'delta.randomPrefixLength' = '1'"
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ({properties})")
    for name in names:
        name.touch()
    try:
        yield
    finally:
        for name in names:
            name.unlink()
