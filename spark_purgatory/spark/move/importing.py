"""What a shard is made of in the micro-batch that imports an export's tables, whichever host keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.export.put_together import Dealt, put_together
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.engine_snapshot import payload_of
from spark_purgatory.core.state.event_snapshot import carried_of
from spark_purgatory.core.state.payload_evolution import StoredPayload
from spark_purgatory.core.state.step_log import table_of
from spark_purgatory.spark.placement import shard_label

SIDES = {"operations": 0, "events": 1, "ids": 2, "counts": 3}
"""The tables, as sides of the exchange."""


@dataclass(frozen=True)
class Importing:
    """What every shard needs to know; it travels to the workers."""

    spec: EngineSpec
    shards: int | None
    watermark_ms: int
    history: Mapping[str, Any]

    def engine(self, key: Any, rows: Iterable[tuple[int, bytes]]) -> EventTimePurgatory:
        """The engine of a shard, of rows of the exchange, (side, blob)."""
        sides: dict[int, list[bytes]] = {side: [] for side in SIDES.values()}
        for side, blob in rows:
            sides[int(side)].append(bytes(blob))
        tables = {name: table_of(sides[side]) for name, side in SIDES.items()}
        operations, events = tables["operations"], tables["events"]
        if operations is not None:
            operations = self._evolved(operations, "operation", payload_of)
        if events is not None and self.spec.event_columns is not None:
            events = self._evolved(events, "columns", carried_of)
        first = 0 if self.shards is None else shard_label(0)
        history = self.history if int(key[0]) == first else None
        return put_together(self.spec, Dealt(operations, events, tables["ids"]), self.watermark_ms, history)

    def _evolved(
        self, table: pa.Table, name: str, match: Callable[[EngineSpec, list[pa.RecordBatch], list[str]], StoredPayload]
    ) -> pa.Table:
        """The table with the query's columns in place of those of the export."""
        if name in table.column_names:
            held = pa.concat_arrays(table[name].chunks)
            table = table.drop_columns([name])
        else:
            held = pa.Array.from_buffers(pa.struct([]), len(table), [None])
        names = [field.name for field in held.type]
        [columns] = match(self.spec, [pa.RecordBatch.from_struct_array(held)], names).evolved()
        return table.append_column(name, columns.to_struct_array())
