"""`Purgatory`: two streams in, a stream of outcomes out; two DataFrames in, a DataFrame out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.config import PurgatoryOptions
from spark_purgatory.config.declared import ColumnLike, not_a_column, refuses_wrong_calls
from spark_purgatory.config.options import LOG_HOST, watermark_ms
from spark_purgatory.core.engine.outcomes import evidence_fields
from spark_purgatory.core.spec.criteria import ByRow, Criterion
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.errors import ConfigError
from spark_purgatory.schema import COUNTERS, REJECTION_COUNTERS
from spark_purgatory.spark.host.blob_host import batch_function, blob_hosted, stream_function
from spark_purgatory.spark.host.calls import BATCH_DDL, Broadcast
from spark_purgatory.spark.host.exchange import EVENTS, OPERATIONS, by_shard, exchanged, unpacker
from spark_purgatory.spark.host.requirements import check_blob_host, check_local_workers, check_log_host
from spark_purgatory.spark.operator import field_types
from spark_purgatory.spark.operator.carried import (
    arrow_schema,
    carried_by,
    evidence_of,
)
from spark_purgatory.spark.operator.field_types import check_compared, kept_texts
from spark_purgatory.spark.operator.inputs import (
    Fields,
    events_input,
    instant_ms,
    key_prefix,
    markers_of,
    operations_input,
    payload_sources,
)
from spark_purgatory.spark.operator.query_watch import ticks, warn_inside_foreach_batch, watch
from spark_purgatory.spark.operator.stream_plan import Query, check_inputs, with_query

ZONE = "spark.sql.session.timeZone"
UTC_NAMES = dict.fromkeys(("Etc/UTC", "GMT", "Z", "+00:00"), "UTC")  # Other names of one zone


def _check_quorum(criterion: Criterion | ByRow, keys: ColumnLike | Sequence[ColumnLike], several: bool) -> None:
    """Raise ConfigError for a quorum of more keys than columns. The length of an array is not known."""
    if not isinstance(criterion, Criterion) or criterion.rule != "quorum":
        return
    columns = list(keys) if isinstance(keys, (list, tuple)) else [keys]
    names = {column for column in columns if isinstance(column, str)}
    count = len(names) if all(isinstance(column, str) for column in columns) else len(columns)
    if count < criterion.need and not (several and len(columns) == 1):
        raise ConfigError(
            f"criterion quorum({int(criterion.need)}) can never be met: operations.keys has {count} key(s) for "
            f"each operation; give at most {count}, or more columns in keys"
        )


def _is_broadcast(options: PurgatoryOptions, several_keys: bool) -> bool:
    """Return True if every shard is sent every event. Raises ConfigError if that cannot work."""
    broadcast = several_keys and options.shards != 1 and options.scope is None
    if broadcast and options.orphans != "none":
        raise ConfigError(
            f"orphans={options.orphans!r} cannot work if operations have several keys, because each shard gets all "
            "events and does not see if another one has the operation: give scope= or shards=1"
        )
    return broadcast


@dataclass(frozen=True)
class Plan:
    """The engine's spec, and other properties that follow from the types of both inputs' columns."""

    spec: EngineSpec
    several_keys: bool  # True if an operation may have several keys
    schema: T.StructType  # The columns of the outcomes
    is_broadcast: bool


def plan_for(
    options: PurgatoryOptions,
    type_of: field_types.TypeOf,
    schema: T.StructType,
    type_of_event: field_types.TypeOf | None,
    event_names: Sequence[str],
    case_sensitive: bool = False,
    zone: str | None = None,
) -> Plan:
    """Return the plan for the columns: ``schema`` of the operations, ``event_names`` of the completions.

    Without ``type_of_event`` the completions are unknown. ``zone`` is the session's. Raises ConfigError for columns
    that do not fit.
    """
    columns, event_columns, outcomes = carried_by(options, schema, type_of_event, event_names, case_sensitive)
    for name in set(options.operations.names_of("exclude")) - set(schema.names):
        raise not_a_column("operations.exclude", name, schema.names)
    number = field_types.number_of(type_of, type_of_event, options)
    types, several = field_types.operation_types(type_of, options)
    completions = None if type_of_event is None else field_types.completion_types(type_of_event, options)
    check_compared(types, completions or {})
    has_scope, names_ids = options.scope is not None, options.completions.operation_id is not None
    own_id, own_keys = options.operations.id, options.operations.keys
    is_id = isinstance(own_id, str) and isinstance(own_keys, str) and own_id == own_keys
    _check_quorum(options.criterion, own_keys, several)
    spec = EngineSpec(
        criterion=options.criterion,
        final=options.emit == "final",
        lookback_us=options.us_of("lookback"),
        tick_ms=options.ms_of("tick"),
        operation_ids=names_ids,
        whole_operations=names_ids and (several or has_scope),
        event_ids=options.completions.event_id is not None,
        orphans=options.orphans,
        control_events=options.completions.kind is not None,
        number=number,
        key_prefix=key_prefix(types["operations.keys"]) if has_scope else 0,
        id_prefix=key_prefix(types["operations.id"]) if has_scope else 0,
        identity_width=1 if several or is_id else 2,
        roles=field_types.payload_roles(schema, options),
        columns=columns,
        case_sensitive=case_sensitive,
        event_columns=event_columns,
        sources=payload_sources(options.operations, options.scope),
        texts=kept_texts(types, completions or {}),
        zone=UTC_NAMES.get(zone or "", zone) if field_types.reads_zone(type_of, type_of_event, options) else None,
        removed_columns=options.operations.names_of("removed_columns"),
        deadline_is_sum=options.operations.deadline is None,
        evidence=evidence_of(options),
        evidence_order=options.evidence_order,
        max_pending=options.max_pending_per_shard,
        max_state_bytes=options.bytes_of("max_state_bytes_per_shard"),
    )
    return Plan(spec, several, outcomes, _is_broadcast(options, several))


def _added_rejections() -> Column:
    """Return a micro-batch's counters above 0, by reason, as one aggregate.

    Spark generates the code of every observed sum again in each task: 30 columns took a tenth of a small micro-batch.
    """
    zeros = F.array(*(F.lit(0).cast("bigint") for _ in REJECTION_COUNTERS))
    rows = F.collect_list("rejections")
    sums = F.aggregate(rows, zeros, lambda so_far, row: F.zip_with(so_far, row, lambda one, other: one + other))
    by_reason = F.map_from_arrays(F.array(*map(F.lit, REJECTION_COUNTERS)), sums)
    return F.map_filter(by_reason, lambda reason, count: count > 0).alias("rejections")


@dataclass(frozen=True, kw_only=True, repr=False)
class Purgatory(PurgatoryOptions):
    """Operations that wait for completion events (Kafka: ``DelayedOperationPurgatory``), on Spark.

    Args:
        operations: The operations that wait.
        completions: The events that complete them.
        criterion: The condition of completion, one of `spark_purgatory.criteria`.
        emit: When an outcome is emitted: "early", in the micro-batch that first meets its criterion; "final", once no
            earlier event can arrive, so that the table does not depend on the order of arrival.
        shards: The number of groups over which operations are spread by key (docs/choosing.md). The checkpoint fixes
            it.
        lookback: An event counts if it is at most this much earlier than the operation's created time, and is kept so
            long for operations that come late.
        max_future: Rows further ahead of processing time than this are rejected and do not move the watermark.
        tick: Deadlines are rounded up to a multiple of it, at least 1 millisecond.
        prefix: Put before the names of the outcome's columns.
        scope: A column of both inputs, of a type allowed for keys, such as the tenant. It routes rows, and a key or id
            under another value is a different one. Several keys then need no broadcast (docs/choosing.md).
        evidence: With "all", outcomes (EXPIRED ones too) have the struct ``event`` (see `Completions`) and an array
            ``events``: all that counted up to ``resolved_at``, by time.
        max_evidence: The most events that an outcome lists, in ``evidence_order``; ``matched`` counts all.
        evidence_order: "time" sorts events by time, and ``event`` is the deciding one. "value" sorts by
            `Completions.value`, largest first, then time, and ``event`` is the first, such as a winning bid. The
            checkpoint fixes it.
        orphans: Which events that count for no operation become ORPHAN rows: "none", "control" events, or "all", with
            the reason. Outcomes then also have the columns `schema.ORPHAN_COLUMNS`.
        max_pending_per_shard: Operations that may wait in one shard; more stop the query.
        max_state_bytes_per_shard: Bytes of one shard's state; more stop the query.
        max_broadcast_bytes: Bytes of packed events of a micro-batch that go to all shards; more stop the query.
        host: Spark's operator that holds the state (docs/choosing.md). "transformWithState" needs RocksDB and protobuf.
            The checkpoint fixes the host.
        max_warm_bytes: With "transformWithState", bytes of shards in the memory of each Python worker, of which Spark
            runs one for each core. Other shards are loaded from the checkpoint in each micro-batch.
        name: The name of each micro-batch's counters (`schema.COUNTERS`) in the query's ``observedMetrics``. `gauges`
            returns totals.

    Raises:
        ConfigError: A field has a wrong value. The message has its name and the remedy.

    Example::

        purgatory = Purgatory(
            operations=Operations(
                id="order_id",
                keys="order_id",
                created="ordered_at",
                timeout="30 minutes",
                watermark="10 minutes",
            ),
            completions=Completions(key="order_id", time="paid_at", watermark="10 minutes"),
            criterion=criteria.any_key(),
        )
        outcomes = purgatory.resolve(orders, payments)
    """

    @refuses_wrong_calls
    def resolve(
        self,
        operations: DataFrame,
        completions: DataFrame,
        *,
        as_of: datetime | date | str | Column | None = None,
        heartbeats: bool = True,
        checkpoint: str | None = None,
        complete_until: Mapping[str, datetime | date | str | Column] | None = None,
    ) -> DataFrame:
        """Return the outcomes of ``operations``: all their columns unchanged, then `schema.OUTCOME_COLUMNS`.

        Args:
            operations: A stream or a batch DataFrame with the columns that `Operations` names, but not the rows of
                foreachBatch: each micro-batch would be decided alone, and a warning is logged.
            completions: A DataFrame with the columns that `Completions` names; a stream if ``operations`` is one.
            as_of: For batch DataFrames only: decide as a stream with its watermark at this time, and leave out pending
                operations. Without it every operation is decided. A datetime with a time zone is that instant. A text,
                a date and a datetime without a time zone are wall-clock time in the session's time zone
                (``spark.sql.session.timeZone``), not in that of the Python process. It is rounded down to milliseconds.
            heartbeats: With ``idle_after``, True gives each micro-batch a heartbeat row, with the current time minus
                ``idle_after``. After hours of downtime this makes rows of the backlog late before they are read. So
                first read it with False (and ``availableNow``) on the same checkpoint. A job that is started now and
                then does both each time.
            checkpoint: The checkpoint that the query will have. Each start then takes over the newest time that each
                input had in earlier runs, so that inputs may bring rows in different runs (semantics 3.11). Give it
                from the first start on, for a job that is started now and then.
            complete_until: Times up to which inputs have brought all rows, by "operations" or "completions": in this
                run an input's part of the watermark is at least its time, even without rows. Rows that come later, with
                times up to it, are late. Needs ``checkpoint``.

        Returns:
            A stream if both inputs are streams, else a batch DataFrame. The stream may be an input of another
            purgatory in the same query if this one has ``host="transformWithState"``
            (docs/how-to/several_stages.md).

        Raises:
            ConfigError: A column is missing or has a type that cannot be used, only one input is a stream, or
                ``operations`` already has a column of the outcome.

        Example::

            known = purgatory.resolve(orders, payments, as_of="2026-11-01 11:35:00")
            late = known.where("status = 'EXPIRED'")
        """
        for name, frame in (("operations", operations), ("completions", completions)):
            if not hasattr(frame, "isStreaming"):
                raise ConfigError(
                    f"{name} is a {type(frame).__name__}, not a DataFrame: read it first, with spark.readStream for a "
                    "stream or with spark.read"
                )
        if operations.isStreaming != completions.isStreaming:
            kinds = ["a stream" if frame.isStreaming else "a batch DataFrame" for frame in (operations, completions)]
            raise ConfigError(
                f"operations are {kinds[0]} and completions {kinds[1]}: give two streams, or two batch DataFrames"
            )
        if as_of is not None and operations.isStreaming:
            raise ConfigError("as_of is for batch DataFrames, but a stream has a watermark: leave as_of out")
        if operations.isStreaming:
            check_inputs(operations, self.operations, completions, self.completions)
        else:
            warn_inside_foreach_batch()
        conf = operations.sparkSession.conf
        case_sensitive, zone = conf.get("spark.sql.caseSensitive") in ("true", "TRUE"), conf.get(ZONE)
        as_of_ms = None if as_of is None else instant_ms(operations.sparkSession, as_of, "as_of")
        given, events = Fields(operations, self), Fields(completions, self)
        markers = markers_of(self, operations, heartbeats, checkpoint, complete_until or {})
        names = completions.columns
        plan = plan_for(
            self,
            type_of=given.type_of,
            schema=operations.schema,
            type_of_event=events.type_of,
            event_names=names,
            case_sensitive=case_sensitive,
            zone=zone,
        )
        # Outcomes of another purgatory have no watermark of their own whose delay could leave room for late ones.
        sides = (side for side in (self.operations, self.completions) if side.outcomes_of is not None)
        spec = replace(plan.spec, clock_delay_ms=max((watermark_ms(side) for side in sides), default=0))
        schema = plan.schema
        if operations.isStreaming:
            watch(self, operations)
        left = operations_input(given, spec, plan.several_keys, markers)
        right = events_input(events, spec.number, markers)
        check_local_workers(operations.sparkSession)
        sent = Broadcast(self.shards, self.bytes_of("max_broadcast_bytes")) if plan.is_broadcast else None
        packed = exchanged(left, OPERATIONS, self.shards, columns=spec.columns)
        packed = packed.unionByName(exchanged(right, EVENTS, self.shards, plan.is_broadcast, spec.event_columns))
        exclude = self.operations.names_of("exclude")
        unpack = unpacker(arrow_schema(schema), evidence_fields(spec), self.orphans != "none")
        if operations.isStreaming:
            route = "scope" if self.scope is not None else "id" if plan.several_keys else "key"
            results = with_query(
                self._stream(packed, spec, sent),
                Query(spec, self.shards, self.host, route, name=self.name, ticks=ticks(self), checkpoint=checkpoint),
            )
            return results.mapInArrow(unpack, schema).drop(*exclude)
        decided = batch_function(spec, as_of_ms, sent)
        results = packed.groupBy("shard").applyInPandas(decided, BATCH_DDL)
        return results.mapInArrow(unpack, schema).drop(*exclude)

    def _stream(self, packed: DataFrame, spec: EngineSpec, sent: Broadcast | None) -> DataFrame:
        groups = by_shard(packed)
        if self.host == LOG_HOST:
            # The check comes first, because the import needs protobuf.
            check_log_host(packed.sparkSession)
            from spark_purgatory.spark.host.log_host import LogHost, LogHostOptions, PandasLogHost, log_hosted

            options = LogHostOptions(self.shards, self.bytes_of("max_warm_bytes"), sent)
            results = log_hosted(groups, LogHost(spec, options), PandasLogHost(spec, options))
        else:
            check_blob_host(packed.sparkSession)
            results = blob_hosted(groups, stream_function(spec, self.shards, sent))
        # In a micro-batch that touches no shard a sum is null.
        added = (F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in COUNTERS)
        try:
            return results.observe(self.name, *added, _added_rejections())
        except AnalysisException as error:
            if error.getCondition() != "DUPLICATED_METRICS_NAME":
                raise
            raise ConfigError(
                f"name={self.name!r} is taken, because operations or completions are already observed under it, "
                "perhaps by another purgatory: set another name="
            ) from error
