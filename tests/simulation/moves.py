"""A move of a simulated checkpoint: the product's export, its tables as Parquet, and its import on either host.

Spark's part is modelled: the hashes of keys and ids, the exchange to the new shards, and the micro-batch that imports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import TimerValues

from spark_purgatory.core.state.export import history_of
from spark_purgatory.spark.host.exchange import packer, to_blob
from spark_purgatory.spark.host.log_host import LogHostOptions
from spark_purgatory.spark.move import tables
from spark_purgatory.spark.move.import_log_host import ImportingHost
from spark_purgatory.spark.move.move import _blob_function
from spark_purgatory.spark.move.tables import Importing, ShardFacts, Survey, _facts
from spark_purgatory.spark.operator.carried import arrow_schema
from spark_purgatory.spark.placement import shard_label
from tests.simulation.tasks import BlobState, GroupState, Query, States, stored
from tests.support.engine_driver import hashes_of
from tests.support.spark_state import Handle


def moved(query: Query, states: States, to: Query) -> States:
    """The states of all shards, as the query ``to`` takes them over."""
    found = [ShardFacts(**told) for shard in sorted(states) for told in _facts(to.spec, stored(states[shard]))]
    assert not any(each.differences for each in found), "a move to a query that cannot take the state over"
    survey = Survey(None, found)  # type: ignore[arg-type]
    history = history_of([each.tally for each in found])
    importing = Importing(to.spec, to.shards, survey.watermark_ms, history)
    schemas = tables.schemas_of(survey)
    exported = {name: _exported(query, survey, states, name, schema) for name, schema in schemas.items()}
    sent: dict[int, list[tuple[int, bytes]]] = {0: [(tables.SIDES["counts"], _counts())]}
    for name, table in exported.items():
        for shard, blob in _dealt(to, name, table) if len(table) else ():
            sent.setdefault(shard, []).append((tables.SIDES[name], blob))
    make = _on_blob_host if to.host == "blob" else _on_log_host
    return make(importing, sent)


def columns_of(text: str) -> list[T.StructField]:
    """The columns that a DDL text names; Spark's own reader of such texts needs a JVM."""
    return [T.StructField(name, _type_of(kind)) for name, kind in (each.split() for each in text.split(", "))]


def _type_of(kind: str) -> T.DataType:
    if kind.startswith("array<"):
        return T.ArrayType(_type_of(kind.removeprefix("array<").removesuffix(">")))
    if kind.startswith("decimal("):
        return T.DecimalType(*map(int, kind.removeprefix("decimal(").removesuffix(")").split(",")))
    return {"bigint": T.LongType, "boolean": T.BooleanType, "double": T.DoubleType, "string": T.StringType}[kind]()


def _exported(query: Query, survey: Survey, states: States, name: str, schema: T.StructType) -> pa.Table:
    """A table of the export, as it is read back from its file."""
    is_copied = name == "events" and query.several and len(states) > 1
    if is_copied:
        schema = T.StructType([*schema.fields, T.StructField("shard", T.LongType())])
    kind = arrow_schema(schema)
    batches = [each for shard in sorted(states) for each in tables._rows(name, kind, stored(states[shard]))]
    table = pa.Table.from_batches(batches, kind)
    if is_copied:
        table = tables._without_copies(table)
    file = BytesIO()
    pq.write_table(table, file)
    return pq.read_table(file)


def _counts() -> bytes:
    """The row that has the first shard made."""
    return to_blob(pa.table({"ahead": pa.array([False])})).to_pybytes()


def _dealt(to: Query, name: str, table: pa.Table) -> Iterator[tuple[int, bytes]]:
    if name == "operations":
        first = pa.array([keys[0] for keys in table["keys"].to_pylist()], pa.string())
        keys = table["keys"].combine_chunks()
        hashes = pa.ListArray.from_arrays(keys.offsets, hashes_of(keys.values, 64))
        by_id = hashes_of(table["id"].combine_chunks(), 64)
        table = table.append_column("id_hash", by_id).append_column("key_hashes", hashes)
        route = by_id if to.several else hashes_of(first, 64)
    elif name == "events":
        by_key = hashes_of(table["key"].combine_chunks(), 64)
        by_id = hashes_of(table["operation_id"].combine_chunks(), 64)
        table = table.append_column("hash", pc.if_else(table["is_named"], by_id, by_key))
        route = by_key
    else:
        by_id = hashes_of(table["id"].combine_chunks(), 64)
        table = table.append_column("id_hash", by_id)
        keys = pc.coalesce(table["key"], table["id"]).combine_chunks()
        route = by_id if to.several else hashes_of(keys, 64)
    of_label = {shard_label(shard): shard for shard in range(to.shards)}
    table = table.append_column("route", route).append_column("guarded", pa.array([True] * len(table)))
    to_all = name == "events" and to.several
    for batch in packer(tables.SIDES[name], to.shards, to_all)(iter(table.combine_chunks().to_batches())):
        for label, blob in zip(batch["shard"].to_pylist(), batch["blob"].to_pylist(), strict=True):
            yield of_label[label], blob


def _on_blob_host(importing: Importing, sent: Mapping[int, list[tuple[int, bytes]]]) -> States:
    states: States = {}
    for shard, rows in sent.items():
        state = GroupState(None, 0)
        frame = pd.DataFrame({"side": [side for side, _ in rows], "blob": [blob for _, blob in rows]})
        for _ in _blob_function(importing)((shard_label(shard),), iter([frame]), state):
            pass
        assert state.blob is not None
        states[shard] = BlobState(state.blob, state.timeout_ms)
    return states


def _on_log_host(importing: Importing, sent: Mapping[int, list[tuple[int, bytes]]]) -> States:
    states: dict[int, Any] = {}
    handle = Handle(states)
    host = ImportingHost(importing, LogHostOptions(importing.shards or 0, 0))
    host.init(handle)  # type: ignore[arg-type]
    for shard, rows in sent.items():
        handle.key = shard
        given = iter([Row(side=side, blob=blob) for side, blob in rows])
        for _ in host.handleInputRows((shard_label(shard),), given, TimerValues(1, 0)):
            pass
    return states
