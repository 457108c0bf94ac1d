"""An engine as tables, and back, perhaps for a query with other settings.

The tables have everything that decides an outcome (docs/formats.md) and no hash, position or timer. So they can be
dealt to any number of shards, and a person can read, count and filter them. On the way back hashes come with the rows,
because Spark makes them, and timers follow from the logs. So an operation whose criterion was changed has the outcome
of the new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_purgatory.core.arrays import numbers
from spark_purgatory.core.arrays.sorted_runs import Int64s, first_of_each
from spark_purgatory.core.arrays.value_column import as_bools, value_ranks
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.engine.outcomes import Tally
from spark_purgatory.core.engine.shard_events import ENDED, PAST, UNMATCHED
from spark_purgatory.core.events.control_log import LogKey, pair_of, split_pairs
from spark_purgatory.core.events.event_log import EventLog, EventSegment
from spark_purgatory.core.spec.arrivals import OperationArrivals, codes_of, whole
from spark_purgatory.core.spec.codes import KINDS, RULES, EventKind, Status
from spark_purgatory.core.spec.engine_spec import EngineSpec


def operations_table(engine: EventTimePurgatory, names: list[str]) -> pa.Table | None:
    """Return the operations that wait, with the ``names`` of their own columns; None if nothing waits."""
    rows = engine.purgatory.waiting()
    if not len(rows):
        return None
    table, watchers = engine.rows, engine.purgatory.watchers
    entries, owner = watchers.entries_of(rows)
    offsets = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=len(rows)))))
    undecided = np.isin(rows, engine.deduplication.undecided)
    slots = _slots(engine, rows)
    known = slots >= 0
    until_us = np.zeros(len(rows), np.int64)
    until_us[known] = engine.deduplication.ids.deadline_us.values[slots[known]]
    columns = {
        "operation": _named(table.payload.take(rows), names),
        "id": table.ids.take(rows) if len(table.ids) else _seen(engine, slots),
        "keys": _lists(offsets, watchers.keys.take(entries)),
        "created_us": pa.array(table.created_us[rows]),
        "deadline_us": pa.array(table.deadline_us[rows]),
        "from_us": pa.array(table.from_us_of(rows)),
        "late": pa.array(table.late[rows]),
        "undecided": pa.array(undecided),
        "id_until_us": pa.array(until_us, mask=~known),
    }
    if engine.spec.by_row:
        columns |= {
            "rule": pa.array(RULES).take(pa.array(table.rule[rows])),
            "need": pa.array(table.need[rows], from_pandas=True),  # NaN: the rule needs none
            "sum_need": needs_as_text(table.sum_need[rows], engine.spec),
            "level_needs": _lists(offsets, needs_as_text(table.level_need[entries], engine.spec)),
        }
    return pa.table(columns)


def ids_table(engine: EventTimePurgatory) -> pa.Table:
    """Return the live ids of operations that do not wait; the key is null if the id alone identifies."""
    ids = engine.deduplication.ids
    left = ids.deadline_us.values > engine.watermark_us
    slots = _slots(engine, engine.purgatory.waiting())
    left[slots[slots >= 0]] = False
    at = np.flatnonzero(left)
    held = [column.take(at) if len(column) else pa.nulls(len(at), pa.string()) for column in ids.columns]
    key = held[1] if len(held) > 1 else pa.nulls(len(at), held[0].type)
    return pa.table({"id": held[0], "key": key, "until_us": pa.array(ids.deadline_us.values[at])})


def events_tables(engine: EventTimePurgatory) -> Iterator[pa.Table]:
    """Yield the events that are kept, a table for each segment of a log."""
    spec = engine.spec
    names = None if spec.event_columns is None else spec.event_columns.names
    for kept_as, logs in engine.events.logs().items():
        for key, log in logs.items():
            for segment in log.segments:
                yield _of_segment(kept_as, key, segment, spec, names)


def has_number_value(kept_as: str, kind: int, spec: EngineSpec) -> bool:
    """Return True if a log has the values of events; else they are times, durations or marks."""
    if kind != EventKind.COMPLETE or kept_as in (ENDED, PAST):
        return False
    return kept_as != UNMATCHED or spec.orphans != "all"


def needs_as_text(needs: numbers.Numbers, spec: EngineSpec) -> pa.Array:
    """Return needs as texts that are read back exactly; "never" if no value reaches one."""
    if spec.scale is None:
        return pa.array(needs).cast(pa.string())
    wide = numbers.widened(needs)
    never, always = wide == numbers.UNREACHED, wide == numbers.ALWAYS_REACHED
    texts = numbers.as_decimals(wide, spec.scale).cast(pa.string())
    for which, text in ((never, "never"), (always, "always")):
        if which.any():
            texts = pa.compute.if_else(pa.array(which), text, texts)
    return texts


def _of_segment(
    kept_as: str, key: LogKey, segment: EventSegment, spec: EngineSpec, names: list[str] | None
) -> pa.Table:
    n = len(segment)
    keys, ids = segment.keys, pa.nulls(n, pa.string())
    if key.is_named:
        ids, keys = split_pairs(keys)
    is_value = has_number_value(kept_as, key.kind, spec)
    value, number = pa.nulls(n), pa.nulls(n, pa.int64())
    if segment.value is not None and not is_value:
        number = pa.array(segment.value)
    elif segment.value is not None and spec.scale is not None:
        value = numbers.as_decimals(segment.value, spec.scale)
    elif segment.value is not None:
        value = pa.array(segment.value, from_pandas=True)  # NaN is no value
    columns = {
        "kept_as": pa.repeat(kept_as, n),
        "kind": pa.repeat(KINDS[key.kind], n),
        "is_named": pa.repeat(key.is_named, n),
        "operation_id": ids,
        "key": keys,
        "time_us": pa.array(segment.time_us),
        "value": value,
        "number": number,
        "event_id": pa.nulls(n, pa.string()) if segment.event_ids is None else segment.event_ids,
    }
    if names is not None:
        kind = pa.struct([pa.field(name, pa.null()) for name in names])
        columns["columns"] = pa.nulls(n, kind) if segment.columns is None else _named(segment.columns, names)
    return pa.table(columns)


def _slots(engine: EventTimePurgatory, rows: Int64s) -> Int64s:
    """Return the slots of waiting rows' ids, (n,); -1 if rows are undecided or have no ids."""
    deduplication, table = engine.deduplication, engine.rows
    if engine.spec.control_events:
        return table.id_slot[rows]
    slots = np.full(len(rows), -1)
    if len(rows) and len(table.ids):
        decided = ~np.isin(rows, deduplication.undecided)
        identity = deduplication.identity_of(rows[decided])
        slots[decided] = deduplication.ids.slots_of(identity, table.deadline_us[rows[decided]])
    return slots


