"""The job: two streams named in a YAML file, one outcome for each operation in a Delta table or a Kafka topic.

A rerun with the same checkpoint loses nothing. A table has each outcome once, a topic once or more often.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from spark_purgatory import metrics
from spark_purgatory.errors import SourceError, without_login
from spark_purgatory.job import dead_letters
from spark_purgatory.job.arguments import log_file
from spark_purgatory.job.config_file import load_config
from spark_purgatory.job.job_config import JobConfig, MetricsOutput
from spark_purgatory.job.last_run import nothing_new, table_version_of, write_last_run
from spark_purgatory.job.one_run import only_run
from spark_purgatory.job.progress import ProgressDisplay, Query
from spark_purgatory.job.run_report import ExitCode, RunReport, guarded
from spark_purgatory.job.session import build_session
from spark_purgatory.job.source_config import BROKERS
from spark_purgatory.job.sources import MICROSECONDS, outcomes_of
from spark_purgatory.job.stopping import StopRequest
from spark_purgatory.job.summary import (
    JobTally,
    Summary,
    print_summary,
    removed_rows,
    summarise,
    topic_line,
    warnings_of,
)
from spark_purgatory.spark.checkpoint.pending import counted
from spark_purgatory.spark.checkpoint.shard_states import is_checkpoint, shard_states
from spark_purgatory.spark.checkpoint.start_check import settings_to_start
from spark_purgatory.spark.monitoring.monitor import monitor
from spark_purgatory.spark.operator.field_types import key_text
from spark_purgatory.spark.operator.inputs import field_of
from spark_purgatory.spark.sink.accumulator_query import AccumulatorQuery
from spark_purgatory.spark.sink.record_accumulator import RecordAccumulator, trigger_of
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder, read_ledger
from spark_purgatory.spark.sink.table.formats import opened, with_format
from spark_purgatory.spark.storage.checkpoint_files import NoCheckpointError, check_files
from spark_purgatory.spark.storage.query_start import started
from spark_purgatory.terminal import at_work, say, terminal

POLL_SECONDS = 0.25  # How often progress is read, and how long a signal waits at most
AS_JSON = {"ignoreNullFields": "false"} | MICROSECONDS  # Every record has all fields, and times as exact as Spark's
NO_TOPIC = (
    "the brokers have no topic of a name that is in the job's file, in a source or in output. Make the topic, or "
    "correct the name, and start the job again; the checkpoint may stay"
)
NO_BROKER = (
    f"no Kafka broker answers at {BROKERS} in the options of a source or of output: is the address right, is it a "
    "broker's (no controller's), and do the security options fit? Nothing was lost: start the job again when it answers"
)
KAFKA_FAULTS = {  # By what is in Spark's error, which does not name the file's fields
    "UnknownTopicOrPartitionException": NO_TOPIC,
    "Timed out waiting for a node assignment": NO_BROKER,
    "Failed to create new KafkaAdminClient": NO_BROKER,
    "The node does not support METADATA": NO_BROKER,
    "Timeout expired while fetching topic metadata": NO_BROKER,
}


def run(
    spark: SparkSession,
    config: JobConfig,
    console: Console,
    stop: StopRequest,
    spark_log: Path | None = None,
    report: RunReport | None = None,
) -> Summary | None:
    """Run the query until it ends or is asked to stop; return its summary, if the file wants one.

    ``report`` gets the facts of the run while it goes on.
    """
    report = RunReport() if report is None else report
    with at_work(console, f"{config.name}: looking at sources, checkpoint and table"):
        sink = None if config.output.topic else RecordAccumulator(**vars(config.output.made()))
        outcomes = outcomes_of(spark, config)
    wanted = config.metrics or MetricsOutput.model_construct()
    reporters = list(reporters_of(wanted))  # An error about a port comes before a query starts
    dead = dead_letters.start(spark, config)
    name = config.options().name
    try:
        with ProgressDisplay(console, name, config.name, spark_log) as progress:
            query: Query
            if sink is None:
                query, progress.totals.pending = start_topic(spark, outcomes, config)
            else:
                trigger = config.trigger.model_dump(exclude_none=True)
                query = written = sink.write_stream(
                    outcomes, checkpoint=config.checkpoint, trigger=trigger, query_name=config.name
                )
                progress.totals.pending = written.waiting_at_start
            report.see(query)
            report.totals = progress.totals
            if reporters:
                every = wanted.gauges_every
                monitor(query, *reporters, checkpoint=config.checkpoint, gauges_every=every, name=name)
            try:
                _follow(query, dead, progress, stop)
            finally:
                report.see(query)
    except StreamingQueryException as error:
        if fault := kafka_fault(str(error)):
            raise SourceError(fault) from error
        raise
    finally:
        if dead is not None:
            dead.stop()
    if stop.signal is not None:
        by, batches = signal.Signals(stop.signal).name, progress.totals.batches
        when = f"after {batches:,} micro-batch{'es' * (batches != 1)}" if batches else "before a micro-batch had ended"
        say(console, f"Stopped by {by} {when}; a rerun continues from {without_login(config.checkpoint)}.")
    if config.summary:
        _end(spark, config, sink, console, report=report, is_stopped=stop.signal is not None)
    for text in warnings_of(progress.totals):
        say(console, f"{text}.", style="yellow" if text.startswith("Warning") else None)
    return report.summary


def reporters_of(wanted: MetricsOutput) -> Iterator[metrics.Reporter]:
    if wanted.prometheus_port is not None:
        yield metrics.prometheus(wanted.prometheus_port)
    if wanted.opentelemetry:
        yield metrics.opentelemetry()


def _follow(query: Query, dead: StreamingQuery | None, progress: ProgressDisplay, stop: StopRequest) -> None:
    """Wait until the query and the one of dead letters have ended; if one has failed, stop the other."""
    both: tuple[Query, ...] = (query, dead) if dead else (query,)

    def runs() -> bool:
        failed = any(not each.isActive and each.exception() is not None for each in both)
        return not failed and any(each.isActive for each in both)

    try:
        while runs() and not stop.event.wait(POLL_SECONDS):
            progress.update(query)
        if stop.event.is_set():
            progress.stopping()
        if not (stop.event.is_set() or query.isActive):
            query.awaitTermination()  # Raises the query's error
        elif isinstance(query, AccumulatorQuery):
            query.stop(drain=True)  # The rows that linger go out: a stopped job leaves nothing behind
        else:
            query.stop()
        if dead is not None and not dead.isActive:
            dead.awaitTermination()
    finally:
        progress.update(query)


def _end(
    spark: SparkSession,
    config: JobConfig,
    sink: RecordAccumulator | None,
    console: Console,
    report: RunReport,
    is_stopped: bool,
) -> None:
    version = table_version_of(config)
    tally, report.gauges = _counted(spark, config.checkpoint)
    summary = report.summary = _summarise(spark, config, sink, console, tally)
    if summary is not None and not is_stopped:
        write_last_run(spark, config, version, summary, report.gauges)


def _counted(spark: SparkSession, checkpoint: str) -> tuple[JobTally, dict[str, Any]]:
    """Count a checkpoint's operations, which are none if no micro-batch is committed."""
    try:
        states = shard_states(spark, checkpoint)
    except NoCheckpointError:
        states = None
    if states is None:
        return JobTally(), {}
    found, received, decided = counted(states)
    return JobTally(received, decided, found["pending"]), dict(found)


