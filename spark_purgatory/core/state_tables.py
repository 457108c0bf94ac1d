"""A table of a shard's state taken apart for writing: what `packing` makes smaller goes beside it, as arrays.

A text column leaves its lengths in the table, a column of whole numbers or times without nulls leaves nothing, any
other stays. The schema as it was lies in the metadata of the one that is written.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import pyarrow as pa

from spark_purgatory.core.packing import pack_texts, unpack_texts

Arrays = dict[str, npt.NDArray[Any]]
SCHEMA = b"spark_purgatory.schema"


def take_apart(table: str, batches: list[pa.RecordBatch], arrays: Arrays) -> list[pa.RecordBatch]:
    """What stays of the chunks of a table; the rest goes into ``arrays`` under the table's name."""
    schema = batches[0].schema
    columns = []
    for at, field in enumerate(schema):
        left = column = [batch.column(at) for batch in batches]
        if _is_text(field.type):
            left, taken = pack_texts(column)
            arrays |= {_part(table, at, chunk): letters for chunk, letters in enumerate(taken)}
        elif _is_whole(field.type) and not any(values.null_count for values in column):
            left = [pa.nulls(len(values)) for values in column]
            arrays |= {_part(table, at, chunk): values.view("int64").to_numpy() for chunk, values in enumerate(column)}
        columns.append(left)
    fields = [pa.field(field.name, left[0].type) for field, left in zip(schema, columns, strict=True)]
    written = pa.schema(fields, {SCHEMA: schema.serialize().to_pybytes()})
    return [pa.RecordBatch.from_arrays(list(chunk), schema=written) for chunk in zip(*columns, strict=True)]


def put_together(table: str, batches: list[pa.RecordBatch], arrays: Arrays) -> list[pa.RecordBatch]:
    """The chunks that `take_apart` was given; those of version 1 are whole."""
    whole = (batches[0].schema.metadata or {}).get(SCHEMA)
    if whole is None:
        return batches
    schema = pa.ipc.read_schema(pa.py_buffer(whole))
    return [
        pa.RecordBatch.from_arrays(
            [
                _column(field.type, batch.column(at), arrays.get(_part(table, at, chunk)))
                for at, field in enumerate(schema)
            ],
            schema=schema,
        )
        for chunk, batch in enumerate(batches)
    ]


def _column(kind: pa.DataType, left: pa.Array, taken: npt.NDArray[Any] | None) -> pa.Array:
    if taken is None:
        return left
    return unpack_texts(left, taken, kind) if _is_text(kind) else pa.array(taken).view(kind)


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.binary())


def _is_whole(kind: pa.DataType) -> bool:
    return kind == pa.int64() or pa.types.is_timestamp(kind)


def _part(table: str, column: int, chunk: int) -> str:
    return f"{table}/{column}/{chunk}"
