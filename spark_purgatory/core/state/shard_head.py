"""What a shard's state begins with where it is kept as a snapshot and a log: small, read and written in every call.

It is JSON behind a frame (`frame`): a field more is no new version, a field of another meaning is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any

from spark_purgatory.core.state.frame import read_frame, write_frame
from spark_purgatory.errors import StateCorruptError

MAGIC = b"SPKPHED\0"
VERSION = 1
LOG_PER_SNAPSHOT = (1.5, 2.5)
"""Bytes of log beyond which a shard is saved anew, as a multiple of its last snapshot's: each shard has a factor of its
own between the two, so that the shards of a query are not saved all in one micro-batch."""
LOG_FLOOR_BYTES = (1 << 20, 2 << 20)
"""Below this no log is too long, whatever the snapshot: between the two, as above."""
LOG_ENTRIES = (160, 240)
"""Entries beyond which a shard is saved anew: each takes at least a millisecond when it is replayed."""


@dataclass(frozen=True)
class ShardHead:
    """A shard's token, and where and how large the rest of its state is."""

    token: str
    """Random, new in every step. An engine in memory is this shard's only if it has this token."""
    shard_id: str
    """Random, drawn when the shard was made: what a worker keeps the shard's engine under."""
    holder: str
    """Address of the worker that may keep the engine; empty: none does."""
    shards: int
    spec_digest: str
    """The digest of the settings and columns under which the log was written."""
    step_version: int
    deadline_is_sum: bool
    first_entry: int = 0
    """Number of the log's first entry, and of the one that would come next."""
    next_entry: int = 0
    log_bytes: int = 0
    snapshot_bytes: int = 0
    timer_ms: int | None = None
    """The timer that Spark has for the shard."""
    gauges: Mapping[str, Any] = field(default_factory=dict)
    """What waits, as `engine_snapshot` notes it in a snapshot: after the last entry of the log."""
    tally: Mapping[str, Any] = field(default_factory=dict)

    @property
    def log_entries(self) -> int:
        """The number of entries in the log."""
        return self.next_entry - self.first_entry

    def wants_snapshot(self, entry_bytes: int) -> bool:
        """True if the engine should be saved instead of adding an entry of so many bytes to the log."""
        share = int.from_bytes(blake2b(self.shard_id.encode(), digest_size=4).digest(), "little") / (1 << 32)

        def between(bounds: tuple[float, float]) -> float:
            return bounds[0] + share * (bounds[1] - bounds[0])

        most = max(between(LOG_FLOOR_BYTES), between(LOG_PER_SNAPSHOT) * self.snapshot_bytes)
        return self.log_bytes + entry_bytes > most or self.log_entries + 1 > between(LOG_ENTRIES)


def write_head(head: ShardHead) -> bytes:
    """The head as bytes."""
    return write_frame(MAGIC, VERSION, json.dumps(asdict(head), separators=(",", ":")).encode())


def read_head(data: bytes) -> ShardHead:
    """What `write_head` was given. Raises StateCorruptError or StateVersionError."""
    fields = json.loads(bytes(read_frame(MAGIC, VERSION, data, "the head of a shard's state")))
    known = {name: value for name, value in fields.items() if name in ShardHead.__dataclass_fields__}
    try:
        return ShardHead(**known)
    except TypeError as error:
        raise StateCorruptError(f"the head of a shard's state lacks fields: {error}") from error
