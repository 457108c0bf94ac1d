"""A Delta table on a local disk read without Spark and without Delta: its log and its Parquet files."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession


def delta_rows(table: Path, columns: Sequence[str]) -> pa.Table:
    """The columns of all rows; the whole log must be there, from version 0 on."""
    files: dict[str, None] = {}
    commits = sorted((table / "_delta_log").glob("*.json"))
    assert [int(commit.stem) for commit in commits] == list(range(len(commits))), commits
    for commit in commits:
        for line in commit.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            if "add" in action:
                files[unquote(action["add"]["path"])] = None
            if "remove" in action:
                files.pop(unquote(action["remove"]["path"]))
    parts = [pq.ParquetFile(table / file).read(columns=list(columns)) for file in files]
    return pa.concat_tables(parts) if parts else pa.table({name: [] for name in columns})


def halve(path: Path) -> None:
    """Leave half the rows of a staged file."""
    rows = pq.ParquetFile(path).read()
    path.with_name(f".{path.name}.crc").unlink()
    pq.write_table(rows.slice(0, rows.num_rows // 2), path)


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
