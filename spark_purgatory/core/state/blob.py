r"""One shard's state as bytes, refused if a bit of it has changed.

The body of its `frame` is coded in seven bits a byte: Arrow IPC streams, each after its length (8 bytes). The first
stream is one row: JSON metadata and all arrays, one after the other. Arrow columns become arrays, by their `Buffers`; a
struct without nulls by its fields. Columns of other types are one stream each. Arrow alone decodes 70 % of single-bit
flips silently. CRC-32 finds every flip and truncation. It is for accidents, not for attacks: whoever can write the
checkpoint is trusted.

The body is ASCII, 8 bytes for every 7. PySpark passes binary state from the JVM to Python as a pickled Latin-1 string,
encoded to UTF-8 byte by byte. Bytes below 128 take a fast path on both sides and stay one byte; others cost three times
as much, measured in a whole query. Seven bytes are read as one 56-bit number, which is split into two halves three
times: 56 bits -> 2 x 28 in 32 -> 4 x 14 in 16 -> 8 x 7 in 8.

**Encodings.** A compressor finds no pattern in most arrays of a state: hashes, times, positions. So they are encoded
first, in the narrowest integer type that fits: an ascending array by *delta*, another one in a *frame of reference*, as
distances from its smallest value. Worked example (a test asserts it)::

    [7, 9, 9, 300]        delta: 7, then 2, 0, 291 in two bytes each
    [1000, 990, 1010]     frame of reference 990: 10, 0, 20 in one byte each

Arrays of many values of several bytes use *byte-stream split*, like Parquet: the first bytes of all values, then the
second bytes, and so on. Upper bytes of small numbers, and leading characters of ids that count up, then compress well.
Arrays with few distinct values in a sample (codes, currencies), and floating-point numbers, which often repeat
(prices), are stored value by value.

A text column becomes arrays of lengths and characters. Many texts of one length, such as ids and keys, are stored as
values of so many bytes, so that byte-stream split helps with ids that count up. If lengths change a few times
(order-999, order-1000), each stretch of one length is stored by itself.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_purgatory.core.arrays.value_column import Buffers, struct_array
from spark_purgatory.core.spec.engine_spec import MOVES
from spark_purgatory.core.state.frame import decoding, read_frame, write_frame
from spark_purgatory.core.state.payload import check_layout

Values = npt.NDArray[Any]
Columns = dict[str, Any]  # numpy and Arrow arrays
Encoding = tuple[str, str, int, str]  # dtype, dtype as stored, first or smallest value, PLAIN or DELTA or ...

PLAIN, DELTA, FRAME_OF_REFERENCE = "", "differences", "distances"
SPLIT_FLOOR = 512  # values below which a split takes longer than it saves
WIDEST = 64  # bytes of a value beyond which it is not split: texts longer than a hash in hexadecimal
SAMPLE, DISTINCT = 64, 56  # values of a sample over the array, and how many of them must differ for a split
SPLIT_BLOCK = 1 << 13  # values that are split at a time, so that they stay in a core's cache
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
    if kind.kind not in "iuSV" or not 1 < kind.itemsize <= WIDEST or len(values) < SPLIT_FLOOR:
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
    for start in range(0, len(source), SPLIT_BLOCK):
        rows = slice(start, start + SPLIT_BLOCK)
        for stream in range(source.shape[1]):
            target[rows, stream] = source[rows, stream]


def unpack(encoding: Encoding, stored: bytes | memoryview) -> Values:
    kind, narrow, base, how = encoding
    values = np.frombuffer(stored, narrow)
    if how == PLAIN:
        return values.copy()  # A view would keep all arrays of the state
    if how == FRAME_OF_REFERENCE:
        return values.astype(kind) + base
    summed = np.empty(len(values) + 1, kind)
    summed[0] = base
    np.cumsum(values, out=summed[1:])
    summed[1:] += base
    return summed


MOST_STRETCHES = 8  # with more stretches of one length, a column's characters are one array


def _split(name: str, column: pa.Array, arrays: dict[str, Values], others: dict[str, pa.Array]) -> None:
    """Put an Arrow column into ``arrays`` under its name, or what has no `Buffers` into ``others``."""
    if pa.types.is_struct(column.type) and column.type.num_fields and not column.null_count:
        for at, part in enumerate(column.flatten()):
            _split(f"{name}/{at}", part, arrays, others)
        return
    buffers = Buffers.of(column)
    if buffers is None:
        others[name] = column
        return
    if buffers.valid is not None:
        arrays[f"{name}/valid"] = np.packbits(buffers.valid)
    if buffers.ends is None:
        arrays[f"{name}/values"] = buffers.values
        return
    lengths = np.diff(buffers.ends)
    arrays[f"{name}/lengths"] = lengths.astype(narrowest(int(lengths.max(initial=0))))
    for i, stretch in enumerate(_stretches(lengths, buffers.values)):
        arrays[f"{name}/letters/{i}"] = stretch


def _join(name: str, kind: pa.DataType, arrays: dict[str, Values], others: dict[str, pa.Array]) -> pa.Array:
    """Return the column that `_split` got, and remove its arrays."""
    if name in others:
        return others[name]
    if pa.types.is_struct(kind):
        parts = [_join(f"{name}/{at}", field.type, arrays, others) for at, field in enumerate(kind)]
        return struct_array(parts, list(kind), len(parts[0]))
    lengths, valid = arrays.pop(f"{name}/lengths", None), arrays.pop(f"{name}/valid", None)
    n = len(arrays[f"{name}/values"] if lengths is None else lengths)
    flags = None if valid is None else np.unpackbits(valid, count=n).view(bool)
    if lengths is None:
        column = Buffers(arrays.pop(f"{name}/values"), valid=flags).array(kind)
        column.validate()
        return column
    ends, letters = np.zeros(n + 1, np.int32), list[Values]()
    np.cumsum(lengths, out=ends[1:])
    while f"{name}/letters/{len(letters)}" in arrays:
        letters.append(arrays.pop(f"{name}/letters/{len(letters)}").view(np.uint8))
    column = Buffers(letters[0] if len(letters) == 1 else np.concatenate(letters), ends, flags).array(pa.binary())
    column.validate(full=True)  # or offsets beyond the characters would end the process
    return column.view(kind)


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


# --- seven bits a byte ---------------------------------------------------------------------------------------------

Bytes = npt.NDArray[np.uint8]

GROUP, CODED = 7, 8
BLOCK = 1 << 14  # groups that are coded at a time: 128 KiB, which fit a core's cache
_LOW_56 = np.uint64((1 << 56) - 1)
_STEPS = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x000000000FFFFFFF, 0x00FFFFFFF0000000, 4),
        (0x00003FFF00003FFF, 0x0FFFC0000FFFC000, 2),
        (0x007F007F007F007F, 0x3F803F803F803F80, 1),
    )
)


def coded_size(size: int) -> int:
    return -(-size // GROUP) * CODED


def encode(data: Bytes) -> Bytes:
    """Code the groups of (n,) bytes as bytes below 128; the last byte is in no group, because each is read with one."""
    words = np.empty((len(data) - 1) // GROUP, "<u8")
    for start in range(0, len(words), BLOCK):
        block = words[start : start + BLOCK]
        np.bitwise_and(np.ndarray(len(block), "<u8", data.data, start * GROUP, (GROUP,)), _LOW_56, out=block)
        for low, high, shift in _STEPS:
            moved = block & high
            moved <<= shift
            block &= low
            block |= moved
    return words.view(np.uint8)


def decode(coded: Bytes) -> Bytes:
    """Return the bytes of the groups that `encode` was given; ``coded`` must have whole groups."""
    words = coded.view("<u8")
    data = np.empty(len(words) * GROUP + 1, np.uint8)
    for start in range(0, len(words), BLOCK):
        block = words[start : start + BLOCK].copy()
        for low, high, shift in reversed(_STEPS):
            moved = block & (high << shift)
            moved >>= shift
            block &= low
            block |= moved
        # Groups ascend: the next one overwrites the eighth byte of each, a zero.
        np.ndarray(len(block), "<u8", data.data, start * GROUP, (GROUP,))[:] = block
    return data[:-1]


MAGIC = b"SPKPURG\0"
WHAT = "a shard's state"
VERSION = 1
ALIGNMENT = 8  # arrays begin at multiples of so many bytes, so that they can be read in place
LENGTH = struct.Struct("<Q")
# A byte of state is pickled, copied and written some ten times on its way through PySpark and the state store: 14 ns
# a byte below 128, or 0.28 s of two cores for 40 MB. zstd takes 4 ns a byte, there and back, to save half of them; lz4
# takes half the time and saves half as much. Threads would not pay: Spark has a task on every core, and passing small
# buffers around takes longer than compressing them.
COMPRESSED = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1), use_threads=False)
UNTHREADED = pa.ipc.IpcReadOptions(use_threads=False)


def write_blob(metadata: Mapping[str, object], columns: Columns) -> bytes:
    """Write metadata (JSON) and named columns, numpy and Arrow arrays, as one blob."""
    arrays, others = dict[str, Values](), dict[str, pa.Array]()
    schema = pa.schema([(name, each.type) for name, each in columns.items() if isinstance(each, pa.Array)])
    for name, column in columns.items():
        if isinstance(column, pa.Array):
            _split(name, column, arrays, others)
        else:
            arrays[name] = column
    arrays["schema"] = np.frombuffer(schema.serialize(), np.uint8)
    packed = {name: pack(array) for name, array in arrays.items()}
    stream_counts = [streams_of(stored) for _, stored in packed.values()]
    layout = [
        (name, *encoding, stored.nbytes, count)
        for (name, (encoding, stored)), count in zip(packed.items(), stream_counts, strict=True)
    ]
    meta = {"facts": metadata, "arrays": layout, "others": list(others)}
    first = [np.frombuffer(json.dumps(meta).encode(), np.uint8), _joined(packed.values(), stream_counts)]
    del arrays, packed
    streams = [_stream({"meta": _binary(first[0]), "arrays": _binary(first[1])})]
    streams += [_stream({"other": column}) for column in others.values()]
    del first
    parts = [part for stream in streams for part in (LENGTH.pack(stream.size), stream)]
    body = np.concatenate([np.frombuffer(part, np.uint8) for part in (*parts, bytes(CODED))])
    del streams
    return write_frame(MAGIC, VERSION, encode(body).data)


@decoding(WHAT)
def read_blob(blob: bytes) -> tuple[dict[str, Any], Columns]:
    """Read the metadata and columns of a blob. Raises StateCorruptError or StateVersionError."""
    body = pa.py_buffer(decode(_coded(blob)))
    position = 0
    streams = []
    while position + LENGTH.size <= body.size:
        length = int.from_bytes(body[position : position + LENGTH.size], "little")
        streams.append(body.slice(position + LENGTH.size, length))
        position += LENGTH.size + length
    del body
    first = _read_stream(streams.pop(0))
    meta = json.loads(first.column(0)[0].as_py())
    stored = memoryview(first.column(1)[0].as_buffer())
    columns: Columns = {}
    position = 0
    for name, kind, narrow, base, how, size, streams_in_it in meta["arrays"]:
        part = stored[position : position + size]
        columns[name] = unpack((kind, narrow, base, how), join_bytes(part, streams_in_it))
        position += size + -size % ALIGNMENT
    others = {name: _read_stream(stream).column(0) for name, stream in zip(meta["others"], streams, strict=True)}
    for field in pa.ipc.read_schema(pa.py_buffer(columns.pop("schema"))):
        columns[field.name] = _join(field.name, field.type, columns, others)
    return meta["facts"], columns


def other_shards(then: int, now: int) -> str:
    """Return the text of an error about another number of shards, with the remedy."""
    return f"shards: the checkpoint was written with {then}, but the query has {now}: set shards={then}, {MOVES}"


@decoding(WHAT)
def read_metadata(blob: bytes) -> dict[str, Any]:
    """Read the metadata alone, by decoding one column of the first stream. Raises as `read_blob`."""
    coded = _coded(blob)
    length = LENGTH.unpack(decode(coded[: coded_size(LENGTH.size)])[: LENGTH.size].tobytes())[0]
    stream = decode(coded[: coded_size(LENGTH.size + length)])[LENGTH.size :]
    only_meta = pa.ipc.IpcReadOptions(included_fields=[0], use_threads=False)
    with pa.ipc.open_stream(pa.py_buffer(stream), options=only_meta) as reader:
        metadata: dict[str, Any] = json.loads(reader.read_next_batch().column(0)[0].as_py())["facts"]
    return metadata


def _coded(blob: bytes) -> Values:
    return np.frombuffer(read_frame(MAGIC, VERSION, blob, WHAT), np.uint8)


def _joined(packed: Iterable[tuple[Encoding, Values]], stream_counts: Iterable[int]) -> Values:
    """Join stored values, (n,) uint8, each at a multiple of `ALIGNMENT`."""
    parts = [stored for _, stored in packed]
    sizes = [part.nbytes + -part.nbytes % ALIGNMENT for part in parts]
    joined = np.zeros(sum(sizes), np.uint8)
    for part, size, end, count in zip(parts, sizes, accumulate(sizes), stream_counts, strict=True):
        start = end - size
        split_bytes(part, count, joined[start : start + part.nbytes])
    return joined


def _binary(data: Values) -> pa.Array:
    """Return bytes, (n,) uint8, as one value, without a copy."""
    bounds = pa.py_buffer(np.array([0, len(data)]))
    return pa.Array.from_buffers(pa.large_binary(), 1, [None, bounds, pa.py_buffer(data)])


def _stream(columns: dict[str, pa.Array]) -> pa.Buffer:
    batch, sink = pa.RecordBatch.from_pydict(columns), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=COMPRESSED) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _read_stream(stream: pa.Buffer) -> pa.RecordBatch:
    with pa.ipc.open_stream(stream, options=UNTHREADED) as reader:
        [batch] = reader
    check_layout(batch)
    return batch
