"""Findings about a checkpoint: its states, their settings, and the query's progress."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_purgatory import errors
from spark_purgatory.config.purgatory_options import LOG_HOST
from spark_purgatory.core.engine.outcomes import Tally
from spark_purgatory.core.spec.criteria import NUMBERED
from spark_purgatory.core.state.blob import HEADER, VERSION
from spark_purgatory.core.state.step_log import ShardState
from spark_purgatory.doctor.finding import Finding, note
from spark_purgatory.doctor.session import clock_finding
from spark_purgatory.errors import START_OVER, ConfigError, StagingError, StateError, StateUnreadableError, sentence_of
from spark_purgatory.readable import readable_bytes, readable_ms
from spark_purgatory.spark.checkpoint.shard_states import ShardStates, StateReaderError, shard_states, told_by_states
from spark_purgatory.spark.host.requirements import PROVIDER
from spark_purgatory.spark.placement import too_many
from spark_purgatory.spark.sink.table.table_claim import claimed_by
from spark_purgatory.spark.storage.checkpoint_files import damages
from spark_purgatory.spark.storage.paths import literal
from spark_purgatory.spark.storage.spark_access import cores_of
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS, without_reach

GOOD_STATE_BYTES = 5_000_000  # Of a shard's state: a micro-batch writes each that it touches whole (docs/choosing.md)
CLAIM_FAULTS: tuple[type[Exception], ...] = (StagingError, *SPARK_FAULTS)
STATE_FAULTS: tuple[type[Exception], ...] = (StateUnreadableError, *SPARK_FAULTS)


def checkpoint_findings(spark: SparkSession, checkpoint: str) -> Iterator[Finding]:
    """Yield all findings about a checkpoint."""
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
        if "_metadata" in str(error) or not claim_of(spark, checkpoint):
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
        yield from offset_findings(spark, checkpoint, states)
        yield from state_findings(states)


def offset_findings(spark: SparkSession, checkpoint: str, states: ShardStates) -> Iterator[Finding]:
    """The watermark, the settings that the checkpoint fixes, and the clock of its storage."""
    if states.watermark_ms > 0:
        watermark = datetime.fromtimestamp(states.watermark_ms / 1000, UTC)
        yield Finding("watermark", f"{watermark:%Y-%m-%d %H:%M:%S} UTC, at micro-batch {states.batch_id}")
    else:
        yield note("watermark", "none yet: it begins when both inputs have had rows (or idle_after is set)")
    reader = spark.read.text(f"{literal(checkpoint)}/offsets/{states.batch_id}", wholetext=True)
    [(text, written_ms)] = reader.select("value", F.unix_millis("_metadata.file_modification_time")).collect()
    store = states.settings.get(PROVIDER, "").rpartition(".")[2]
    yield note("kept for good", f"state store {store}, {states.partitions} state partitions")
    skew_ms = abs(written_ms - json.loads(text.splitlines()[1])["batchTimestampMs"])
    yield clock_finding("checkpoint's clock", skew_ms, "the driver's")


def state_findings(states: ShardStates) -> Iterator[Finding]:
    """Yield format, number, settings and size of all shards; each state is read and its checksums compared."""
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
    yield Finding("state format", f"version {VERSION}")
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


def claim_of(spark: SparkSession, checkpoint: str) -> dict[str, str] | Finding:
    """The table that a checkpoint is bound to, as `claimed_by` gives it; a finding if the entry cannot be read."""
    try:
        return claimed_by(spark, checkpoint)
    except CLAIM_FAULTS as error:
        remedy = f"bring back the checkpoint's folder `staging` from a copy, or {START_OVER}"
        return Finding("table of the checkpoint", sentence_of(error), without_reach(error) or remedy)


def _about_state(state: ShardState) -> Iterator[dict[str, Any]]:
    try:
        _, _, shards, _, _ = HEADER.unpack_from(state.blob())
        facts = state.metadata()
    except StateError as error:
        yield {"error": str(error).removesuffix(f": {errors.RESTORE_STATE}")}
        return
    waiting = Tally(**facts["tally"]).pending
    yield {"shards": shards, "bytes": state.size, "pending": waiting, "spec": facts["spec"]}
