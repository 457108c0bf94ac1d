"""Golden states of each format version."""

from __future__ import annotations

from pathlib import Path

from spark_purgatory.core.state.blob import VERSION

GOLDEN = {
    version: Path(__file__).resolve().parents[1] / "data" / f"state_v{version}.bin" for version in range(1, VERSION + 1)
}


GOLDEN_SHARDS = 3
