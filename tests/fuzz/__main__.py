"""`python -m tests.fuzz`: fuzz the readers of bytes, each with so many inputs or for so long; prints a line for each.

It ends with 1 if a reader had a fault, and prints the input in hexadecimal.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from pathlib import Path

from tests.fuzz.fuzzer import fuzz, limit_memory, until
from tests.fuzz.readers import readers


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--inputs", type=int, default=0, help="for each reader")
    options.add_argument("--minutes", type=float, default=10.0, help="for all readers, without --inputs")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--reader", default="", help="only those with this in their name")
    options.add_argument("--current", type=Path, default=None, help="the file for the input under way")
    given = options.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        return run(given, Path(name))


def run(given: argparse.Namespace, folder: Path) -> int:
    """Fuzz what was asked for, with files in the folder."""
    current = given.current or folder / "current"
    current.touch()
    chosen = [reader for reader in readers(folder) if given.reader in reader.name]
    limit_memory()
    faults = 0
    for reader in chosen:
        inputs = given.inputs
        goes_on = (lambda made, most=inputs: made < most) if inputs else until(60 * given.minutes / len(chosen))
        found = fuzz(reader, given.seed, goes_on, current)
        print(found, flush=True)
        for place, data in found.faults.items():
            print(f"  {place}\n    {data[:2000]}", flush=True)
        faults += len(found.faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
