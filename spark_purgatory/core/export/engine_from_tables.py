"""An engine from the tables of `tables_of_engine`, perhaps for a query with other settings.

Hashes come with the rows, because Spark makes them, and timers follow from the logs. So an operation whose criterion
was changed has the outcome of the new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_purgatory.core.arrays import numbers
from spark_purgatory.core.arrays.sorted_runs import Int64s, first_of_each
from spark_purgatory.core.arrays.value_column import as_bools
from spark_purgatory.core.arrays.value_ranks import value_ranks
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.engine.outcomes import Tally
from spark_purgatory.core.events.control_log import LogKey, pair_of
from spark_purgatory.core.events.event_log import EventLog, EventSegment
from spark_purgatory.core.export.tables_of_engine import ENDED, LOG, PAST, UNMATCHED, has_number_value
from spark_purgatory.core.spec.arrivals import OperationArrivals, codes_of, whole
from spark_purgatory.core.spec.codes import KINDS, RULES, EventKind, Status
from spark_purgatory.core.spec.engine_spec import EngineSpec


@dataclass(frozen=True)
class ShardTables:
    """The tables of one shard: columns of `tables_of_engine`, and hashes.

    The columns of operations and of events have the types and names of the query (``p0``, ``p1``, ...).
    """

    operations: pa.Table | None = None  # with ``id_hash`` and ``key_hashes``
    events: pa.Table | None = None  # with ``hash``, that of the operation that an event names, else of its key
    ids: pa.Table | None = None  # with ``id_hash``


def engine_from_tables(
    spec: EngineSpec, dealt: ShardTables, watermark_ms: int, history: Mapping[str, object] | None = None
) -> EventTimePurgatory:
    """Make the engine of a shard, at the latest watermark of the engines that were taken apart.

    One shard gets their ``history`` (`history_of`): the counts of all operations and events that are over.
    """
    engine = EventTimePurgatory(spec)
    engine.completion.watermark_ms = watermark_ms
    if dealt.events is not None:
        _put_events(engine, dealt.events)
    if dealt.ids is not None and len(dealt.ids):
        ids = plain(dealt.ids)
        identity = [ids["id"], ids["key"]][: spec.identity_width]
        engine.deduplication.ids.add(identity, ids["id_hash"].to_numpy(), ids["until_us"].to_numpy())
    if dealt.operations is not None and len(dealt.operations):
        _put_operations(engine, plain(dealt.operations))
    tally = Tally(**history) if history else Tally()  # type: ignore[arg-type]
    tally.received = tally.decided() + engine.pending
    if spec.orphans == "all":
        kept = len(engine.events.orphans)
        tally.events_received = tally.events_counted + tally.by_status[Status.ORPHAN] + kept
    engine.outcomes.tally = tally
    return engine


def history_of(tallies: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return the sums of engines' counts and their newest times, by field of `Tally`."""
    counted = [vars(Tally()), *(vars(Tally(**tally)) for tally in tallies)]  # type: ignore[arg-type]
    merge = {name: np.max if name.startswith("newest_") else np.sum for name in counted[0]}
    return {name: merge[name]([each[name] for each in counted], axis=0).tolist() for name in merge}


def most_of_any_shard(events: pa.Table, shard: Int64s) -> pa.Table:
    """Return events that several shards hold, each as many times as the shard with the most copies, in any order.

    If every event is sent to every shard, each shard forgets those that its own operations do not need.
    """
    columns = [plain(events)[name] for name in events.column_names]
    content = value_ranks(pa.StructArray.from_arrays(columns, names=events.column_names))
    held = content * (int(shard.max(initial=0)) + 1) + shard
    order = np.argsort(held, kind="stable")
    starts = first_of_each(held[order])
    which = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    # The first copy of any shard, the second of any shard, and so on.
    first = np.unique(np.stack((content[order], which)), axis=1, return_index=True)[1]
    return events.take(pa.array(order[first]))


# --- events ---------------------------------------------------------------------------------------------


def _put_events(engine: EventTimePurgatory, events: pa.Table) -> None:
    logs = events.group_by(["kept_as", "kind", "is_named"]).aggregate([])
    for kept_as, kind, is_named in zip(*(logs[name].to_pylist() for name in logs.column_names), strict=True):
        chosen = (pc.field("kept_as") == kept_as) & (pc.field("kind") == kind) & (pc.field("is_named") == is_named)
        key = LogKey(EventKind(KINDS.index(kind)), is_named)
        log = EventLog([_segment(engine.spec, kept_as, key, events.filter(chosen))])
        if kept_as == LOG:
            engine.events.log = log
            engine.events.unvalued_until_us = _unvalued_until_us(engine.spec, events.filter(chosen))
        else:
            engine.events.other_logs()[kept_as][key] = log


