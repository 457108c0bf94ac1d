"""One run of a stream that kills itself: ``python -m tests.support.crash_child FOLDER [options]``.

``--kill "before intent"`` kills at that failpoint the first time it is reached, ``--by-name`` writes to a table by
name, in a metastore that outlives the process.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark_purgatory.demo.runner import QUICK_SETTINGS
from spark_purgatory.spark.sink.drain import actions as do
from spark_purgatory.spark.sink.drain import protocol, sender, spark_actions
from spark_purgatory.spark.sink.drain.table_truth import TableTruth
from spark_purgatory.spark.sink.record_accumulator import RecordAccumulator
from spark_purgatory.spark.sink.staging import staging_folder
from spark_purgatory.spark.sink.staging.ledger import DrainState, Ledger
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder
from spark_purgatory.spark.sink.table.delta_session import DELTA_SETTINGS

BATCH_BYTES = 16 << 10
ROW = "n bigint, part bigint, text string"


def quick(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Settings as the tests' own, without Delta."""
    builder = (
        builder.config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    for name, value in QUICK_SETTINGS.items():
        builder = builder.config(name, value)
    return builder


def builder_with(builder: SparkSession.Builder, folder: Path) -> SparkSession.Builder:
    """Settings as the tests' own, and the jars that an earlier session in this folder has noted."""
    from delta import configure_spark_with_delta_pip

    noted = folder / "jars.txt"
    builder = quick(builder).config("spark.databricks.delta.snapshotPartitions", "2")
    for name, value in DELTA_SETTINGS.items():
        builder = builder.config(name, value)
    if noted.exists():
        return builder.config("spark.jars", noted.read_text(encoding="utf-8"))
    return configure_spark_with_delta_pip(builder)


def session(folder: Path, by_name: bool = False) -> SparkSession:
    """A session in a process of its own, which logs all that a log may hold."""
    builder = builder_with(SparkSession.builder.master("local[2]"), folder)
    if by_name:
        builder = builder.config("spark.sql.catalogImplementation", "hive")
        builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        metastore = f"jdbc:derby:;databaseName={folder}/metastore;create=true"
        builder = builder.config("spark.hadoop.javax.jdo.option.ConnectionURL", metastore)
        builder = builder.config("spark.hadoop.datanucleus.schema.autoCreateAll", "true")
        builder = builder.config("spark.hadoop.hive.metastore.schema.verification", "false")
    spark = builder.config("spark.log.level", "INFO").getOrCreate()
    (folder / "jars.txt").write_text(str(spark.conf.get("spark.jars")), encoding="utf-8")
    return spark


def accumulator(folder: Path, by_name: bool = False) -> RecordAccumulator:
    """Files of 16 KiB: a drain every few micro-batches."""
    path, table = (None, "killed") if by_name else (str(folder / "table"), None)
    return RecordAccumulator(path=path, table=table, partition_by=["part"], batch_size=BATCH_BYTES, linger="10 minutes")


def run(spark: SparkSession, folder: Path, by_name: bool = False) -> None:
    """The stream to its end."""
    reader = spark.readStream.schema(ROW).option("maxFilesPerTrigger", 1)
    rows = reader.parquet(str(folder / "in"))
    query = accumulator(folder, by_name).write_stream(
        rows, checkpoint=str(folder / "checkpoint"), trigger={"availableNow": True}
    )
    query.awaitTermination()


def numbers(spark: SparkSession, folder: Path, by_name: bool = False) -> dict[int, int]:
    """How often each row is in the table."""
    rows = accumulator(folder, by_name).read(spark).groupBy("n").count().collect()
    return {row["n"]: row["count"] for row in rows}


def kill_at(name: str) -> Callable[[str], None]:
    """A hook that ends this process, as a power cut would."""

    def hook(reached: str) -> None:
        if reached == name:
            os.killpg(os.getpgrp(), signal.SIGKILL)

    return hook


# --- bugs, each a step of the protocol left out or done wrong -----------------------------------------------------


def _uncommitted_rows_go(patch: Callable[[Any, str, Any], None]) -> None:
    """A drain takes rows of the micro-batch that Spark runs now, and nobody compares what a replay brings."""
    decide, take_in = protocol.next_action, protocol.apply

    def eager(ledger: Ledger, policy: Any, work: do.Work, now_ms: int) -> Any:
        action = decide(ledger, policy, work, now_ms)
        is_over = isinstance(action, do.Return) and work.is_evaluated
        return (protocol._send(ledger, policy, now_ms, everything=False) or action) if is_over else action

    def trusting(ledger: Ledger, result: Any, work: do.Work, now_ms: int) -> None:
        if isinstance(result, do.Skipped):
            work.is_evaluated = True
        else:
            take_in(ledger, result, work, now_ms)

    patch(sender, "next_action", eager)
    patch(sender, "apply", trusting)


def _folders_forgotten(patch: Callable[[Any, str, Any], None]) -> None:
    """What was staged since the last intent counts in memory alone."""

    def adopt(self: Ledger, pieces: Any, before: int, repartitions: Any = ()) -> int:
        self.last_batch = max(self.last_batch, before - 1)
        return before

    patch(Ledger, "adopt", adopt)


def _no_overwrite_of_half(patch: Callable[[Any, str, Any], None]) -> None:
    """A micro-batch that has a folder counts, though Spark has not committed it."""
    adopt = Ledger.adopt

    def trusting(self: Ledger, pieces: Any, before: int, repartitions: Any = ()) -> int:
        listed = list(pieces)
        has_folder = any(piece.batch_id == before for piece in listed)
        return min(before, adopt(self, listed, before + has_folder))

    patch(Ledger, "adopt", trusting)
    patch(Ledger, "_complete", lambda self, folders, empty: next(iter(folders.values())))


def _no_intent(patch: Callable[[Any, str, Any], None]) -> None:
    """A drain is decided in memory alone."""
    write = StagingFolder.write_entry

    def silent(self: StagingFolder, spark: SparkSession, epoch: int, name: str, *rest: Any) -> None:
        if not name.startswith("intent"):
            write(self, spark, epoch, name, *rest)

    patch(StagingFolder, "write_entry", silent)
    patch(staging_folder, "check_alone", lambda spark, folder, intent: None)
    _no_judge(patch)


def _no_judge(patch: Callable[[Any, str, Any], None]) -> None:
    patch(TableTruth, "compare", lambda self, ledger, state: None)


def _clean_up_first(patch: Callable[[Any, str, Any], None]) -> None:
    """Pieces are removed before their commit."""
    carry_out = spark_actions.SparkActions.carry_out

    def eager(self: spark_actions.SparkActions, action: do.Action, ledger: Ledger, work: do.Work) -> Any:
        result = carry_out(self, action, ledger, work)
        if isinstance(result, do.Intended):
            after = deepcopy(ledger)
            after.take(result.intent)
            self.clean_up(work.spark, after)
        return result

    patch(spark_actions.SparkActions, "carry_out", eager)


def _no_open_intent(patch: Callable[[Any, str, Any], None]) -> None:
    """After a restart an open intent is taken as committed."""
    take_in = protocol.apply

    def trusting(ledger: Ledger, result: Any, work: do.Work, now_ms: int) -> None:
        take_in(ledger, result, work, now_ms)
        if isinstance(result, do.Looked):
            ledger.drain = DrainState.DONE

    patch(sender, "apply", trusting)


def _always_redo(patch: Callable[[Any, str, Any], None]) -> None:
    """After a restart an open intent is committed again, under the next number."""
    take_in = protocol.apply

    def doubting(ledger: Ledger, result: Any, work: do.Work, now_ms: int) -> None:
        take_in(ledger, result, work, now_ms)
        if isinstance(result, do.Looked) and ledger.intent is not None and not ledger.is_done:
            ledger.pieces = {piece.key: piece for piece in (*ledger.intent.taken, *ledger.pieces.values())}
            ledger.drain = DrainState.DONE

    patch(sender, "apply", doubting)


def _all_left_forgotten(patch: Callable[[Any, str, Any], None]) -> None:
    """An intent does not carry what it leaves."""
    take = Ledger.take

    def forgetful(self: Ledger, intent: Any) -> None:
        take(self, intent)
        self.pieces = {}

    patch(Ledger, "take", forgetful)


BUGS: dict[str, Callable[[Callable[[Any, str, Any], None]], None]] = {
    "a drain takes what Spark has not committed": _uncommitted_rows_go,
    "staged folders are forgotten": _folders_forgotten,
    "a half-written folder counts": _no_overwrite_of_half,
    "no intent": _no_intent,
    "clean-up before the commit": _clean_up_first,
    "an open intent is taken as committed": _no_open_intent,
    "an open intent is taken as not committed": _always_redo,
    "an intent forgets what it leaves": _all_left_forgotten,
}
"""How each is planted, by name."""


def main() -> None:
    """Run once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kill")
    parser.add_argument("--by-name", action="store_true")
    arguments = parser.parse_args()
    if arguments.kill:
        do.hook = kill_at(arguments.kill)
    spark = session(arguments.folder, arguments.by_name)
    run(spark, arguments.folder, arguments.by_name)
    found = numbers(spark, arguments.folder, arguments.by_name)
    (arguments.folder / "numbers.txt").write_text(
        "\n".join(f"{n} {count}" for n, count in sorted(found.items())), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
