"""Segments of the event logs as arrays and tables of a snapshot, and back."""

from __future__ import annotations

import pyarrow as pa

from spark_purgatory.core.arrays import numbers
from spark_purgatory.core.arrays.sorted_runs import ROW_BITS
from spark_purgatory.core.events.event_log import EventSegment
from spark_purgatory.core.state.blob import Tables
from spark_purgatory.core.state.table_encoding import Arrays


def save_segment(name: str, segment: EventSegment, arrays: Arrays, tables: Tables) -> None:
    """Put a segment into arrays and tables whose names begin with ``name``."""
    arrays[f"{name}.group_prefix"], arrays[f"{name}.start"] = segment.group_hash >> ROW_BITS, segment.start
    arrays[f"{name}.time_us"] = segment.time_us
    if segment.value is not None:
        arrays[f"{name}.value"] = numbers.stored(segment.value)
    tables[f"{name}.keys"] = [pa.RecordBatch.from_arrays([segment.group_keys], names=["key"])]
    if segment.event_ids is not None:
        tables[f"{name}.event_ids"] = [pa.RecordBatch.from_arrays([segment.event_ids], names=["key"])]
    if segment.columns is not None:
        tables[f"{name}.columns"] = [pa.RecordBatch.from_struct_array(segment.columns)]


def restore_segment(name: str, arrays: Arrays, tables: Tables) -> EventSegment:
    """What `save_segment` was given."""
    columns = tables.get(f"{name}.columns")
    return EventSegment(
        group_hash=arrays[f"{name}.group_prefix"] << ROW_BITS,
        group_keys=tables[f"{name}.keys"][0].column(0),
        start=arrays[f"{name}.start"],
        time_us=arrays[f"{name}.time_us"],
        value=numbers.restored(arrays[f"{name}.value"]) if f"{name}.value" in arrays else None,
        event_ids=tables[f"{name}.event_ids"][0].column(0) if f"{name}.event_ids" in tables else None,
        columns=None if columns is None else columns[0].to_struct_array(),
    )
