"""Findings about a stopped or running query: its checkpoint's files and states, its table, and whether both fit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from pyspark.sql import SparkSession

from spark_purgatory import errors
from spark_purgatory.config import SinkOptions
from spark_purgatory.config.options import LOG_HOST
from spark_purgatory.core.engine.outcomes import Tally
from spark_purgatory.core.spec.criteria import NUMBERED
from spark_purgatory.core.state.blob import HEADER
from spark_purgatory.core.state.step_log import ShardState
from spark_purgatory.doctor.machine import Finding, note
from spark_purgatory.errors import ConfigError, PurgatoryError, StateError, StateUnreadableError, sentence_of
from spark_purgatory.readable import readable_bytes, readable_ms
from spark_purgatory.spark.checkpoint.shard_states import ShardStates, StateReaderError, shard_states, told_by_states
from spark_purgatory.spark.placement import too_many
from spark_purgatory.spark.sink.drain.sender import Sender
from spark_purgatory.spark.sink.table.delta_session import check_features
from spark_purgatory.spark.sink.table.delta_target import DeltaTarget
from spark_purgatory.spark.sink.table.formats import opened, with_format
from spark_purgatory.spark.sink.table.table_place import claimed_by
from spark_purgatory.spark.storage.checkpoint_files import damages
from spark_purgatory.spark.storage.spark_access import cores_of
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS, without_reach

GOOD_STATE_BYTES = 5_000_000  # Of a shard's state: a micro-batch writes each that it touches whole (docs/choosing.md)
STAGING = f"bring back the checkpoint's folder `staging` from a copy, or {errors.START_OVER}"
FAULTS: tuple[type[Exception], ...] = (PurgatoryError, *SPARK_FAULTS)
STATE_FAULTS: tuple[type[Exception], ...] = (StateUnreadableError, *SPARK_FAULTS)


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
        yield from state_findings(states)


def state_findings(states: ShardStates) -> Iterator[Finding]:
    """Yield number, settings and size of all shards; each state is read and its checksums compared."""
    try:
        shards = told_by_states(states.whole, _about_state)
    except STATE_FAULTS as error:
        cause = error.__cause__ or error
        yield Finding("state", sentence_of(cause), without_reach(cause) or errors.RESTORE_STATE)
        return
    sound = [shard for shard in shards if "error" not in shard]
    if damaged := [shard["error"] for shard in shards if "error" in shard]:
        yield Finding("state", f"{len(damaged)} of {len(shards)} shards: {damaged[0]}", errors.RESTORE_STATE)
    if not sound:
        return
    counts = Counter((shard["shards"], json.dumps(shard["spec"], sort_keys=True)) for shard in sound)
    wanted, spec = counts.most_common(1)[0][0]
    if len(counts) > 1:
        yield Finding("shards", "states of different queries", errors.RESTORE_STATE)
    else:
        yield Finding("shards", f"shards={wanted}; {len(sound):,} have a state")
        if why := too_many(states.partitions, wanted, cores_of(states.whole.sparkSession)):
            yield note("state partitions", why)
    yield Finding("settings of the query", settings_text(json.loads(spec)))
    yield Finding("pending", f"{sum(shard['pending'] for shard in sound):,} operations")
    yield size_finding([shard["bytes"] for shard in sound], states.host)


def size_finding(sizes: list[int], host: str) -> Finding:
    """Report whether a micro-batch can write shards of that size. The log host writes only what arrived."""
    found = f"{readable_bytes(sum(sizes))}, the largest shard {readable_bytes(max(sizes))}"
    if max(sizes) <= GOOD_STATE_BYTES or host == LOG_HOST:
        return Finding("state size", found)
    return note("state size", f"{found}: above 5 MB move to more shards, or to host='transformWithState'")


def settings_text(spec: Mapping[str, Any]) -> str:
    """The settings that a state keeps, in the words of the configuration, without the engine's own."""
    parts = {
        f"criterion={spec['criterion']}": True,
        f"need={spec['need']}": spec["criterion"] in NUMBERED,
        f"emit={spec['emit']}": True,
        f"lookback={readable_ms(spec['lookback_us'] / 1000)}": spec["lookback_us"],
        f"tick={readable_ms(spec['tick_ms'])}": spec["tick_ms"] != 1,
        f"orphans={spec['orphans']}": spec["orphans"] != "none",
        "event_id": spec["event_ids"],
        "operation_id": spec["operation_ids"],
    }
    return ", ".join(text for text, is_set in parts.items() if is_set)


def _about_state(state: ShardState) -> Iterator[dict[str, Any]]:
    try:
        _, _, shards, _, _ = HEADER.unpack_from(state.blob())
        facts = state.metadata()
    except StateError as error:
        yield {"error": str(error).removesuffix(f": {errors.RESTORE_STATE}")}
        return
    waiting = Tally(**facts["tally"]).pending
    yield {"shards": shards, "bytes": state.size, "pending": waiting, "spec": facts["spec"]}


# --- the table -------------------------------------------------------------------------------------------------------


def table_findings(spark: SparkSession, place: Mapping[str, str], checkpoint: str) -> Iterator[Finding]:
    """Yield the findings about a checkpoint's table: what it is, and whether it still has what was delivered."""
    options = SinkOptions(path=place.get("path"), table=place.get("table"))
    try:
        target = opened(with_format(spark, options))
        facts = target.facts(spark)
        if facts is not None and isinstance(target, DeltaTarget):
            check_features(spark, str(target), target.sql_place, facts.features)
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
        sender.actions.look(spark, ledger)  # reads, and changes nothing, as the next does
        if ledger.intent is not None and not ledger.is_done:
            sender.actions.read_back(spark, ledger, ledger.intent)
    except PurgatoryError as error:
        yield Finding(what, type(error).__name__, str(error))
        return
    except SPARK_FAULTS as error:
        yield Finding(what, sentence_of(error), without_reach(error) or STAGING)
        return
    drains = ledger.intent.number + 1 if ledger.intent else 0
    last = "complete" if ledger.is_done or not drains else "not yet"
    yield Finding(what, f"fit: {drains:,} drain{'s' * (drains != 1)}, the last {last}")
