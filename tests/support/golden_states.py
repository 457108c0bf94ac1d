"""Golden states: files that keep their bytes while the format has its version."""

from __future__ import annotations

from pathlib import Path

from spark_purgatory.core.state.blob import VERSION

GOLDEN = Path(__file__).resolve().parents[1] / "data" / f"state_v{VERSION}.bin"
GOLDEN_SHARDS = 3
