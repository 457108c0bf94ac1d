"""`python -m benchmarks.state_encodings`: a shard's state in our encodings, and in those of Parquet. No Spark.

The state is that of `benchmarks.growth`: operations that wait, with keys of 12 bytes. Each of its arrays and tables is
written as Parquet would write it: integers DELTA_BINARY_PACKED or BYTE_STREAM_SPLIT or with a dictionary, texts
DELTA_BYTE_ARRAY or plain or with a dictionary, whichever is smallest, compressed with zstd as our tables are, or not.
Alternated, medians.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer

from benchmarks.growth import SPEC, Driver, Point
from spark_purgatory.core.state.blob import Tables, read_blob
from spark_purgatory.core.state.engine_snapshot import restore, save
from spark_purgatory.core.state.table_encoding import Arrays

INTEGERS = ("DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT", "PLAIN_DICTIONARY", "PLAIN")
TEXTS = ("DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY", "PLAIN_DICTIONARY", "PLAIN")


def as_tables(arrays: Arrays, tables: Tables) -> list[pa.Table]:
    """Every array and every column as a table of its own: their lengths differ."""
    found = []
    for array in arrays.values():
        plain = array if array.dtype.kind in "iufb" else array.view(np.uint8)
        found.append(pa.table({"c": pa.array(np.ascontiguousarray(plain))}))
    for batches in tables.values():
        for column in pa.Table.from_batches(batches).columns if batches else []:
            found.append(pa.table({"c": column.combine_chunks()}))
    return found


def encoded(table: pa.Table, how: str, compression: str) -> pa.Buffer:
    """One column in one encoding of Parquet."""
    sink = pa.BufferOutputStream()
    dictionary = how == "PLAIN_DICTIONARY"
    pq.write_table(
        table,
        sink,
        use_dictionary=dictionary,
        column_encoding=None if dictionary else {"c": how},
        compression=compression,
        write_statistics=False,
        store_schema=False,
    )
    return sink.getvalue()


def best(table: pa.Table, compression: str) -> str:
    """The encoding that makes the column smallest."""
    sizes = {}
    for how in INTEGERS if pa.types.is_primitive(table["c"].type) else TEXTS:
        try:
            sizes[how] = encoded(table, how, compression).size
        except (OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
            continue
    return min(sizes, key=lambda how: sizes[how])


def milliseconds(start: float) -> float:
    """Since a time of ``perf_counter``."""
    return (time.perf_counter() - start) * 1000


def main(
    pending: Annotated[int, typer.Option(help="Operations that wait.")] = 200_000,
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 7,
) -> None:
    """Print bytes and milliseconds of both."""
    driver = Driver(Point("state", pending=pending))
    driver.load()
    engine = driver.engine
    blob = save(engine, 1)
    _, arrays, tables = read_blob(blob, 1)
    columns = as_tables(arrays, tables)
    print(f"{pending:,} waiting, {len(columns)} columns; bytes for each waiting operation, ms to save, ms to restore")
    ours: list[tuple[float, float]] = []
    for compression in ("zstd", "none"):
        chosen = [best(column, compression) for column in columns]
        theirs = []
        for _ in range(rounds):
            start = time.perf_counter()
            blob = save(engine, 1)
            saved = milliseconds(start)
            start = time.perf_counter()
            restore(SPEC, blob, 1)
            ours.append((saved, milliseconds(start)))
            start = time.perf_counter()
            files = [encoded(column, how, compression) for column, how in zip(columns, chosen, strict=True)]
            written = milliseconds(start)
            start = time.perf_counter()
            for file in files:
                pq.read_table(pa.BufferReader(file), use_threads=False)
            theirs.append((written, milliseconds(start)))
        size = sum(file.size for file in files)
        write_ms, read_ms = (median(times) for times in zip(*theirs, strict=True))
        print(
            f"Parquet, {compression}: {size / pending:.1f} bytes, {write_ms:.0f} ms, {read_ms:.0f} ms (columns alone)"
        )
    write_ms, read_ms = (median(times) for times in zip(*ours, strict=True))
    print(f"ours: {len(blob) / pending:.1f} bytes, {write_ms:.0f} ms, {read_ms:.0f} ms (with the engine's restoring)")


if __name__ == "__main__":
    typer.run(main)
