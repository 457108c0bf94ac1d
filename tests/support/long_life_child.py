"""A driver whose query is stopped and started: ``python -m tests.support.long_life_child FOLDER HOST STARTS BATCHES``.

After each start it lets so many micro-batches be committed, and notes in ``life.jsonl`` what there is of files and
memory. The folder is as that of `killed_child`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import psutil

from spark_purgatory import RecordAccumulator
from tests.support import killed_child
from tests.support.sink_queries import wait_until

LINGER = "3 seconds"


def files_below(folder: Path) -> int:
    """Files that are there; one may go meanwhile."""
    return sum(1 for path in folder.rglob("*") if path.suffix != ".crc")


def resident() -> dict[str, int]:
    """Bytes of this process, of the JVM and of the workers together."""
    sizes = {"driver": psutil.Process().memory_info().rss, "jvm": 0, "workers": 0}
    for process in psutil.Process().children(recursive=True):
        # A child that the JVM has just forked has all of the JVM's memory, and a name of neither.
        kind = {"java": "jvm", "python": "workers"}.get(process.name().rstrip("0123456789."), "")
        if kind:
            sizes[kind] += process.memory_info().rss
    return sizes


def main() -> None:
    folder, host, starts, batches = Path(sys.argv[1]), *sys.argv[2:]
    checkpoint, table = folder / host / "checkpoint", str(folder / host / "table")
    spark = killed_child.session(folder)
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    # By default the log of the files that were read keeps what is younger than ten minutes: a fast machine has more
    spark.conf.set("spark.sql.streaming.fileSource.log.cleanupDelay", "30s")
    sink = RecordAccumulator(path=table, linger=LINGER)
    for start in range(int(starts)):
        last = max((int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")), default=-1)
        began_s = time.monotonic()
        rows = killed_child.outcomes(spark, folder, host)
        query = sink.write_stream(rows, checkpoint=str(checkpoint), trigger={"processingTime": "0 seconds"})
        wait_until((checkpoint / "commits" / str(last + 1)).exists, query)
        restarted_s = time.monotonic() - began_s
        wait_until((checkpoint / "commits" / str(last + int(batches))).exists, query)
        noted = {
            "start": start,
            "batch": last + int(batches),
            "restart_s": restarted_s,
            "batch_s": (time.monotonic() - began_s - restarted_s) / int(batches),
            "state": files_below(checkpoint / "state"),
            "spark": sum(files_below(checkpoint / name) for name in ("offsets", "commits", "sources")),
            "staging": files_below(checkpoint / "staging"),
            "entries": files_below(checkpoint / "staging" / "log"),
            **resident(),
        }
        query.stop()
        with (folder / "life.jsonl").open("a", encoding="utf-8") as life:
            life.write(json.dumps(noted) + "\n")


if __name__ == "__main__":
    main()
