"""`python -m tests.conformance`: see the package's own words."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import tests.conformance
from tests.conformance.replay import REPLAYERS, replay
from tests.conformance.traces import NotATrace, Trace, UnreadableTrace, find_files, pack, read_file


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay or pack; 0 when every answer was Kafka's, 1 when one was not, 2 when there was nothing to do."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance",
        description=tests.conformance.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="DIR", help="folders of traces, or files")
    parser.add_argument("--batched", action="store_true", help="one call for steps that may share it")
    parser.add_argument("--pack", action="store_true", help="the last DIR is where the packed traces go")
    options = parser.parse_args(arguments)
    try:
        if options.pack:
            return run_pack(options.paths, parser)
        return run_replay(options.paths, options.batched)
    except UnreadableTrace as error:
        print(error, file=sys.stderr)
        return 2


def run_pack(paths: Sequence[Path], parser: argparse.ArgumentParser) -> int:
    """Pack every trace below all but the last of ``paths`` into the last."""
    if len(paths) < 2:
        parser.error("--pack wants DIR and OUT")
    for file, count in pack(paths[:-1], paths[-1]).items():
        print(f"{file}: {count} traces, {file.stat().st_size:,} bytes")
    return 0


class Tally:
    """What came of all traces so far."""

    def __init__(self, batched: bool) -> None:
        self.batched = batched
        self.replayed: Counter[str] = Counter()
        self.passed: Counter[str] = Counter()
        self.no_replayer: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.unreadable = 0

    def add_file(self, file: Path) -> None:
        """Replay the traces of a file and print the first mismatch of each."""
        try:
            for trace in read_file(file):
                self.add(trace)
        except NotATrace as error:
            print(f"{error}, passed over")
        except UnreadableTrace as error:
            self.unreadable += 1
            print(error)

    def add(self, trace: Trace) -> None:
        """Replay one trace and print its first mismatch."""
        if trace.kind not in REPLAYERS:
            self.no_replayer[trace.kind] += 1
            return
        outcome = replay(trace, batched=self.batched)
        self.replayed[trace.kind] += 1
        self.passed[trace.kind] += outcome.mismatch is None
        self.unknown.update({f"{trace.kind}: {what}": count for what, count in outcome.unknown.items()})
        if outcome.mismatch:
            print(outcome.mismatch)


def run_replay(paths: Sequence[Path], batched: bool) -> int:
    """Replay every trace below ``paths``; the line of counts comes last."""
    tally = Tally(batched)
    for file in find_files(paths):
        tally.add_file(file)
    for what, count in sorted(tally.unknown.items()):
        print(f"{what}: not known to the replayer, passed over {count} times")
    for kind, count in sorted(tally.no_replayer.items()):
        print(f"{kind}: no replayer yet, {count} traces not replayed")
    counts = [f"{kind} {tally.passed[kind]}/{tally.replayed[kind]}" for kind in REPLAYERS if tally.replayed[kind]]
    print("conformance:", *(counts or ["nothing replayed"]))
    if tally.unreadable or tally.passed != tally.replayed:
        return 1
    return 0 if counts else 2


if __name__ == "__main__":
    sys.exit(main())