def _seen(engine: EventTimePurgatory, slots: Int64s) -> pa.Array:
    """Return the ids at slots, (n,), null for -1, for rows without ids of their own."""
    held = engine.deduplication.ids.columns[0]
    if not len(held):
        return pa.nulls(len(slots), pa.string())
    return held.take(np.maximum(slots, 0)).take(pa.array(np.arange(len(slots)), mask=slots < 0))


def _lists(offsets: Int64s, values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values)


def _named(structs: pa.StructArray, names: list[str]) -> pa.StructArray:
    fields = [field.with_name(name) for field, name in zip(structs.type, names, strict=True)]
    return pa.StructArray.from_arrays(structs.flatten(), fields=fields) if fields else structs


@dataclass(frozen=True)
class ShardTables:
    """The tables of one shard: those of an engine, with the query's types of columns (``p0``, ...), and hashes."""

    operations: pa.Table | None = None  # with ``id_hash`` and ``key_hashes``
    events: pa.Table | None = None  # with ``hash``, that of the operation that an event names, else of its key
    ids: pa.Table | None = None  # with ``id_hash``


def engine_from_tables(
    spec: EngineSpec, dealt: ShardTables, watermark_ms: int, history: Mapping[str, object] | None = None
) -> EventTimePurgatory:
    """Make the engine of a shard at the latest watermark; one shard gets the ``history`` of all (`history_of`)."""
    engine = EventTimePurgatory(spec)
    engine.watermark_ms = watermark_ms
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
    """Return events that several shards hold, each as often as the shard with the most: some may have forgotten it."""
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
        segment = _segment(engine.spec, kept_as, key, events.filter(chosen))
        engine.events.logs()[kept_as][key] = EventLog([segment])


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
    due_us = engine.due_us(engine.resolver.resolve(rows))
    purgatory.rearm(rows, engine.ticks_ms(rows, due_us))


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
    return {name: whole(table, name) for name in table.column_names}
