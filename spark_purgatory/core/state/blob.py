r"""One shard's state as bytes, refused if a bit of it has changed.

Layout, little endian::

    0   8  magic  b"SPKPURG\0"
    8   4  format version
    12  4  shard count of the query
    16  8  length of the body before it is coded
    24  4  CRC-32 of the coded body
    28  4  CRC-32 of bytes 0 .. 27
    32  .. body, coded in seven bits a byte: Arrow IPC streams, each after its length (8 bytes)

The first stream is one row: JSON metadata and all arrays, one after the other. Tables (payload chunks, keys) are mostly
arrays too; their other columns are one stream per table. Arrow alone decodes 70 % of single-bit flips silently. CRC-32
finds every flip and truncation. It is for accidents, not for attacks: whoever can write the checkpoint is trusted.

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

Tables become arrays. A text column becomes arrays of lengths, characters and nulls, if there are any. Numbers and times
without nulls become their values. Columns of other types stay a table, the *remainder*. Many texts of one length, such
as ids and keys, are stored as values of so many bytes, so that byte-stream split helps with ids that count up. If
lengths change a few times (order-999, order-1000), each stretch of one length is stored by itself.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_purgatory.core.spec.engine_spec import MOVES
from spark_purgatory.core.state.frame import CHECKSUM, checked_body, decoding, read_header
from spark_purgatory.core.state.payload import batch_of, check_layout

Values = npt.NDArray[Any]
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
    for start in range(0, len(source), SPLIT_BLOCK):
        rows = slice(start, start + SPLIT_BLOCK)
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


# --- seven bits a byte ---------------------------------------------------------------------------------------------

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

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
    """Code (n,) bytes as `coded_size(n)` bytes below 128."""
    groups = -(-len(data) // GROUP)
    whole = max(groups - 1, 0)  # The last group has no byte after it to be read along
    words = np.empty(groups, "<u8")
    for start in range(0, whole, BLOCK):
        block = words[start : min(start + BLOCK, whole)]
        _read_groups(data[start * GROUP :], block)
        _spread(block)
    if groups:
        last = np.zeros(CODED, np.uint8)
        last[: len(data) - whole * GROUP] = data[whole * GROUP :]
        _read_groups(last, words[whole:])
        _spread(words[whole:])
    return words.view(np.uint8)


def decode(coded: Bytes, size: int) -> Bytes:
    """Return the ``size`` bytes that `encode` was given; ``coded`` must have `coded_size(size)` bytes."""
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
    return data[:size]


def _read_groups(data: Bytes, words: Words) -> None:
    """Read groups of seven bytes as little-endian numbers; the eighth byte is the next group's and is masked away."""
    np.bitwise_and(np.ndarray(len(words), "<u8", data.data, 0, (GROUP,)), _LOW_56, out=words)


def _spread(words: Words) -> None:
    for low, high, shift in _STEPS:
        moved = words & high
        moved <<= shift
        words &= low
        words |= moved


MAGIC = b"SPKPURG\0"
WHAT = "a shard's state"
VERSION = 1
HEADER = struct.Struct("<8sIIQI")
HEADER_BYTES = HEADER.size + CHECKSUM.size
ALIGNMENT = 8  # arrays begin at multiples of so many bytes, so that they can be read in place
LENGTH = struct.Struct("<Q")
# A byte of state is pickled, copied and written some ten times on its way through PySpark and the state store: 14 ns
# a byte below 128, or 0.28 s of two cores for 40 MB. zstd takes 4 ns a byte, there and back, to save half of them; lz4
# takes half the time and saves half as much. Threads would not pay: Spark has a task on every core, and passing small
# buffers around takes longer than compressing them.
COMPRESSED = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1), use_threads=False)
UNTHREADED = pa.ipc.IpcReadOptions(use_threads=False)

Tables = dict[str, list[pa.RecordBatch]]


