"""`python -m tests.conformance`: see the package's own words."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import tests.conformance
from tests.conformance.replay import REPLAYERS, replay
from tests.conformance.traces import NotATrace, UnreadableTrace, find_files, pack, read_file


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


def run_replay(paths: Sequence[Path], batched: bool) -> int:
    """Replay every trace below ``paths``, printing the first mismatch of each; the line of counts comes last."""
    replayed, passed, no_replayer, unknown = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    is_unreadable = False
    for file in find_files(paths):
        try:
            for trace in read_file(file):
                if trace.kind not in REPLAYERS:
                    no_replayer[trace.kind] += 1
                    continue
                outcome = replay(trace, batched=batched)
                replayed[trace.kind] += 1
                passed[trace.kind] += outcome.mismatch is None
                unknown.update({f"{trace.kind}: {what}": count for what, count in outcome.unknown.items()})
                if outcome.mismatch:
                    print(outcome.mismatch)
        except NotATrace as error:
            print(f"{error}, passed over")
        except UnreadableTrace as error:
            is_unreadable = True
            print(error)
    for what, count in sorted(unknown.items()):
        print(f"{what}: not known to the replayer, passed over {count} times")
    for kind, count in sorted(no_replayer.items()):
        print(f"{kind}: no replayer yet, {count} traces not replayed")
    counts = [f"{kind} {passed[kind]}/{replayed[kind]}" for kind in REPLAYERS if replayed[kind]]
    print("conformance:", *(counts or ["nothing replayed"]))
    if is_unreadable or passed != replayed:
        return 1
    return 0 if counts else 2


if __name__ == "__main__":
    sys.exit(main())