def _summarise(
    spark: SparkSession,
    config: JobConfig,
    sink: RecordAccumulator | None,
    console: Console,
    tally: JobTally,
) -> Summary | None:
    summary, staged, exists = None, 0, sink is not None and sink.table_exists(spark)
    if sink is not None and not sink.options.drain_at_end and tally.received:
        staged = read_ledger(spark, StagingFolder.of(spark, config.checkpoint)).recorded_rows
    if sink is None:
        say(console, f"Written to topic {config.output.topic}. {topic_line(tally)}")
    elif not exists and not staged:
        console.print("No batch was committed: there is no table yet.")
        return None
    else:
        target = opened(with_format(spark, sink.options))
        rows = sink.read(spark, staged=staged > 0, checkpoint=config.checkpoint)
        sizes = target.file_sizes(spark) if exists else []
        summary = replace(summarise(rows, tally, sizes, config.options().prefix), staged=staged)
        if not summary.conserved:
            summary = replace(summary, removed=removed_rows(spark, target))
        print_summary(console, summary, str(sink))
    if config.dead_letters is not None:
        say(console, dead_letters.count_line(spark, config.dead_letters))
    return summary


def start_topic(spark: SparkSession, outcomes: DataFrame, config: JobConfig) -> tuple[StreamingQuery, int]:
    """Start the query that writes a topic; return it, and how many operations wait.

    A record's key is the operation's id as text, its value the outcome's row in JSON. A micro-batch that fails is
    written again, with the same keys and values.
    """
    assert config.output.topic is not None, "bug: the output is no topic"
    if is_checkpoint(spark, config.checkpoint):
        check_files(spark, config.checkpoint)
    decide, waiting = settings_to_start(outcomes, config.checkpoint)
    records = topic_records(outcomes, str(config.operations.made().id))
    writer = records.writeStream.format("kafka").options(**config.output.options).option("topic", config.output.topic)
    writer = writer.queryName(config.name).trigger(**trigger_of(**config.trigger.model_dump())).outputMode("append")
    return started(writer, spark, config.checkpoint, decide=decide), waiting


