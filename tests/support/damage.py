"""Damage to files."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq


def halve(path: Path) -> None:
    """Leave half the rows of a staged file."""
    rows = pq.ParquetFile(path).read()
    path.with_name(f".{path.name}.crc").unlink()
    pq.write_table(rows.slice(0, rows.num_rows // 2), path)
