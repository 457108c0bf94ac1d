"""`RecordAccumulator`: a streaming DataFrame into a Delta table of well-sized files, every row exactly once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession, is_remote
from pyspark.sql import functions as F

from spark_purgatory.accumulator.policy import Callback
from spark_purgatory.config import SinkOptions
from spark_purgatory.config.declared import options_of, refuses_wrong_calls
from spark_purgatory.config.options import require_name
from spark_purgatory.config.units import Duration, parse_duration
from spark_purgatory.errors import ConfigError, StagingError, without_login
from spark_purgatory.spark.checkpoint.shard_states import is_checkpoint
from spark_purgatory.spark.checkpoint.start_check import settings_to_start
from spark_purgatory.spark.heartbeat import heartbeats
from spark_purgatory.spark.nested import by_name, merged
from spark_purgatory.spark.sink.accumulator_query import AccumulatorQuery
from spark_purgatory.spark.sink.drain.policy_adapter import Delivery
from spark_purgatory.spark.sink.drain.sender import Sender
from spark_purgatory.spark.sink.drain.table_truth import compare, drains_in
from spark_purgatory.spark.sink.staging.ledger import Ledger, Names, Piece
from spark_purgatory.spark.sink.staging.staged_files import pieces_below, quoted, read_pieces
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder, read_ledger
from spark_purgatory.spark.sink.start_checks import checked
from spark_purgatory.spark.sink.table import table_place
from spark_purgatory.spark.sink.table.column_rules import StagedColumns, fitted_columns, with_types
from spark_purgatory.spark.sink.table.delta_target import check_name
from spark_purgatory.spark.sink.table.formats import opened, with_format
from spark_purgatory.spark.sink.table.history import NO_VERSION, TableState
from spark_purgatory.spark.sink.table.table_place import resolved
from spark_purgatory.spark.sink.table.target import Target
from spark_purgatory.spark.storage.checkpoint_files import next_batch, repartitions_in
from spark_purgatory.spark.storage.query_start import started
from spark_purgatory.spark.storage.spark_access import own_session
from spark_purgatory.version import __version__

LOG = logging.getLogger(__name__)
DEFAULT_TRIGGER_MS = 10_000
TRIES = 10  # To read table, checkpoint and staged rows of one time.


@dataclass(frozen=True, kw_only=True, repr=False)
class RecordAccumulator(SinkOptions):
    """Writes a stream into a Delta or Iceberg table in large files, each row exactly once (Kafka:
    ``RecordAccumulator``).

    Args:
        path: Folder of the table; give this or ``table``. The first commit creates a missing table.
        table: Name of the table; give this or ``path``.
        format: "iceberg" needs a ``table`` (docs/how-to/iceberg.md). Without this option an existing table keeps its
            format, and a new one is a Delta table.
        partition_by: Columns that partition the table; an existing table has its own. If the table computes a partition
            column that the stream lacks (GENERATED ALWAYS AS), a commit writes one file for each of its values, smaller
            than ``batch_size``.
        batch_size: The file size to aim at in each table partition (``batch.size``).
        linger: How long a row may wait for its file (``linger.ms``).
        buffer_memory: The most bytes of staged rows, on disk in the checkpoint (``buffer.memory``).
        max_block: How long a micro-batch waits for room, and a flush for a failing table, before they fail
            (``max.block.ms``).
        retry_backoff: The first wait after a failed commit. It doubles with each failure, up to ten times the first
            (``retry.backoff.ms``).
        delivery_timeout: How long rows may wait for a failing table before the query stops. They stay staged
            (``delivery.timeout.ms``).
        max_request_size: The most bytes in one transaction of the table; a single file may be larger
            (``max.request.size``).
        shares_table: True if several queries with different sources fill the table. Otherwise a query with a new
            checkpoint warns if another has filled it, because its rows may be there already.
        drain_at_end: True: when a query with ``availableNow`` has read all, everything staged goes to the table. False:
            only files that are full, or whose oldest row has waited for ``linger`` since the run that staged it. The
            rest stays staged for later runs, so that runs of an hour share a file; `flush` brings it.
        on_delivery: Called with (delivery, None) when rows have reached the table, and with (None, error) when their
            query gave up. An error that it raises is logged and changes nothing else.

    Raises:
        ConfigError: An option has a wrong value; the message names it and the remedy.

    Example::

        accumulator = RecordAccumulator(path="/lake/outcomes", batch_size="128 MiB", linger="5 minutes")
        query = accumulator.write_stream(outcomes, checkpoint="/lake/_checkpoints/outcomes")
    """

    on_delivery: Callback[Delivery] | None = None
    python_only: ClassVar[tuple[str, ...]] = ("on_delivery",)
    # The query that this accumulator started last, if any.
    _started: list[AccumulatorQuery] = field(default_factory=list, init=False, repr=False, compare=False)

    @cached_property
    def options(self) -> SinkOptions:
        """The options of this sink."""
        return SinkOptions(**{name: getattr(self, name) for name in options_of(SinkOptions)})

    def _target(self, spark: SparkSession) -> Target:
        """The table: the query's once there is one, also where the session has another current schema by then."""
        return self._started[-1].target if self._started else opened(with_format(spark, self.options))

    def __str__(self) -> str:
        return without_login(str(self._started[-1].target if self._started else self.table or self.path))

    @refuses_wrong_calls
    def write_stream(
        self, df: DataFrame, *, checkpoint: str, trigger: Mapping[str, Any] | None = None, query_name: str | None = None
    ) -> AccumulatorQuery:
        """Start the query.

        Args:
            df: Any streaming DataFrame.
            checkpoint: Folder of the query's checkpoint. Staged rows are in its folder ``staging``. Keep it as long as
                the table.
            trigger: One argument of ``DataStreamWriter.trigger``: ``{"processingTime": "10 seconds"}``, the default;
                with ``{"availableNow": True}`` everything is in the table when `awaitTermination` returns, unless
                ``drain_at_end`` is False.
            query_name: Name shown by Spark.

        Returns:
            The running query. Its `awaitTermination` drains what is staged when the query ends by itself.

        Raises:
            ConfigError: The table, the checkpoint or the columns cannot work. Nothing was started.
            TableLostError: The table that the checkpoint belongs to was replaced, restored or removed.
            StateMismatchError: ``df`` comes from `Purgatory.resolve` and cannot continue from the checkpoint's state.
                The message lists every difference and the remedy (docs/upgrading.md).

        Example::

            query = accumulator.write_stream(
                outcomes, checkpoint="/lake/_checkpoints/backfill", trigger={"availableNow": True}
            )
            query.awaitTermination()
        """
        chosen = self._checked_trigger(trigger)
        self._refuse(df, checkpoint)
        spark = df.sparkSession
        if is_remote():
            # The server caches the files that it listed for a read by the read's number and text. Each process of a
            # session counts its reads from 0, so the worker of a restarted query would get the files of the last run.
            spark.conf.set("spark.connect.session.planCache.enabled", "false")
        with own_session(spark) as own:
            options, names_version = checked(own, df.schema, self.options, checkpoint)
        decide, waiting = settings_to_start(df, checkpoint)
        sender = Sender(options, checkpoint, self.on_delivery, names_version)
        # A stream that receives nothing more still delivers its last rows: foreachBatch is called at each trigger,
        # because a second stream without rows always has something new.
        with_heartbeat = df.unionAll(heartbeats(spark, df.schema).where(F.lit(False)))
        writer = with_heartbeat.writeStream.foreachBatch(sender).outputMode("append")
        writer = writer.trigger(**chosen)
        if query_name:
            writer = writer.queryName(query_name)
        query = AccumulatorQuery(started(writer, spark, checkpoint, decide=decide), sender, spark, chosen, waiting)
        self._started[:] = [query]
        LOG.info(
            f"query {query_name or query.id} started: table {self}, checkpoint {without_login(checkpoint)}, "
            f"trigger {chosen}, {self.options.in_numbers()}; spark_purgatory {__version__}, Spark {spark.version}, "
            f"application {spark.conf.get('spark.app.id', 'unknown')}"
        )
        return query

    def flush(self) -> None:
        """Bring everything staged to the table, and return when it is there (Kafka: ``flush``).

        While the query runs, its next micro-batch does it. Raises ConfigError if no query was started, and what
        `AccumulatorQuery.flush` raises.

        Example::

            accumulator.flush()
        """
        self._query_to("flush").flush()

    def close(self) -> None:
        """Stop the query and bring everything staged to the table (Kafka: ``close``).

        Raises ConfigError if no query was started, and what `AccumulatorQuery.stop` raises.

        Example::

            accumulator.close()
        """
        self._query_to("close").stop(drain=True)

    def table_exists(self, spark: SparkSession) -> bool:
        """Return True if the table exists.

        Args:
            spark: The session.

        Example::

            if accumulator.table_exists(spark):
                accumulator.read(spark).show()
        """
        with own_session(spark) as own:
            return self._target(own).exists(own)

    def read(self, spark: SparkSession, *, staged: bool = False, checkpoint: str | None = None) -> DataFrame:
        """Return the table; with ``staged`` also the rows that still wait for their file, each row once.

        Args:
            spark: The session.
            staged: Add the rows that wait. Evaluate that DataFrame soon: a drain that ends meanwhile removes the staged
                files, and Spark then reports that they are missing.
            checkpoint: The checkpoint of the staged rows. Default: that of the query that this object started.

        Raises:
            ConfigError: The table does not exist yet, or ``staged`` has neither a checkpoint nor a query.
            TableLostError: The catalog has forgotten the table's name, or with ``staged`` the table is gone.
            ForeignWriterError: With ``staged``, the table has later drains of the query than the checkpoint.

        Example::

            accumulator.read(spark, staged=True).groupBy("status").count().show()
        """
        if staged and checkpoint is None:
            checkpoint = self._query_to("read with staged=True", ", or give checkpoint=").checkpoint
        with own_session(spark) as own:
            target = self._target(own)
            is_there = staged or target.exists(own)
        if staged:
            return staged_view(spark, target, str(checkpoint))
        if is_there:
            return target.read(spark)
        if self.options.table:
            check_name(spark, self.options.table)
        raise ConfigError(
            f"table {self} does not exist yet: the first drain creates it, once a file is full or a row has "
            "waited for linger. Call table_exists() first, or read(staged=True) for the rows that wait"
        )

    def _query_to(self, what: str, otherwise: str = "") -> AccumulatorQuery:
        if not self._started:
            raise ConfigError(f"there is nothing to {what}: call write_stream first{otherwise}")
        return self._started[-1]

    def _checked_trigger(self, trigger: Mapping[str, Any] | None) -> dict[str, Any]:
        match trigger:
            case None:
                default_ms = min(DEFAULT_TRIGGER_MS, max(1000, self.options.ms_of("linger")))
                return {"processingTime": f"{default_ms} milliseconds"}
            case {"processingTime": _} | {"availableNow": True} if len(trigger) == 1:
                return trigger_of(**trigger)
        raise ConfigError(f"{trigger=} must be {{'processingTime': '10 seconds'}} or {{'availableNow': True}}")

    def _refuse(self, df: DataFrame, checkpoint: str) -> None:
        if not getattr(df, "isStreaming", False):
            raise ConfigError(f"df is a {type(df).__name__}, not a streaming DataFrame: read one with spark.readStream")
        if self._started and self._started[-1].isActive:
            raise ConfigError(f"this accumulator already writes to {self}: stop its query, or make another accumulator")
        require_name(checkpoint, "checkpoint")
        if "_metadata" in map(str.lower, df.columns):
            raise ConfigError("column '_metadata' hides Spark's own of that name, which the sink needs: rename it")


