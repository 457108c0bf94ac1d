"""Findings with Spark: about a session, and about a query's checkpoint, its states, its table, and whether both fit.

Workers report in a tiny job whose function is sent by value, so that one without spark_purgatory can answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_purgatory import errors
from spark_purgatory.config import SinkOptions
from spark_purgatory.core.engine.outcomes import Tally
from spark_purgatory.core.state.blob import read_metadata
from spark_purgatory.core.state.step_log import ShardState
from spark_purgatory.doctor.machine import Finding, note, release_finding
from spark_purgatory.errors import ConfigError, PurgatoryError, StateUnreadableError, sentence_of
from spark_purgatory.spark.checkpoint.shard_states import StateReaderError, gather_states, shard_states
from spark_purgatory.spark.host import requirements
from spark_purgatory.spark.sink.drain import table_truth
from spark_purgatory.spark.sink.drain.sender import Sender
from spark_purgatory.spark.sink.table.delta_target import is_without_delta, what_lacks
from spark_purgatory.spark.sink.table.formats import opened, with_format
from spark_purgatory.spark.sink.table.iceberg_target import EXTENSION as ICEBERG
from spark_purgatory.spark.sink.table.table_place import claimed_by
from spark_purgatory.spark.storage.checkpoint_files import damages
from spark_purgatory.spark.storage.storage_access import described, sql_text
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS, without_reach
from spark_purgatory.worker_python import arrow_remedy

PACKAGES = ("numpy", "pandas", "pyarrow", "pyspark", "spark_purgatory")  # What a worker imports to run a purgatory
TASKS = 16  # Tasks of the tiny job: some for each executor of a small cluster
TESTED_STORES = {"HDFSBackedStateStoreProvider": "on the JVM's heap", "RocksDBStateStoreProvider": "on disk"}
SHIP = "docs/shipping.md has the ways to give workers their packages"


def session_findings(spark: SparkSession) -> Iterator[Finding]:
    yield release_finding("Spark", spark.version)
    yield from worker_findings(spark)
    yield delta_finding(spark)
    if ICEBERG in (spark.conf.get("spark.sql.extensions", None) or ""):
        yield Finding("Iceberg", "in this session")
    yield store_finding(spark)


# --- workers --------------------------------------------------------------------------------------


def about_worker(packages: Sequence[str]) -> Callable[[Any], str]:
    """Make a function that describes the Python that runs it, as JSON. It is sent by value and imports its modules."""

    def about(_: Any) -> str:
        import json
        import socket
        import sys
        from importlib import import_module

        versions = {}
        for name in packages:
            try:
                versions[name] = str(getattr(import_module(name), "__version__", "fits"))
            except Exception as error:
                versions[name] = "not installed" if isinstance(error, ModuleNotFoundError) else f"broken: {error}"
        python = "{}.{}.{}".format(*sys.version_info[:3])
        facts = {"host": socket.gethostname(), "python": python, "executable": sys.executable, "packages": versions}
        return json.dumps(facts)

    return about


def worker_findings(spark: SparkSession) -> Iterator[Finding]:
    # Plain rows: with Arrow, a worker that lacks it could not answer.
    asked = (*PACKAGES, requirements.MESSAGES)
    ask = F.udf(about_worker(asked), "string", useArrow=False)
    try:
        rows = spark.range(0, TASKS, 1, TASKS).select(ask("id")).collect()
    except SPARK_FAULTS as error:
        remedy = f"set PYSPARK_PYTHON to a Python with {', '.join(PACKAGES)}; {SHIP}"
        if "PYTHON_VERSION_MISMATCH" in str(error):
            remedy = "have Python {}.{} on the workers: set PYSPARK_PYTHON; {}".format(*sys.version_info[:2], SHIP)
        yield Finding("workers", f"a tiny job failed: {sentence_of(error)}", remedy)
        return
    workers = [json.loads(facts) for (facts,) in rows]
    here = json.loads(about_worker(asked)(None))
    hosts = len({worker["host"] for worker in workers})
    others = sorted({worker["python"] for worker in workers} - {here["python"]})
    executables = ", ".join(sorted({worker["executable"] for worker in workers}))
    same_minor = all(other.split(".")[:2] == here["python"].split(".")[:2] for other in others)
    remedy = "" if same_minor else f"have Python {here['python']} there: set PYSPARK_PYTHON; {SHIP}"
    found = f"{', '.join(others) or here['python']} on {hosts} host(s) ({executables})"
    yield Finding("workers' Python", found, remedy)
    for package in PACKAGES:
        yield package_finding(package, here["packages"][package], {w["packages"][package] for w in workers})
    yield protobuf_finding({w["packages"][requirements.MESSAGES] for w in workers})


def package_finding(package: str, here: str, installed: set[str]) -> Finding:
    what = f"workers' {package}"
    if installed == {here}:
        return Finding(what, here, arrow_remedy(pyspark.__version__, here) if package == "pyarrow" else "")
    install = f"have {package} {here} in every worker's environment; {SHIP}"
    return Finding(what, f"{', '.join(sorted(installed))}; this process has {here}", install)


def protobuf_finding(installed: set[str]) -> Finding:
    """Report whether workers have what ``host="transformWithState"`` needs; a note, as the other host needs none."""
    what, found = "workers' protobuf", ", ".join(sorted(installed))
    if installed == {"fits"}:
        return Finding(what, found)
    way = f"pip install {requirements.fitting_protobuf()} on each"
    return note(what, f"{found}; only host='transformWithState' needs it: {way}")


# --- Delta and the state store ---------------------------------------------------------------------


def delta_finding(spark: SparkSession) -> Finding:
    try:
        described(spark, sql_text("/"))
    except SPARK_FAULTS as error:
        if is_without_delta(error) and ICEBERG in (spark.conf.get("spark.sql.extensions", None) or ""):
            return note("Delta", "not in this session, which writes Iceberg tables alone")
        if is_without_delta(error):
            return Finding("Delta", "not in this session", what_lacks(spark))
        return Finding("Delta", sentence_of(error), "see the message; the session must reach its file system")
    return Finding("Delta", "in this session")


def store_finding(spark: SparkSession) -> Finding:
    store = str(spark.conf.get(requirements.PROVIDER)).rpartition(".")[2]
    if store in TESTED_STORES:
        return Finding("state store", f"{store}, {TESTED_STORES[store]}")
    return Finding("state store", store, f"set {requirements.PROVIDER} to one of {' and '.join(TESTED_STORES)}")


STAGING = f"bring back the checkpoint's folder `staging` from a copy, or {errors.START_OVER}"
FAULTS: tuple[type[Exception], ...] = (PurgatoryError, *SPARK_FAULTS)


def query_findings(spark: SparkSession, checkpoint: str) -> Iterator[Finding]:
    """Yield all findings about a query, by the checks that its start makes."""
    claimed: dict[str, str] = {}
    try:
        claimed = claimed_by(spark, checkpoint)
        has_table = bool(claimed)
    except FAULTS as error:
        has_table = True  # Its entry is there, and damaged.
        yield Finding("table of the checkpoint", sentence_of(error), without_reach(error) or STAGING)
    yield from checkpoint_findings(spark, checkpoint, has_table)
    if claimed:
        yield from table_findings(spark, claimed, checkpoint)


# --- the checkpoint --------------------------------------------------------------------------------------------------


def checkpoint_findings(spark: SparkSession, checkpoint: str, has_table: bool = False) -> Iterator[Finding]:
    """Yield the findings about a checkpoint; ``has_table``: a RecordAccumulator made it."""
    with suppress(*SPARK_FAULTS):  # No query has begun there, or the place cannot be reached.
        if damaged := damages(spark, checkpoint):
            yield from (Finding(f"checkpoint's {each.path}", each.fault, each.remedy) for each in damaged)
            return
    try:
        states = shard_states(spark, checkpoint)
    except StateReaderError as error:
        yield Finding("checkpoint", "its state cannot be read at this path", str(error))
    except (StateUnreadableError, ConfigError) as error:
        is_gone = isinstance(error, StateUnreadableError)
        if "_metadata" in str(error) or not has_table:
            yield Finding("checkpoint", "its state is gone" if is_gone else "not a purgatory's", str(error))
        else:
            gone = f"without a state; if its query has a purgatory, {errors.RESTORE_STATE}"
            found = gone if is_gone else "with no purgatory's state"
            yield note("checkpoint", f"{checkpoint}: a RecordAccumulator's, {found}")
    except SPARK_FAULTS as error:
        yield Finding("checkpoint", sentence_of(error), without_reach(error) or errors.RESTORE_STATE)
    else:
        if states is None:
            yield note("checkpoint", f"{checkpoint}: no micro-batch is committed yet")
            return
        yield Finding("checkpoint", f"{checkpoint}: micro-batch {states.batch_id} is committed; host={states.host!r}")
        yield from state_findings(states.whole)


def state_findings(states: DataFrame) -> Iterator[Finding]:
    try:
        shards = gather_states(states, _about_state)
    except FAULTS as error:
        cause = error.__cause__ or error
        damage = sentence_of(cause).removesuffix(f": {errors.RESTORE_STATE}")
        yield Finding("state", damage, without_reach(cause) or errors.RESTORE_STATE)
        return
    if shards:
        yield Finding("shards", f"shards={shards[0]['shards']}; {len(shards):,} have a state")
    yield Finding("pending", f"{sum(shard['pending'] for shard in shards):,} operations")


def _about_state(state: ShardState) -> Iterator[dict[str, Any]]:
    yield {"shards": read_metadata(state.blob())["shards"], "pending": Tally(**state.metadata()["tally"]).pending}


# --- the table -------------------------------------------------------------------------------------------------------


def table_findings(spark: SparkSession, place: Mapping[str, str], checkpoint: str) -> Iterator[Finding]:
    options = SinkOptions(path=place.get("path"), table=place.get("table"))
    try:
        target = opened(with_format(spark, options))
        facts = target.facts(spark)
    except PurgatoryError as error:
        name = type(error).__name__
        yield Finding("table", f"{name}: exactly-once would end" if "Forgets" in name else name, str(error))
        return
    except SPARK_FAULTS as error:
        yield Finding("table", sentence_of(error), "give the session what its storage or catalog needs")
        return
    if facts is None:
        yield note("table", f"{target}: there is none yet, the first drain makes it")
    else:
        partitions = f", partitioned by {', '.join(facts.partition_by)}" if facts.partition_by else ""
        yield Finding("table", f"{target}: {target.format}, in {facts.location}{partitions}")
    what = "table and checkpoint"
    try:
        sender = Sender(with_format(spark, options), checkpoint)
        ledger = sender.open(spark)
        table_truth.look(ledger, sender.target.state(spark, ledger.first_needed_version))
        if (intent := ledger.intent) is not None and not ledger.is_done:
            state = sender.target.state_after(spark, ledger.names.app_id, intent, None)
            table_truth.read_back(ledger, intent, state)
    except PurgatoryError as error:
        yield Finding(what, type(error).__name__, str(error))
        return
    except SPARK_FAULTS as error:
        yield Finding(what, sentence_of(error), without_reach(error) or STAGING)
        return
    drains = ledger.intent.number + 1 if ledger.intent else 0
    last = "complete" if ledger.is_done or not drains else "not yet"
    yield Finding(what, f"fit: {drains:,} drain{'s' * (drains != 1)}, the last {last}")
