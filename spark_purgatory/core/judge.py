"""Judging rows: an operation's spans of the log, its criterion, what control events do to it, its verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrivals import COMPLETE
from spark_purgatory.core.controls import Controlled, ControlLog, Subjects
from spark_purgatory.core.criteria import KEYED, LEVEL, RULES, SUM_AT_LEAST, Criterion
from spark_purgatory.core.engine_spec import EngineSpec
from spark_purgatory.core.evaluation import Cases, Verdicts, evaluate
from spark_purgatory.core.event_log import EventLog, Spans
from spark_purgatory.core.numbers import Floats, Numbers, constant, units_up
from spark_purgatory.core.operations import OperationRows
from spark_purgatory.core.outcomes import CANCELLED, COMPLETED, EXPIRED, FAILED, MissingKeys, OutcomeBatch
from spark_purgatory.core.runs import Bools, Int64s
from spark_purgatory.core.times import ALWAYS, NEVER, saturating_add
from spark_purgatory.core.watchers import Watchers

REASONS = {
    FAILED: "keys failed and the criterion can no longer be met",
    CANCELLED: "an event cancelled the operation",
}
"""Reason of an outcome by status."""


@dataclass(frozen=True)
class Judgement:
    """Verdicts on n rows with m watch entries."""

    rows: Int64s  # (n,)
    entries: Int64s  # (m,)
    owner: Int64s  # (m,) position in rows
    rule: Int64s  # (n,)
    created_us: Int64s  # (n,)
    deadline_us: Int64s  # (n,) as it stands after the extensions received while pending
    verdicts: Verdicts

    @property
    def resolved_us(self) -> Int64s:
        """(n,) int64; NEVER where nothing has settled it."""
        return self.verdicts.resolved_us

    @property
    def holds(self) -> Bools:
        """(n,) bool: settled at some time, perhaps ahead of the watermark."""
        return self.verdicts.resolved_us != NEVER

    def settled_as(self, chosen: Bools) -> list[tuple[int, Bools]]:
        """Rows chosen, (n,) bool, by the status in which they are settled."""
        status = self.verdicts.status
        if status is None:
            return [(COMPLETED, chosen)]
        return [(each, chosen & (status == each)) for each in (COMPLETED, FAILED, CANCELLED)]


@dataclass(frozen=True)
class Judge:
    """Evaluates rows over the logs."""

    spec: EngineSpec
    rows: OperationRows
    watchers: Watchers
    log: EventLog
    controls: ControlLog

    def judge(self, rows: Int64s) -> Judgement:
        """Evaluate the criterion of ``rows``, (n,) int64."""
        entries, owner = self.watchers.entries_of(rows)
        counts = np.bincount(owner, minlength=len(rows))
        from_us, deadline_us = self.rows.from_us[rows], self.rows.deadline_us[rows]
        controlled: Controlled | None = None
        if self.controls:
            controlled = self.controls.read(self.subjects(rows, entries, owner), from_us, deadline_us)
            deadline_us = controlled.deadline_us
        rule, need, sum_need, level_need = self._criteria(rows, entries)
        cases = Cases(
            rule=rule,
            need=need,
            sum_need=sum_need,
            created_us=self.rows.created_us[rows],
            from_us=from_us,
            deadline_us=deadline_us,
            first_entry=np.cumsum(counts) - counts,
            owner=owner,
            level_need=level_need,
            controlled=controlled,
        )
        verdicts = evaluate(cases, self._relevant(cases, rows, entries), self._history(cases, rows, entries))
        if controlled is not None:
            deadline_us = controlled.left_us(verdicts.resolved_us)
        return Judgement(rows, entries, owner, rule, cases.created_us, deadline_us, verdicts)

    def subjects(self, rows: Int64s, entries: Int64s, owner: Int64s) -> Subjects:
        """Rows and their entries, as control events find them."""
        ids = self.rows.ids.take(rows) if self.spec.operation_ids else None
        id_hash = self.rows.id_hash[rows] if self.spec.operation_ids else rows
        return Subjects(self.watchers.keys, entries, self.watchers.hashes.values[entries], owner, ids, id_hash)

    def outcomes_of(self, status: int, judgement: Judgement, chosen: Bools) -> OutcomeBatch:
        """The outcome of every chosen row, (n,) bool; EXPIRED ones are resolved at their deadline."""
        rows = judgement.rows[chosen]
        keyed = np.isin(judgement.rule, KEYED)
        missing = MissingKeys.none(len(rows), self.watchers.keys.chunks[0].type)
        if keyed.any():
            missing_entry = (keyed & chosen)[judgement.owner] & ~judgement.verdicts.satisfied
            counts = np.bincount(judgement.owner[missing_entry], minlength=len(chosen))[chosen]
            keys: pa.Array = self.watchers.keys.take(judgement.entries[missing_entry])
            missing = MissingKeys(keys, counts, keyed[chosen], self.spec.key_prefix)
        return OutcomeBatch(
            payload=self.rows.payload.take(rows),
            status=status,
            created_us=judgement.created_us[chosen],
            resolved_us=(judgement.deadline_us if status == EXPIRED else judgement.resolved_us)[chosen],
            matched=judgement.verdicts.matched[chosen],
            missing=missing,
            late=self.rows.late[rows],
            reasons=pa.repeat(REASONS[status], len(rows)) if status in REASONS else None,
        )

    def _criteria(self, rows: Int64s, entries: Int64s) -> tuple[Int64s, Floats, Numbers, Numbers]:
        """(rule, need, sum_need, level_need) of rows and entries."""
        criterion, scale, table = self.spec.criterion, self.spec.scale, self.rows
        if not isinstance(criterion, Criterion):
            return table.rule[rows], table.need[rows], table.sum_need[rows], table.level_need[entries]
        rule = np.full(len(rows), criterion.code)
        if scale is None or not criterion.reads_values:
            need = np.full(len(rows), float(criterion.need))
            return rule, need, need, np.full(len(entries), float(criterion.need))
        units = units_up(criterion.need, scale)
        return rule, np.full(len(rows), float(units)), constant(units, len(rows)), constant(units, len(entries))

    def _relevant(self, cases: Cases, rows: Int64s, entries: Int64s) -> list[Spans]:
        """The completions that count for each entry."""
        from_us, until_us = cases.from_us[cases.owner], _until(cases, cases.deadline_us)
        hashes = self.watchers.hashes.values[entries]
        sums = cases.rule[cases.owner] == SUM_AT_LEAST
        if not (self.spec.by_row and sums.any()):
            spans = self.log.spans(self.watchers.keys, entries, hashes, from_us, until_us)
            return spans + self._named(cases, rows, entries, from_us, until_us)
        # What no sum can take counts for the other rules.
        spans = self._spans(self.log, ~sums, entries, hashes, from_us, until_us)
        spans += self._spans(self.log.summable(), sums, entries, hashes, from_us, until_us)
        found = self._named(cases, rows, entries, from_us, until_us)
        spans += [_only(span, ~sums) for span in found]
        found = self._named(cases, rows, entries, from_us, until_us, summable=True)
        return spans + [_only(span, sums) for span in found]

    def _named(
        self,
        cases: Cases,
        rows: Int64s,
        entries: Int64s,
        from_us: Int64s,
        until_us: Int64s,
        summable: bool = False,
    ) -> list[Spans]:
        """Completions that name the operation, by entry."""
        if cases.controlled is None:
            return []
        controls = self.controls.summable() if summable else self.controls
        return controls.spans(COMPLETE, self.subjects(rows, entries, cases.owner), from_us, until_us)

    def _history(self, cases: Cases, rows: Int64s, entries: Int64s) -> list[Spans]:
        """For entries under level, the completions from whenever."""
        if not self.spec.may_have(RULES.index("level")):
            return []
        always = np.full(len(entries), ALWAYS)
        # An operation that came after its deadline reads the base that the log had by then.
        until_us = _until(cases, np.maximum(cases.deadline_us, saturating_add(cases.from_us, -1)))
        hashes = self.watchers.hashes.values[entries]
        levels = cases.rule[cases.owner] == LEVEL
        spans = self._spans(self.log, levels, entries, hashes, always, until_us)
        return spans + [_only(span, levels) for span in self._named(cases, rows, entries, always, until_us)]

    def _spans(
        self, log: EventLog, chosen: Bools, entries: Int64s, hashes: Int64s, from_us: Int64s, until_us: Int64s
    ) -> list[Spans]:
        """Spans of the chosen entries alone, (m,) bool."""
        at = np.flatnonzero(chosen)
        found = log.spans(self.watchers.keys, entries[at], hashes[at], from_us[at], until_us[at])
        return [replace(span, owner=at[span.owner]) for span in found]


def _until(cases: Cases, until_us: Int64s) -> Int64s:
    """The last time that counts for each entry, (m,): what comes behind a failure of its key does not."""
    last_us = until_us[cases.owner]
    return last_us if cases.controlled is None else np.minimum(last_us, cases.controlled.fail_us)


def _only(span: Spans, chosen: Bools) -> Spans:
    at = np.flatnonzero(chosen[span.owner])
    return Spans(span.segment, span.owner[at], span.group_start[at], span.low[at], span.high[at])
