"""The head of a shard's state that is kept as a snapshot and a log: small, read and written in every call.

It is JSON in a `frame`. A new field does not change the version, another meaning of a field does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from hashlib import blake2b
from typing import Any

from spark_purgatory.core.state.frame import decoding, read_frame, write_frame
from spark_purgatory.errors import StateCorruptError

MAGIC = b"SPKPHED\0"
VERSION = 1
KINDS: dict[str, Any] = {"str": str, "int": int, "bool": bool, "int | None": int | None, "Mapping[str, Any]": dict}
# A shard is saved again beyond these limits. Each shard has its own between the two numbers, so that the shards of a
# query are not all saved in one micro-batch.
LOG_PER_SNAPSHOT = (1.5, 2.5)  # bytes of log, as a multiple of the last snapshot's
LOG_FLOOR_BYTES = (1 << 20, 2 << 20)  # a shorter log is never too long
LOG_ENTRIES = (160, 240)  # each entry takes at least a millisecond when it is replayed


@dataclass(frozen=True)
class ShardHead:
    """A shard's token, and the place and size of the rest of its state."""

    token: str  # random, new in every step: an engine in memory is this shard's only if it has this token
    shard_id: str  # random, drawn when the shard was made: the name under which a worker keeps the engine
    holder: str  # address of the worker that may keep the engine; empty: none does
    shards: int
    spec_digest: str  # of the settings and columns under which the log was written
    step_version: int
    deadline_is_sum: bool
    first_entry: int = 0  # number of the log's first entry
    next_entry: int = 0  # number of the entry that would come next
    log_bytes: int = 0
    snapshot_bytes: int = 0
    timer_ms: int | None = None  # the timer that Spark has for the shard
    gauges: Mapping[str, Any] = field(default_factory=dict)  # `engine_snapshot.gauges_of` after the last entry
    tally: Mapping[str, Any] = field(default_factory=dict)

    @property
    def log_entries(self) -> int:
        return self.next_entry - self.first_entry

    def wants_snapshot(self, entry_bytes: int) -> bool:
        """Return True if the engine should be saved instead of adding an entry of so many bytes to the log."""
        share = int.from_bytes(blake2b(self.shard_id.encode(), digest_size=4).digest(), "little") / (1 << 32)

        def between(bounds: tuple[float, float]) -> float:
            return bounds[0] + share * (bounds[1] - bounds[0])

        most = max(between(LOG_FLOOR_BYTES), between(LOG_PER_SNAPSHOT) * self.snapshot_bytes)
        return self.log_bytes + entry_bytes > most or self.log_entries + 1 > between(LOG_ENTRIES)


def write_head(head: ShardHead) -> bytes:
    return write_frame(MAGIC, VERSION, json.dumps(asdict(head), separators=(",", ":")).encode())


@decoding("the head of a shard's state")
def read_head(data: bytes) -> ShardHead:
    """Return the head that `write_head` was given. Raises StateCorruptError or StateVersionError."""
    found = json.loads(bytes(read_frame(MAGIC, VERSION, data, "the head of a shard's state")))
    known = {name: value for name, value in found.items() if name in ShardHead.__dataclass_fields__}
    try:
        head = ShardHead(**known)
    except TypeError as error:
        raise StateCorruptError(f"the head of a shard's state lacks fields: {error}") from error
    if wrong := [each.name for each in fields(head) if not isinstance(getattr(head, each.name), KINDS[str(each.type)])]:
        raise StateCorruptError(f"the head of a shard's state has other types in {', '.join(wrong)}, so it is damaged")
    return head