def topic_records(outcomes: DataFrame, id_column: str) -> DataFrame:
    key = key_text(*field_of(outcomes, id_column, "operations.id"))
    value = F.to_json(F.struct("*"), AS_JSON)
    return outcomes.select(key.alias("key"), value.alias("value"))


def kafka_fault(message: str) -> str | None:
    return next((fault for text, fault in KAFKA_FAULTS.items() if text in message), None)


def run_file(
    job_file: Path,
    changes: Sequence[str],
    *,
    spark_log: Path | None = None,
    json: str | None = None,
    fail_above: float | None = None,
    textfile: Path | None = None,
    wait: str | None = None,
) -> int:
    """Run the job of a YAML file with ``changes`` (``field=value`` each) until it ends; return the exit code."""
    console, errors = terminal(stderr=json == "-"), terminal(stderr=True)
    report = RunReport(job=str(job_file))
    stop = StopRequest()
    log = spark_log or log_file()

    def body() -> int:
        config = load_config(job_file, changes)
        report.job, report.checkpoint = config.name, without_login(config.checkpoint)
        with only_run(config.checkpoint, wait):
            if (last := nothing_new(config)) is not None:
                report.summary, report.gauges = last
                say(console, f"{config.name}: nothing is new since the last run, so Spark is not started")
                print_summary(console, report.summary, str(config.output.made().path))
            else:
                in_spark(config)
        return ExitCode.INTERRUPTED if stop.signal == signal.SIGINT else report.exit_code(fail_above)

    def in_spark(config: JobConfig) -> None:
        if not console.is_terminal:
            say(console, f"{config.name}: starting Spark, whose own output is in {log}")
        with at_work(console, f"{config.name}: starting Spark"):
            spark = build_session(config, log)
        stop.listen()
        try:
            with stop.heard_by_the_jvm():
                run(spark, config, console, stop, log, report=report)
            if not stop.jvm_ends:
                spark.stop()
        except (Py4JError, ConnectionError) as error:
            # The signal may reach the JVM as well, and end it before we have stopped the query.
            if stop.signal is None or isinstance(error, Py4JJavaError):
                raise

    code = ExitCode.FAILED
    try:
        code = ExitCode(guarded(errors, body, report))
    finally:
        if json is not None:
            report.write(json, code)
        if textfile is not None:
            report.write_textfile(textfile, code)
    if code == ExitCode.FAILED:
        say(errors, f"Spark's own output: {log}")
    return code