def _unvalued_until_us(spec: EngineSpec, rows: pa.Table) -> int | None:
    """Return the time of the latest event without a value, which may not have been kept; None if there is none."""
    if spec.evidence is None or not spec.evidence.has_value:
        return None
    columns = plain(rows)
    unvalued = columns["time_us"].filter(columns["columns"].flatten()[0].is_null())
    latest: int | None = pc.max(unvalued).as_py()
    return latest


def _segment(spec: EngineSpec, kept_as: str, key: LogKey, rows: pa.Table) -> EventSegment:
    columns = plain(rows)
    keys = pair_of(columns["operation_id"], columns["key"]) if key.is_named else columns["key"]
    is_event, has_marks = kept_as not in (ENDED, PAST), kept_as == UNMATCHED and spec.orphans == "all"
    value: numbers.Numbers | None = None
    if has_number_value(kept_as, key.kind, spec):
        value = numbers.read_numbers(columns["value"]) if spec.criterion.reads_values else None
    elif not is_event or has_marks or key.kind == EventKind.EXTEND:
        value = columns["number"].to_numpy()
    has_ids = is_event and spec.event_ids and not (has_marks and spec.event_columns is None)
    return EventSegment.build(
        keys=keys,
        hashes=columns["hash"].to_numpy(),
        time_us=columns["time_us"].to_numpy(),
        value=value,
        event_ids=columns["event_id"] if has_ids else None,
        columns=columns.get("columns") if is_event and spec.event_columns is not None else None,
    )


# --- operations -----------------------------------------------------------------------------------------


def _put_operations(engine: EventTimePurgatory, columns: Mapping[str, pa.Array]) -> None:
    spec, deduplication = engine.spec, engine.deduplication
    arrivals = _arrivals(spec, columns)
    undecided, until_us = as_bools(columns["undecided"]), columns["id_until_us"]
    known = np.flatnonzero(as_bools(until_us.is_valid()))
    slots = np.full(len(arrivals), -1)
    if len(known):
        owners = arrivals.take(known)
        first = owners.keys.take(pa.array(owners.offsets[:-1]))
        identity = deduplication.identity(owners.ids, first)
        slots[known] = deduplication.ids.add(identity, owners.id_hash, until_us.take(pa.array(known)).to_numpy())
    engine.rows.append(arrivals, columns["from_us"].to_numpy(), as_bools(columns["late"]), slots)
    purgatory = engine.purgatory
    rows = purgatory.readmit(arrivals.keys, arrivals.key_hash, arrivals.offsets)
    deduplication.make_undecided(rows[undecided], arrivals.id_hash[undecided])
    due_us = engine.completion.due_us(engine.resolver.resolve(rows))
    purgatory.rearm(rows, engine.completion.ticks_ms(rows, due_us))


def _arrivals(spec: EngineSpec, columns: Mapping[str, pa.Array]) -> OperationArrivals:
    keys = columns["keys"]
    arrivals = OperationArrivals(
        ids=columns["id"],
        id_hash=columns["id_hash"].to_numpy(zero_copy_only=False),
        keys=keys.flatten(),
        key_hash=columns["key_hashes"].flatten().to_numpy(),
        offsets=keys.offsets.to_numpy().astype(np.int64) - keys.offsets[0].as_py(),
        created_us=columns["created_us"].to_numpy(),
        deadline_us=columns["deadline_us"].to_numpy(),
        rejection=np.zeros(len(keys), np.int64),
        payload=columns["operation"],
    )
    if not spec.by_row:
        return arrivals
    return replace(
        arrivals,
        rule=codes_of(columns["rule"], RULES),
        need=columns["need"].cast(pa.float64()).to_numpy(zero_copy_only=False),
        sum_need=_needs(columns["sum_need"], spec),
        level_need=_needs(columns["level_needs"].flatten(), spec),
    )


def _needs(texts: pa.Array, spec: EngineSpec) -> numbers.Numbers:
    if spec.scale is None:
        return texts.cast(pa.float64()).to_numpy(zero_copy_only=False)
    never, always = (as_bools(pc.fill_null(pc.equal(texts, word), False)) for word in ("never", "always"))
    left = pc.if_else(pa.array(never | always), None, texts)
    units = numbers.read_numbers(left.cast(pa.decimal128(numbers.LARGEST_SCALE, spec.scale)))
    if (never | always).any():
        units = np.where(never, numbers.UNREACHED, np.where(always, numbers.ALWAYS_REACHED, numbers.widened(units)))
    return units


def plain(table: pa.Table) -> dict[str, pa.Array]:
    """Return the columns of a table, each as one array."""
    return {name: whole(table, name) for name in table.column_names}
