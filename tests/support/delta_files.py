"""A Delta table on a local disk read without Spark and without Delta: its log and its Parquet files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq


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
