"""Findings about a Spark session: release, Delta, workers' Python and packages, sockets, state store, clocks.

Workers report in a tiny job whose function is sent by value, so that one without spark_purgatory can answer.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_purgatory.config.options import LOG_HOST
from spark_purgatory.doctor.machine import Finding, note, release_finding
from spark_purgatory.errors import ConfigError, sentence_of
from spark_purgatory.spark.host import requirements
from spark_purgatory.spark.host.exchange import unix_sockets
from spark_purgatory.spark.sink.table.delta_session import is_without_delta, what_lacks
from spark_purgatory.spark.sink.table.delta_target import DEFAULTS, FORGETS
from spark_purgatory.spark.sink.table.iceberg_target import EXTENSION as ICEBERG
from spark_purgatory.spark.sink.table.iceberg_target import iceberg_package
from spark_purgatory.spark.sink.table.table_place import FORGETS_NAMES, SESSION_CATALOG, forgets_names
from spark_purgatory.spark.storage.spark_access import setting_of
from spark_purgatory.spark.storage.storage_access import described, sql_text
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS
from spark_purgatory.worker_python import arrow_remedy

PACKAGES = ("numpy", "pandas", "pyarrow", "pyspark", "spark_purgatory")  # What a worker imports to run a purgatory
TASKS = 16  # Tasks of the tiny job: some for each executor of a small cluster
MAX_CLOCK_SKEW_MS = 60_000
TESTED_STORES = {"HDFSBackedStateStoreProvider": "on the JVM's heap", "RocksDBStateStoreProvider": "on disk"}
SOCKETS = "spark.python.unix.domain.socket.enabled"
RETAINED = "spark.sql.streaming.minBatchesToRetain"
SHIP = "docs/shipping.md has the ways to give workers their packages"


def session_findings(spark: SparkSession) -> Iterator[Finding]:
    """Yield all findings about a session, in the order in which a query would need it."""
    yield release_finding("Spark", spark.version)
    yield from worker_findings(spark)
    yield delta_finding(spark)
    yield iceberg_finding(spark)
    yield transactions_finding(spark)
    yield from setting_findings(spark)


# --- workers --------------------------------------------------------------------------------------


def about_worker(packages: Sequence[str]) -> Callable[[Any], str]:
    """Make a function that describes the Python that runs it, as JSON. It is sent by value and imports its modules."""

    def about(_: Any) -> str:
        import json
        import socket
        import sys
        import time
        from importlib import import_module

        versions = {}
        for name in packages:
            try:
                versions[name] = str(getattr(import_module(name), "__version__", "fits"))
            except Exception as error:
                versions[name] = "not installed" if isinstance(error, ModuleNotFoundError) else f"broken: {error}"
        python, now_ms = "{}.{}.{}".format(*sys.version_info[:3]), int(time.time() * 1000)
        said = {"host": socket.gethostname(), "python": python, "executable": sys.executable, "now_ms": now_ms}
        return json.dumps({**said, "packages": versions})

    return about


def worker_findings(spark: SparkSession) -> Iterator[Finding]:
    """Yield findings about the workers' Python, packages and clocks, compared with this process's."""
    # Plain rows: with Arrow, a worker that lacks it could not answer.
    asked = (*PACKAGES, requirements.MESSAGES)
    ask = F.udf(about_worker(asked), "string", useArrow=False)
    began_ms = time.time() * 1000
    try:
        answers = spark.range(0, TASKS, 1, TASKS).select(ask("id").alias("said"), F.unix_millis(F.now()).alias("at"))
        rows = answers.collect()
    except SPARK_FAULTS as error:
        remedy = f"set PYSPARK_PYTHON to a Python with {', '.join(PACKAGES)}; {SHIP}"
        if "PYTHON_VERSION_MISMATCH" in str(error):
            remedy = "have Python {}.{} on the workers: set PYSPARK_PYTHON; {}".format(*sys.version_info[:2], SHIP)
        yield Finding("workers", f"a tiny job failed: {sentence_of(error)}", remedy)
        return
    ended_ms = time.time() * 1000
    workers = [json.loads(row["said"]) for row in rows]
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
    moments = [worker["now_ms"] for worker in workers] + [row["at"] for row in rows]
    skew_ms = max([0, *(began_ms - moment for moment in moments), *(moment - ended_ms for moment in moments)])
    yield clock_finding("workers' clocks", skew_ms, "this machine's")


def package_finding(package: str, here: str, there: set[str]) -> Finding:
    """Report whether workers have the same version of a package as this process."""
    what = f"workers' {package}"
    if there == {here}:
        return Finding(what, here, arrow_remedy(pyspark.__version__, here) if package == "pyarrow" else "")
    install = f"have {package} {here} in every worker's environment; {SHIP}"
    return Finding(what, f"{', '.join(sorted(there))}; this process has {here}", install)


def protobuf_finding(there: set[str]) -> Finding:
    """Report whether workers have what ``host="transformWithState"`` needs; a note, as the other host needs none."""
    what, found = "workers' protobuf", ", ".join(sorted(there))
    if there == {"fits"}:
        return Finding(what, found)
    way = f"pip install {requirements.fitting_protobuf()} on each"
    return note(what, f"{found}; only host='transformWithState' needs it: {way}")


def clock_finding(what: str, skew_ms: float, than: str) -> Finding:
    """Report whether two clocks agree: `max_future` and ``linger`` compare event times with processing time."""
    if skew_ms <= MAX_CLOCK_SKEW_MS:
        return Finding(what, f"within {MAX_CLOCK_SKEW_MS // 1000} s of {than}")
    found = f"{skew_ms / 1000:.0f} s away from {than}"
    return Finding(what, found, "set the clocks by NTP: max_future, idle_after and linger read them")


# --- Delta and settings ---------------------------------------------------------------------------


def delta_finding(spark: SparkSession) -> Finding:
    """Report whether the session reads and writes Delta tables."""
    try:
        described(spark, sql_text("/"))
    except SPARK_FAULTS as error:
        if is_without_delta(error) and ICEBERG in (spark.conf.get("spark.sql.extensions", None) or ""):
            return note("Delta", "not in this session, which writes Iceberg tables alone")
        if is_without_delta(error):
            return Finding("Delta", "not in this session", what_lacks(spark).replace(" Nothing was started.", ""))
        return Finding("Delta", sentence_of(error), "see the message; the session must reach its file system")
    return Finding("Delta", "in this session")


def iceberg_finding(spark: SparkSession) -> Finding:
    """Report whether the session writes Iceberg tables, or could."""
    if ICEBERG in (spark.conf.get("spark.sql.extensions", None) or ""):
        return Finding("Iceberg", "in this session")
    found = iceberg_package(spark.version) or f"there is none for Spark {spark.version} yet"
    return note("Iceberg", f"not in this session; its package: {found}")


def transactions_finding(spark: SparkSession) -> Finding:
    """Report whether tables made in this session keep their transactions."""
    name = DEFAULTS + FORGETS.removeprefix("delta.")
    value = spark.conf.get(name, None)
    found = f"{name} = {value}" if value else "their properties have no default that ends it"
    return Finding("new tables keep transactions", found, f"unset {name}" if value else "")


def setting_findings(spark: SparkSession) -> Iterator[Finding]:
    """Yield findings about the settings that a query has from its session."""
    store = str(spark.conf.get(requirements.PROVIDER)).rpartition(".")[2]
    remedy = f"set {requirements.PROVIDER} to one of {' and '.join(TESTED_STORES)}: no other is tested"
    found, remedy = (f"{store}, {TESTED_STORES[store]}", "") if store in TESTED_STORES else (store, remedy)
    yield Finding("state store", found, remedy)
    if store == "RocksDBStateStoreProvider":
        name = requirements.CHANGELOG
        yield note("state store's changelog", f"{name} = {spark.conf.get(name, 'false')}")
    yield log_host_finding(spark)
    if forgets_names(spark, SESSION_CATALOG):
        way = "give path in place of table, or a persistent catalog (spark.sql.catalogImplementation=hive)"
        yield note("names of tables", f"{FORGETS_NAMES}: {way}")
    yield note("micro-batches kept", f"{spark.conf.get(RETAINED)} ({RETAINED}): pending and rollbacks reach so far")
    try:
        requirements.check_streaming(spark.conf.get)
    except ConfigError as error:
        yield Finding("streaming settings", "would lead to wrong outcomes", str(error))
    if requirements.runs_only_with_rows(spark):
        yield note("deadlines on a silent stream", f"{requirements.NO_DATA} = false: {requirements.ONLY_WITH_ROWS}")
    if setting_of(spark, SOCKETS) == "true":
        yield Finding("Unix sockets", "between the JVM and Python")
    elif unix_sockets("/tmp"):
        yield note("Unix sockets", f"off: over TCP a Python task waits about 40 ms. At its start: {SOCKETS} = true")


def log_host_finding(spark: SparkSession) -> Finding:
    """Report whether a purgatory could have ``host="transformWithState"``, and with the settings that make it fast."""
    what = f'host="{LOG_HOST}"'
    try:
        requirements.check_log_host(spark)
    except ConfigError as error:
        why = re.split(r", and |: ", str(error).removeprefix(what).strip())[0]
        return note(what, f"not in this session: {why}")
    if "RocksDB" not in str(spark.conf.get(requirements.PROVIDER)):
        ready = "ready for RecordAccumulator.write_stream; for another start set STATE_STORE_SETTINGS before it"
        return note(what, ready)
    wanted = requirements.STATE_STORE_SETTINGS.items()
    lacking = [f"{name} = {value}" for name, value in wanted if spark.conf.get(name, None) != value]
    return note(what, f"slower than it could be: set {', '.join(lacking)}") if lacking else Finding(what, "ready")
