"""Encodings of arrays for the state: as few bytes as the values need, decoded exactly.

A compressor finds no pattern in most arrays of a state: hashes, times, positions. So they are encoded first, in the
narrowest integer type that fits: an ascending array by *delta*, another one in a *frame of reference*, as distances
from its smallest value. Worked example (a test asserts it)::

    [7, 9, 9, 300]        delta: 7, then 2, 0, 291 in two bytes each
    [1000, 990, 1010]     frame of reference 990: 10, 0, 20 in one byte each

Arrays of many values of several bytes use *byte-stream split*, like Parquet: the first bytes of all values, then the
second bytes, and so on. Upper bytes of small numbers, and leading characters of ids that count up, then compress well.
Arrays with few distinct values in a sample (codes, currencies), and floating-point numbers, which often repeat
(prices), are stored value by value.

Tables become arrays. A text column becomes arrays of lengths, characters and nulls, if there are any. Numbers and times
without nulls become their values. Columns of other types stay a table, the *remainder*. Many texts of one length, such
as ids and keys, are stored as values of so many bytes, so that byte-stream split helps with ids that count up. If
lengths change a few times (order-999, order-1000), each stretch of one length is stored by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_purgatory.core.state.payload import batch_of

Values = npt.NDArray[Any]
Encoding = tuple[str, str, int, str]  # dtype, dtype as stored, first or smallest value, PLAIN or DELTA or ...

PLAIN, DELTA, FRAME_OF_REFERENCE = "", "differences", "distances"
SPLIT_FLOOR = 512  # values below which a split takes longer than it saves
WIDEST = 64  # bytes of a value beyond which it is not split: texts longer than a hash in hexadecimal
SAMPLE, DISTINCT = 64, 56  # values of a sample over the array, and how many of them must differ for a split
BLOCK = 1 << 13  # values that are split at a time, so that they stay in a core's cache
NARROW = tuple(np.dtype(kind) for kind in ("u1", "<u2", "<u4"))
SPAN_LIMIT = 1 << 62  # values further apart than this are not subtracted


def narrowest(most: int) -> np.dtype[Any]:
    return next((kind for kind in NARROW if most <= np.iinfo(kind).max), np.dtype(np.int64))


def pack(values: Values) -> tuple[Encoding, Values]:
    """Return the encoding and the stored values of an array, (n,)."""
    kind = values.dtype.str
    plain: tuple[Encoding, Values] = (kind, kind, 0, PLAIN), np.ascontiguousarray(values)
    if values.dtype != np.int64 or not len(values):
        return plain
    smallest, largest = int(values.min()), int(values.max())
    if largest - smallest > SPAN_LIMIT:
        return plain
    if int(values[0]) == smallest and int(values[-1]) == largest:
        differences = np.diff(values)
        if not len(differences) or int(differences.min()) >= 0:
            narrow = narrowest(int(differences.max(initial=0)))
            return (kind, narrow.str, smallest, DELTA), differences.astype(narrow)
    narrow = narrowest(largest - smallest)
    return (kind, narrow.str, smallest, FRAME_OF_REFERENCE), (values - smallest).astype(narrow)


def streams_of(values: Values) -> int:
    """Return the number of byte streams for values, (n,): one for each of their bytes, or 1 for no split."""
    kind = values.dtype
    if kind.kind not in "iuV" or not 1 < kind.itemsize <= WIDEST or len(values) < SPLIT_FLOOR:
        return 1
    sample = values[:: len(values) // SAMPLE][:SAMPLE]
    return kind.itemsize if len(set(sample.tolist())) >= DISTINCT else 1


def split_bytes(values: Values, streams: int, into: Values) -> None:
    """Write the bytes of (n,) values to ``into``, (n * itemsize,) uint8, in so many streams."""
    if streams == 1:
        into[:] = values.view(np.uint8)
        return
    wide = values.view(np.uint8).reshape(-1, streams)
    _move(wide, into.reshape(wide.shape[::-1]).T)


def join_bytes(stored: bytes | memoryview, streams: int = 1) -> bytes | memoryview:
    if streams == 1:
        return stored
    wide = np.empty((len(stored) // streams, streams), np.uint8)
    _move(np.frombuffer(stored, np.uint8).reshape(wide.shape[::-1]).T, wide)
    return wide.data.cast("B")


def _move(source: Values, target: Values) -> None:
    """Copy (n, width) bytes between an array in row order and one in column order."""
    for start in range(0, len(source), BLOCK):
        rows = slice(start, start + BLOCK)
        for stream in range(source.shape[1]):
            target[rows, stream] = source[rows, stream]


def unpack(encoding: Encoding, stored: bytes | memoryview) -> Values:
    kind, narrow, base, how = encoding
    values = np.frombuffer(stored, narrow)
    if how == PLAIN:
        return values
    if how == FRAME_OF_REFERENCE:
        return values.astype(kind) + base
    summed = np.empty(len(values) + 1, kind)
    summed[0] = base
    np.cumsum(values, out=summed[1:])
    summed[1:] += base
    return summed


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
