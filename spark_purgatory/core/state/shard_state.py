"""A shard's state as either host keeps it, read from outside: what it says of itself, and as one blob."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spark_purgatory.core.state.blob import read_metadata
from spark_purgatory.core.state.shard_head import read_head
from spark_purgatory.core.state.step_log import merged
from spark_purgatory.errors import StateCorruptError


@dataclass(frozen=True)
class ShardState:
    """One shard's state: the blob of the one host, or head, snapshot and log of the other."""

    snapshot: bytes | None
    head: bytes | None = None
    """None where the whole state is one blob."""
    log: Sequence[bytes] = ()

    def blob(self) -> bytes:
        """The state as one blob (`engine_snapshot`). Raises StateError where it is damaged."""
        if self.snapshot is None:
            raise StateCorruptError("a shard's state has a head and no snapshot: files are missing from the checkpoint")
        return self.snapshot if self.head is None else merged(read_head(self.head), self.snapshot, self.log)

    def metadata(self) -> dict[str, Any]:
        """What the state says of itself, with what was counted and what waits now.

        Of a head alone, ``tally`` and ``gauges`` only. Raises StateError where it is damaged.
        """
        said = {} if self.snapshot is None else read_metadata(self.snapshot)
        if self.head is None:
            return said
        head = read_head(self.head)
        return {**said, "tally": dict(head.tally), "gauges": dict(head.gauges)}

    @property
    def size(self) -> int:
        """Bytes, as the state store keeps them."""
        if self.head is None:
            return len(self.snapshot or b"")
        head = read_head(self.head)
        return len(self.head) + head.snapshot_bytes + head.log_bytes