def write_blob(metadata: Mapping[str, object], arrays: Arrays, tables: Tables, shards: int) -> bytes:
    """Write metadata (JSON), named arrays and named tables as one blob of a query with ``shards`` shards."""
    arrays = dict(arrays)
    remainders = {name: rest for name, batches in tables.items() if (rest := split_table(name, batches, arrays))}
    packed = {name: pack(array) for name, array in arrays.items()}
    stream_counts = [streams_of(stored) for _, stored in packed.values()]
    layout = [
        (name, *encoding, stored.nbytes, count)
        for (name, (encoding, stored)), count in zip(packed.items(), stream_counts, strict=True)
    ]
    meta = {"facts": metadata, "arrays": layout, "tables": list(tables), "rests": list(remainders)}
    columns = [np.frombuffer(json.dumps(meta).encode(), np.uint8), _joined(packed.values(), stream_counts)]
    del arrays, packed
    first = pa.RecordBatch.from_arrays([_binary(column) for column in columns], names=["meta", "arrays"])
    del columns
    streams = [_stream(batches) for batches in ([first], *remainders.values())]
    del first
    parts = (part for stream in streams for part in (LENGTH.pack(stream.size), stream))
    body = np.concatenate([np.frombuffer(part, np.uint8) for part in parts])
    del streams
    coded = encode(body)
    head = HEADER.pack(MAGIC, VERSION, shards, len(body), zlib.crc32(coded.data))
    del body
    return b"".join((head, CHECKSUM.pack(zlib.crc32(head)), coded.data))


@decoding(WHAT)
def read_blob(blob: bytes) -> tuple[dict[str, Any], Arrays, Tables]:
    """Read the metadata, arrays and tables of a blob. Raises StateCorruptError or StateVersionError."""
    coded, size = _checked(blob)
    body = pa.py_buffer(decode(coded, size))
    del coded
    position = 0
    streams = []
    while position < body.size:
        length = int.from_bytes(body[position : position + 8], "little")
        streams.append(body.slice(position + 8, length))
        position += 8 + length
    del body
    first = _read_stream(streams.pop(0))[0]
    meta = json.loads(first.column(0)[0].as_py())
    stored = memoryview(first.column(1)[0].as_buffer())
    arrays: Arrays = {}
    position = 0
    for name, kind, narrow, base, how, size, streams_in_it in meta["arrays"]:
        part = stored[position : position + size]
        arrays[name] = unpack((kind, narrow, base, how), join_bytes(part, streams_in_it))
        position += size + -size % ALIGNMENT
    remainders = dict(zip(meta["rests"], map(_read_stream, streams), strict=True))
    tables = {name: join_table(name, remainders.get(name, []), arrays) for name in meta["tables"]}
    return meta["facts"], arrays, tables


def shard_count(blob: bytes) -> int:
    return int(HEADER.unpack_from(blob)[2])


def other_shards(then: int, now: int) -> str:
    """Return the text of an error about another number of shards, with the remedy."""
    return f"shards: the checkpoint was written with {then}, but the query has {now}: set shards={then}, {MOVES}"


@decoding(WHAT)
def read_metadata(blob: bytes) -> dict[str, Any]:
    """Read the metadata alone, by decoding one column of the first stream. Raises as `read_blob`."""
    coded, _ = _checked(blob)
    length = LENGTH.unpack(decode(coded[: coded_size(LENGTH.size)], LENGTH.size).tobytes())[0]
    end = LENGTH.size + length
    stream = decode(coded[: coded_size(end)], end)[LENGTH.size :]
    only_meta = pa.ipc.IpcReadOptions(included_fields=[0], use_threads=False)
    with pa.ipc.open_stream(pa.py_buffer(stream), options=only_meta) as reader:
        metadata: dict[str, Any] = json.loads(reader.read_next_batch().column(0)[0].as_py())["facts"]
    return metadata


def _checked(blob: bytes) -> tuple[Values, int]:
    _, length, checksum = read_header(HEADER, MAGIC, VERSION, blob, WHAT)
    coded = checked_body(blob, HEADER_BYTES, coded_size(length), checksum, WHAT)
    return np.frombuffer(coded, np.uint8), length


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


def _stream(batches: list[pa.RecordBatch]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=COMPRESSED) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def _read_stream(stream: pa.Buffer) -> list[pa.RecordBatch]:
    with pa.ipc.open_stream(stream, options=UNTHREADED) as reader:
        batches = list(reader)
    for batch in batches:
        check_layout(batch)
    return batches
