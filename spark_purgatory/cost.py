"""The cost of a micro-batch by its layout: a model fitted to measurements on two cores (docs/choosing.md)."""

from __future__ import annotations

from dataclasses import dataclass
from operator import mul

BLOB, LOG = "applyInPandasWithState", "transformWithState"
COEFFICIENTS = {
    (BLOB, "cpu_s"): (0.4521, 0.07107, 0.004743, 5.355e-06, 3.284e-06, 7.52e-07, 6.291e-07),
    (BLOB, "state_bytes"): (0, 1050, 0, 0.293, 8.148, 28.71, 20.14),
    (BLOB, "worker_bytes"): (6.109e07, 1.878e08, 0, 0, 0, 999.2, 1054),
    (LOG, "cpu_s"): (0.4645, 0.07601, 0.01579, 5.355e-06, 1.737e-06, 0, 2.569e-08),
    (LOG, "state_bytes"): (2120, 1562, 664.4, 25.78, 24.92, 0, 0),
    (LOG, "worker_bytes"): (7.675e07, 1.877e08, 0, 0, 0, 211.9, 388.6),
}
"""The factors of `Load.terms`."""


@dataclass(frozen=True)
class Load:
    """A micro-batch, the operations and events that arrive, and the layout of the checkpoint that takes it."""

    host: str
    waiting: float
    operations: float
    events: float
    keys: float
    """Keys of an operation."""
    shards: int | None
    """None if every key is a group of its own. The model does not cover this."""
    cores: int
    partitions: int
    is_broadcast: bool = False
    """True if every shard gets all events."""
    state_bytes: int = 0
    """Bytes of all shards' states, if known. `applyInPandasWithState` rewrites them."""

    def terms(self, quantity: str) -> list[float]:
        """Return what the factors multiply: 1, tasks, shards, rows, more keys, what waits, its more keys."""
        tasks, held, shards, more = self.partitions, self.waiting, self.shards or 1, self.keys - 1
        operations, events = self.operations, self.events * (shards if self.is_broadcast else 1)
        if quantity == "worker_bytes":  # Rows pass through. `BLOB` holds one shard at a time
            tasks, operations, events = min(self.cores, tasks), 0, 0
            held *= min(tasks, shards) / shards if self.host == BLOB else 1
        return [1, tasks, shards, operations + events, operations * more, held, held * more]

    def cost(self, quantity: str) -> float:
        """Return CPU seconds ("cpu_s"), bytes into the checkpoint ("state_bytes") or in workers ("worker_bytes")."""
        if self.state_bytes and (self.host, quantity) == (BLOB, "state_bytes"):
            return self.state_bytes
        return sum(map(mul, COEFFICIENTS[self.host, quantity], self.terms(quantity)))

    def __str__(self) -> str:
        """Return the costs with two digits each."""
        if self.shards is None:
            return "not predicted for a group for each key"
        cpu, mb, gb = (float(f"{self.cost(name):.2g}") for name in ("cpu_s", "state_bytes", "worker_bytes"))
        return f"about {cpu:,g} CPU seconds, {mb / 1e6:,g} MB into the checkpoint, {gb / 1e9:,g} GB of workers' memory"
