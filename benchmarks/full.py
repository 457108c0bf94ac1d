"""`python -m benchmarks.full`: everything there is to measure, one after the other, each a process of its own.

Parts go on when one misses a goal; the exit code is 1 if any did.
"""

from __future__ import annotations

import subprocess
import sys
import time

from rich.console import Console

from benchmarks.harness import ROOT

RESULTS = "bench-results"
EVERYONE = "ours,join,join_rocksdb,identity,jvm_only"
PARTS = {
    "workload W, 1,000,000 operations in 10 micro-batches": f"benchmarks --contenders {EVERYONE}",
    "workload W, 4,000,000 operations in 8 micro-batches": (
        # Contenders that use no Python run for minutes, and Spark ends the workers meanwhile.
        "benchmarks --operations 4000000 --batches 8 --no-unix-sockets "
        f"--contenders {EVERYONE},per_operation,with_timers "
        f"--json {RESULTS}/workload_w_4m.json --picture {RESULTS}/workload_w_4m.png"
    ),
    "workload W, micro-batches of 1000 operations, 2 shards": (
        "benchmarks --operations 60000 --batches 60 --shards 2 --rounds 5 "
        "--contenders ours,join,identity_rows "
        f"--json {RESULTS}/workload_w_small.json --picture {RESULTS}/workload_w_small.png"
    ),
    "sinks, 200 micro-batches": (
        "benchmarks.sinks --batches 200 --contenders ours,auto_compact,append_lean --rounds 2"
    ),
    "long waits": "benchmarks.long_waits --waiting 100000,1000000",
    "Flink beside it": "benchmarks.beside_flink --contenders blob,log,join",
    "milliseconds from an event to its outcome": "benchmarks.latency",
}


def main() -> int:
    """Run all parts; returns the exit code."""
    console = Console(highlight=False)
    missed = []
    for part, command in PARTS.items():
        console.rule(part)
        started = time.monotonic()
        if subprocess.run([sys.executable, "-m", *command.split()], cwd=ROOT, check=False).returncode:
            missed.append(part)
        console.print(f"{part}: {(time.monotonic() - started) / 60:.1f} min")
    for part in missed:
        console.print(f"MISSED goals, or failed: {part}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
