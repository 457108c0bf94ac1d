"""Histories for as long as you like: ``python -m tests.simulation [--minutes M] [--seeds FIRST[-END]] [--bug NAME]``.

A failing history is printed as a list of its fewest steps. ``--bugs`` plants each known fault, and prints after how
many histories it was found. ``--cells`` plays each check in each scenario.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import count

from tests.simulation.cells import table
from tests.simulation.planted import PLANTED, hunt
from tests.simulation.play import Played, play

SHOWN_SECONDS = 10.0
MOST_FAILURES = 5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long, where no seeds are given")
    parser.add_argument("--seeds", default="", help="1234: that one; 1000-: from there on; 1000-2000: these")
    parser.add_argument("--bugs", nargs="*", help="plant known faults, all or those whose names have a word")
    parser.add_argument("--cells", action="store_true", help="play each check in each scenario, and print a table")
    given = parser.parse_args()
    if given.cells:
        lines, red = table()
        print("\n".join(lines))
        return 1 if red else 0
    if given.bugs is not None:
        return _bugs(given.bugs)
    first, _, end = given.seeds.partition("-")
    begins = int(first or time.time_ns() // 1_000_000 % 1_000_000_000)
    ends = begins + 1 if given.seeds and not _ else int(end) if end else 0
    until = float("inf") if ends else time.monotonic() + 60 * given.minutes
    shown, told = time.monotonic(), 0

    def is_over(played: Played) -> bool:
        nonlocal shown, told
        for failure in played.failures[told:]:
            print(failure, flush=True)
        told = len(played.failures)
        if time.monotonic() - shown > SHOWN_SECONDS:
            shown = time.monotonic()
            found = f"{len(played.failures)} wrong"
            print(f"{played.histories:,} histories, {played.a_minute:,.0f} a minute, {found}", flush=True)
        return len(played.failures) >= MOST_FAILURES or time.monotonic() > until

    print(f"seeds from {begins:,} on", flush=True)
    played = play(range(begins, ends) if ends else count(begins), is_over)
    print(
        f"{played.histories:,} histories, {played.a_minute:,.0f} a minute of one core, {len(played.failures)} wrong; "
        + ", ".join(f"{number:,} x {name}" for name, number in played.seen.most_common())
    )
    return 1 if played.failures else 0


def _bugs(words: list[str]) -> int:
    unseen = 0
    for name in (name for name in PLANTED if all(word in name for word in words)):
        histories, failure = hunt(PLANTED[name])
        unseen += failure is None
        print(f"{name}: " + ("not found" if failure is None else f"found after {histories:,} histories"))
        if failure is not None:
            print(failure, flush=True)
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
