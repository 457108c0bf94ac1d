"""Judging rows: an operation's spans of the log, its criterion, its verdict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_purgatory.core.criteria import KEYED, LEVEL
from spark_purgatory.core.engine_spec import EngineSpec
from spark_purgatory.core.evaluation import Cases, Verdicts, evaluate
from spark_purgatory.core.event_log import EventLog, Spans
from spark_purgatory.core.operations import OperationRows
from spark_purgatory.core.outcomes import EXPIRED, MissingKeys, OutcomeBatch
from spark_purgatory.core.runs import Bools, Int64s
from spark_purgatory.core.times import ALWAYS, NEVER, saturating_add
from spark_purgatory.core.watchers import Watchers


@dataclass(frozen=True)
class Judgement:
    """Verdicts on n rows with m watch entries."""

    rows: Int64s  # (n,)
    entries: Int64s  # (m,)
    owner: Int64s  # (m,) position in rows
    verdicts: Verdicts

    @property
    def resolved_us(self) -> Int64s:
        """(n,) int64; NEVER where the criterion does not hold."""
        return self.verdicts.resolved_us

    @property
    def holds(self) -> Bools:
        """(n,) bool: the criterion holds at some time, perhaps ahead of the watermark."""
        return self.verdicts.resolved_us != NEVER


def judge(spec: EngineSpec, rows: Int64s, table: OperationRows, watchers: Watchers, log: EventLog) -> Judgement:
    """Evaluate the criterion of ``rows``, (n,) int64, over the log."""
    entries, owner = watchers.entries_of(rows)
    counts = np.bincount(owner, minlength=len(rows))
    from_us, deadline_us = table.from_us[rows], table.deadline_us[rows]
    hashes = watchers.hashes.values[entries]
    spans = log.spans(watchers.keys, entries, hashes, from_us[owner], deadline_us[owner])
    history: list[Spans] = []
    if spec.criterion.code == LEVEL:
        always = np.full(len(entries), ALWAYS)
        # An operation that came after its deadline reads the base that the log had by then.
        until_us = np.maximum(deadline_us, saturating_add(from_us, -1))
        history = log.spans(watchers.keys, entries, hashes, always, until_us[owner])
    need = float(spec.criterion.need)
    cases = Cases(
        rule=np.full(len(rows), spec.criterion.code),
        need=np.full(len(rows), need),
        created_us=table.created_us[rows],
        from_us=from_us,
        deadline_us=deadline_us,
        first_entry=np.cumsum(counts) - counts,
        owner=owner,
        level_need=np.full(len(entries), need),
    )
    return Judgement(rows, entries, owner, evaluate(cases, spans, history))


def outcomes_of(
    spec: EngineSpec, status: int, judgement: Judgement, chosen: Bools, table: OperationRows, watchers: Watchers
) -> OutcomeBatch:
    """The outcome of every chosen row, (n,) bool; EXPIRED ones are resolved at their deadline."""
    rows = judgement.rows[chosen]
    if spec.criterion.code in KEYED:
        missing_entry = chosen[judgement.owner] & ~judgement.verdicts.satisfied
        counts = np.bincount(judgement.owner[missing_entry], minlength=len(chosen))[chosen]
        keys: pa.Array = watchers.keys.take(judgement.entries[missing_entry])
        missing = MissingKeys(keys, counts, np.ones(len(rows), bool))
    else:
        missing = MissingKeys.none(len(rows), watchers.keys.chunks[0].type)
    return OutcomeBatch(
        payload=table.payload.take(rows),
        status=status,
        created_us=table.created_us[rows],
        resolved_us=table.deadline_us[rows] if status == EXPIRED else judgement.resolved_us[chosen],
        matched=judgement.verdicts.matched[chosen],
        missing=missing,
        late=table.late[rows],
    )