def trigger_of(processingTime: Duration | None = None, availableNow: bool | None = None) -> dict[str, Any]:
    """Return the argument of ``DataStreamWriter.trigger``, in a unit that Spark reads."""
    if processingTime is None:
        return {"availableNow": availableNow}
    return {"processingTime": f"{parse_duration(processingTime, 'trigger processingTime') // 1000} milliseconds"}


# --- the table with its staged rows, as if everything staged were drained now ----------------------------------------


def staged_view(spark: SparkSession, target: Target, checkpoint: str) -> DataFrame:
    """Return a version of the table with the staged rows that it does not have, each row once.

    A micro-batch is included once Spark has committed it or a drain has taken some of it. The table's version is read
    before and after the staging folder, and all again if they differ or a drain has removed files meanwhile.
    """
    if not is_checkpoint(spark, checkpoint):
        raise ConfigError(
            f"checkpoint={checkpoint!r} is not the checkpoint of a query that was started: start the query, or name "
            "the checkpoint of the query whose staged rows you want"
        )
    for _ in range(TRIES - 1):
        with suppress(StagingError):
            return _view_now(spark, target, checkpoint)
    return _view_now(spark, target, checkpoint)


def _view_now(spark: SparkSession, target: Target, checkpoint: str) -> DataFrame:
    with own_session(spark) as own:
        place = StagingFolder.of(own, checkpoint)
        ledger, pieces, version = _looked_at(own, target, checkpoint, place)
        facts = target.facts(own) if pieces and version != NO_VERSION else None
    if not pieces and version != NO_VERSION:
        return target.read(spark, version)
    if ledger.schema is None:
        raise ConfigError(
            f"table {target} does not exist yet, and no row is staged for it: its query has not had a micro-batch with "
            "rows. Call table_exists() first, or read again later"
        )
    columns = StagedColumns.of(ledger.schema)
    if not pieces:
        return spark.createDataFrame([], columns.rows)
    staged = read_pieces(spark, place.uri, columns.rows, pieces)
    if version == NO_VERSION:
        return staged
    table = target.read(spark, version)
    if facts is not None:
        target.check_names(columns, facts, table.schema, target.history_of_names(spark, columns, facts))
        staged = with_types(staged, fitted_columns(columns.rows, table.schema))
    whole = merged(table.schema, staged.schema)  # Spark's own unionByName does not look into maps.
    both = (rows.select(*by_name(rows.schema, whole, quoted)) for rows in (table, staged))
    return next(both).union(next(both))


