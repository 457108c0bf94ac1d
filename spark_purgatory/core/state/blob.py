r"""One shard's state as bytes, refused if a bit of it has changed.

Layout, little endian::

    0   8  magic  b"SPKPURG\0"
    8   4  format version
    12  4  shard count of the query
    16  8  length of the body before it is coded
    24  4  CRC-32 of the coded body
    28  4  CRC-32 of bytes 0 .. 27
    32  .. body, coded in seven bits a byte: Arrow IPC streams, each after its length (8 bytes)

The first stream is one row: JSON metadata and all arrays (`encodings`), one after the other. Tables (payload chunks,
keys) are mostly arrays too (`encodings`); their other columns are one stream per table. Arrow alone decodes 70 %
of single-bit flips silently. CRC-32 finds every flip and every truncation. It is for accidents, not for attacks:
whoever can write the checkpoint is trusted.

The body is ASCII, 8 bytes for every 7. PySpark passes binary state from the JVM to Python as a pickled Latin-1 string,
encoded to UTF-8 byte by byte. Bytes below 128 take a fast path on both sides and stay one byte; others cost three times
as much, measured in a whole query. Seven bytes are read as one 56-bit number, which is split into two halves three
times: 56 bits -> 2 x 28 in 32 -> 4 x 14 in 16 -> 8 x 7 in 8.
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
from spark_purgatory.core.state.encodings import (
    Arrays,
    Encoding,
    Values,
    join_bytes,
    join_table,
    pack,
    split_bytes,
    split_table,
    streams_of,
    unpack,
)
from spark_purgatory.core.state.frame import CHECKSUM, checked_body, decoding, read_header
from spark_purgatory.core.state.payload import check_layout

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
