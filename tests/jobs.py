"""`python -m tests.jobs [--stop-minutes 40] [JOB ...]`: the jobs of `make test-all` in turn, and what each took.

Each is a target of the Makefile and needs nothing of another, so machines can share them.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.support.measured import measured

MINUTES = {
    "test-kills": 5,
    "test-pages": 6,
    "test-oldest": 5,
    "test-spark": 22,
    "test-pure": 12,
    "test-places": 10,
    "test-log-host": 4,
    "test-iceberg": 8,
    "crash": 60,
    "test-matrix": 60,
}
"""By job, estimated for two quiet cores; the end of a run says what they took."""


def main() -> int:
    """Run them; 0 if all that ran are green."""
    parser = argparse.ArgumentParser(prog="python -m tests.jobs")
    parser.add_argument("jobs", nargs="*", choices=[[], *MINUTES], help=f"of {', '.join(MINUTES)}; default: all")
    parser.add_argument("--stop-minutes", type=float, default=float("inf"), help="begin none after so many minutes")
    asked = parser.parse_args()
    began, codes, results = time.monotonic(), [], []
    for job in asked.jobs or MINUTES:
        gone = (time.monotonic() - began) / 60
        if gone > asked.stop_minutes:
            results.append(f"{job}: left out after {gone:.0f} minutes")
            continue
        print(f"--- make {job}", flush=True)
        code, took = measured(["make", "--no-print-directory", job])
        codes.append(code)
        results.append(f"{job}: {took}{f', exit code {code}' if code else ''}")
    print(*results, sep="\n")
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
