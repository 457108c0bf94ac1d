"""Tables of a shard's state as arrays, which `encodings` makes smaller.

A text column becomes arrays of lengths, characters and nulls, if there are any. Numbers and times without nulls become
their values. Columns of other types stay a table, the *remainder*. Many texts of one length, such as ids and keys, are
stored as values of so many bytes, so that byte-stream split helps with ids that count up. If lengths change a few times
(order-999, order-1000), each stretch of one length is stored by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_purgatory.core.state.encodings import SPLIT_FLOOR, narrowest
from spark_purgatory.core.state.payload_schema import batch_of

Arrays = dict[str, npt.NDArray[Any]]

TEXTS, NUMBERS = (pa.string(), pa.binary()), (pa.int64(), pa.float64())
MOST_STRETCHES = 8  # with more stretches of one length, a column's characters are one array


def split_table(table: str, batches: list[pa.RecordBatch], arrays: Arrays) -> list[pa.RecordBatch]:
    """Move columns into ``arrays`` under the table's name, and return the remainder, which is often nothing."""
    schema = batches[0].schema
    arrays[f"{table}/schema"] = np.frombuffer(schema.serialize(), np.uint8)
    arrays[f"{table}/rows"] = np.array([len(batch) for batch in batches])
    rest = []
    for at, field in enumerate(schema):
        columns = [batch.column(at) for batch in batches]
        if field.type in TEXTS:
            for chunk, column in enumerate(columns):
                _take_text(f"{table}/{at}/{chunk}", column, arrays)
        elif (field.type in NUMBERS or pa.types.is_timestamp(field.type)) and not any(c.null_count for c in columns):
            for chunk, column in enumerate(columns):
                numbers = column if pa.types.is_floating(field.type) else column.view("int64")
                arrays[f"{table}/{at}/{chunk}"] = numbers.to_numpy()
        else:
            rest.append(at)
    return [batch.select(rest) for batch in batches] if rest else []


def join_table(table: str, rest: list[pa.RecordBatch], arrays: Arrays) -> list[pa.RecordBatch]:
    """Return the chunks that `split_table` got, and remove their part of ``arrays``."""
    schema = pa.ipc.read_schema(pa.py_buffer(arrays.pop(f"{table}/schema")))
    whole = []
    for chunk, rows in enumerate(arrays.pop(f"{table}/rows").tolist()):
        left = iter(rest[chunk].columns if rest else ())
        columns = []
        for at, field in enumerate(schema):
            part = f"{table}/{at}/{chunk}"
            if f"{part}/letters" in arrays:
                columns.append(_text(part, field.type, arrays))
            elif part in arrays:
                columns.append(pa.Array.from_buffers(field.type, rows, [None, pa.py_buffer(arrays.pop(part))]))
            else:
                columns.append(next(left))
        whole.append(batch_of(columns, schema, rows))
        whole[-1].validate()
    return whole


def _take_text(part: str, text: pa.Array, arrays: Arrays) -> None:
    buffers = text.buffers()
    offsets = np.zeros(len(text) + 1, np.int32)
    if buffers[1] is not None and buffers[1].size:
        offsets = np.frombuffer(buffers[1], np.int32)[text.offset : text.offset + len(text) + 1]
    lengths = np.diff(offsets)
    characters = np.frombuffer(b"" if buffers[2] is None else buffers[2], np.uint8)[offsets[0] : offsets[-1]]
    arrays[f"{part}/lengths"] = lengths.astype(narrowest(int(lengths.max(initial=0))))
    for i, stretch in enumerate(_stretches(lengths, characters)):
        arrays[f"{part}/letters/{i}" if i else f"{part}/letters"] = stretch
    if text.null_count:
        arrays[f"{part}/valid"] = np.packbits(text.is_valid().to_numpy(zero_copy_only=False), bitorder="little")


def _stretches(lengths: npt.NDArray[np.int32], characters: npt.NDArray[np.uint8]) -> list[npt.NDArray[Any]]:
    """Return characters, (n,) uint8, or values of so many bytes for stretches of texts of one length."""
    if len(lengths) < SPLIT_FLOOR or not len(characters):
        return [characters]
    starts = np.concatenate(([0], np.flatnonzero(np.diff(lengths)) + 1))
    if len(starts) > MOST_STRETCHES:
        return [characters]
    cuts = np.add.reduceat(lengths, starts).cumsum()[:-1]
    parts = zip(np.split(characters, cuts), lengths[starts].tolist(), strict=True)
    return [part.view(f"V{length}") if length else part for part, length in parts]


def _text(part: str, kind: pa.DataType, arrays: Arrays) -> pa.Array:
    lengths, valid = arrays.pop(f"{part}/lengths"), arrays.pop(f"{part}/valid", None)
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    characters = [arrays.pop(f"{part}/letters")]
    while f"{part}/letters/{len(characters)}" in arrays:
        characters.append(arrays.pop(f"{part}/letters/{len(characters)}"))
    whole = characters[0] if len(characters) == 1 else np.concatenate([part.view(np.uint8) for part in characters])
    buffers = [None if valid is None else pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(whole)]
    text = pa.Array.from_buffers(pa.binary(), len(lengths), buffers)
    text.validate(full=True)  # or offsets beyond the characters would end the process
    return text.view(kind)