def _looked_at(
    spark: SparkSession, target: Target, checkpoint: str, place: StagingFolder
) -> tuple[Ledger, list[Piece], int]:
    """Return the ledger, the pieces that a version of the table lacks, and that version, all of one time."""
    # The query and the reader may call the table by other names, and other tables may have its name.
    claimed = table_place.claimed_by(spark, checkpoint)
    here = resolved(spark, SinkOptions(path=target.path, table=target.table))
    ours = {"path": here.path} if here.path else {"table": str(here.table)}
    is_named = not claimed or table_place.is_one_table(claimed, ours)
    app_id = table_place.app_id_of(spark, checkpoint)
    version = target.state(spark, None).history.version
    committed = next_batch(spark, checkpoint)
    ledger = read_ledger(spark, place, others_write=True)
    ledger.names = Names(checkpoint, place.uri, str(target), app_id)
    fault = None
    try:
        pieces = pieces_below(spark, place.uri, ledger, committed)
        repartitions = repartitions_in(spark, checkpoint, ledger.unknown(pieces, committed))
        ledger.adopt(pieces, committed, repartitions)
    except StagingError as error:
        # A drain that ends meanwhile removes files. They were damaged only if nothing else has changed.
        fault = error
    since = ledger.first_needed_version
    if since is None and ledger.schema is not None:
        since = StagedColumns.of(ledger.schema).version
    state = target.state(spark, since)
    if version != state.history.version:
        raise StagingError(f"table {target} changed while its staged rows were read: try again")
    if not is_named and not _is_of(ledger, state):
        theirs = next(iter(claimed.values()))
        raise ConfigError(
            f"checkpoint={checkpoint!r} belongs to table {theirs}, and table {target} has no rows of its query: name "
            f"{theirs}"
        )
    drains = ledger.next_drain - (not ledger.is_done)
    if drains and version == NO_VERSION and target.table:
        check_name(spark, target.table, drains, app_id)
    compare(ledger, state)
    if fault is not None:
        raise fault
    return ledger, _waiting(ledger, state), version


def _is_of(ledger: Ledger, state: TableState) -> bool:
    if state.facts is None or ledger.table_id is not None:
        return state.facts is not None and state.facts.id == ledger.table_id
    return bool(state.history.drains(ledger.names.app_id))


def _waiting(ledger: Ledger, state: TableState) -> list[Piece]:
    """Return the staged pieces that the table lacks. StagingError if that cannot be known."""
    intent, staged = ledger.intent, [*ledger.pieces.values()]
    if intent is None or ledger.is_done or intent.number in drains_in(state.history, ledger.names.app_id)[0]:
        return staged
    if not state.history.is_whole_since(intent.base_version):
        raise StagingError(
            f"the history of table {ledger.names.table} was cut after drain {intent.number} began, so it does not show "
            "whether the drain's rows are in the table. Start the query, which finishes the drain. Then read again"
        )
    return [*intent.taken, *staged]
