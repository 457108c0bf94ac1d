"""What an engine does, as data: it travels to the workers, and a checkpoint remembers it."""

from __future__ import annotations

from dataclasses import dataclass

from spark_purgatory.core.criteria import Criterion


@dataclass(frozen=True)
class EngineSpec:
    """What an engine does; equal specs read each other's state."""

    criterion: Criterion
    final: bool = False
    lookback_us: int = 0
    tick_ms: int = 1
    wheel_size: int = 20
    max_pending: int = 10_000_000
    """Operations waiting in one shard: at 100 bytes each 1 GB of state, past what a state store can write."""
    max_state_bytes: int = 1 << 30
    """Bytes of one shard's state: a JVM array ends at 2 GiB, and two versions stand on the heap."""

    def fingerprint(self) -> dict[str, str | float | int | bool]:
        """What must not change against a checkpoint, by name."""
        return {
            "criterion": self.criterion.rule,
            "need": float(self.criterion.need),
            "emit": "final" if self.final else "early",
            "lookback_us": self.lookback_us,
            "tick_ms": self.tick_ms,
        }
