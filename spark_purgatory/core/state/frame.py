r"""A frame of magic, format version, length and checksum, in which the bytes of shards are kept.

Layout, little endian::

    0   8  magic
    8   4  format version
    12  4  CRC-32 of the body
    16  8  length of the body
    24  4  CRC-32 of bytes 0 .. 23
    28  .. body
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from spark_purgatory.errors import START_OVER, PurgatoryError, StateCorruptError, StateVersionError

HEADER = struct.Struct("<8sIIQ")
CHECKSUM = struct.Struct("<I")
HEADER_BYTES = HEADER.size + CHECKSUM.size
UNDECODABLE = (
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    OSError,
    StopIteration,
)


@contextmanager
def decoding(what: str) -> Iterator[None]:
    """Raise StateCorruptError if bytes that match their checksum cannot be decoded; ``what`` names them."""
    try:
        yield
    except PurgatoryError:
        raise
    except (*UNDECODABLE, struct.error, pa.ArrowException) as error:
        size = f": {error}" if isinstance(error, MemoryError) else ""
        raise StateCorruptError(
            f"{what} matches its checksum but cannot be decoded ({type(error).__name__}{size}). If another release "
            "wrote it, run that release. If not, it was damaged before it was written"
        ) from error


def write_frame(magic: bytes, version: int, body: bytes | memoryview) -> bytes:
    header = HEADER.pack(magic, version, zlib.crc32(body), len(body))
    return b"".join((header, CHECKSUM.pack(zlib.crc32(header)), body))


def read_frame(magic: bytes, version: int, data: bytes, what: str) -> memoryview:
    """Return the body; ``what`` names the value in errors. Raises StateCorruptError or StateVersionError."""
    if len(data) < HEADER_BYTES:
        raise StateCorruptError(
            f"{what} of {len(data)} bytes is shorter than its header ({HEADER_BYTES}), so it was truncated"
        )
    found, written, checksum, length = HEADER.unpack_from(data)
    if found != magic:
        # The bytes themselves are not shown: they may be values of another query's rows.
        raise StateCorruptError(f"{what} does not start with {magic!r}, so it is damaged, or of another program")
    if CHECKSUM.unpack_from(data, HEADER.size)[0] != zlib.crc32(data[: HEADER.size]):
        raise StateCorruptError(f"the header of {what} does not match its checksum, so it was damaged")
    if written != version:
        raise StateVersionError(
            f"{what} has format version {written}, but this release of spark_purgatory reads {version}: "
            f"run the release that wrote the checkpoint, or {START_OVER}"
        )
    body = memoryview(data)[HEADER_BYTES:]
    if len(body) != length:
        raise StateCorruptError(
            f"{what} has a body of {len(body)} bytes, but {length} in its header, so it was truncated or damaged"
        )
    if zlib.crc32(body) != checksum:
        raise StateCorruptError(f"{what} of {length} bytes does not match its checksum, so it was damaged")
    return body
