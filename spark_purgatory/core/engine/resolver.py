"""The resolution of rows from the spans of the logs, the criterion, and the effects of control events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_purgatory.core.arrays import numbers
from spark_purgatory.core.arrays.numbers import Floats, Numbers, constant, is_double, units_up
from spark_purgatory.core.arrays.sorted_runs import Bools, Int64s
from spark_purgatory.core.arrays.times import MAX_TIME_US, MIN_TIME_US, saturating_add
from spark_purgatory.core.engine.evaluation import (
    TRAITS,
    EvaluationInput,
    EvaluationResult,
    RelevantEvents,
    evaluate,
    totals,
)
from spark_purgatory.core.engine.operation_table import OperationTable
from spark_purgatory.core.engine.outcomes import MissingKeys, OutcomeBatch
from spark_purgatory.core.events.control_log import ControlEffects, ControlLog, Targets
from spark_purgatory.core.events.event_log import EventLog, Spans
from spark_purgatory.core.kafka.purgatory import Watchers
from spark_purgatory.core.spec.codes import EventKind, Status, among
from spark_purgatory.core.spec.criteria import ADDING, AT_DEADLINE, KEYED, LEVELLED, Criterion
from spark_purgatory.core.spec.engine_spec import EngineSpec

REASONS = {  # The reason of an outcome and its code, by status
    Status.FAILED: ("keys failed and the criterion can no longer be met", "keys_failed"),
    Status.CANCELLED: ("an event cancelled the operation", "cancelled"),
}


@dataclass(frozen=True)
class Resolutions:
    rows: Int64s  # (n,)
    entries: Int64s  # (m,)
    owner: Int64s  # (m,) position in rows
    rule: Int64s  # (n,)
    created_us: Int64s  # (n,)
    deadline_us: Int64s  # (n,) with the extensions received while pending
    result: EvaluationResult
    spans: list[Spans]  # the completions that counted for each entry
    fail_us: Int64s | None = None  # (m,) first failure of the entry's key; None: no key has failed

    @property
    def resolved_us(self) -> Int64s:
        """(n,) int64; MAX_TIME_US if the row is not resolved."""
        return self.result.resolved_us

    @property
    def is_resolved(self) -> Bools:
        """(n,) bool: the row is resolved at some time, perhaps ahead of the watermark."""
        # A deadline that decides may be the end of time.
        at_deadline = among(self.rule, AT_DEADLINE) & (self.result.matched > 0)
        return (self.result.resolved_us != MAX_TIME_US) | at_deadline

    @property
    def awaits_deadline(self) -> Bools:
        """(n,) bool: more events may come until the deadline."""
        return among(self.rule, AT_DEADLINE) & (self.result.resolved_us == self.result.met_us)

    @staticmethod
    def joined(parts: list[Resolutions]) -> Resolutions:
        rows, entries = (
            np.cumsum([0, *map(len, of)]) for of in zip(*((p.rows, p.entries) for p in parts), strict=True)
        )
        result = EvaluationResult(**_concatenated([vars(part.result) for part in parts]))
        spans = [replace(s, owner=s.owner + at) for part, at in zip(parts, entries, strict=False) for s in part.spans]
        moved = [replace(part, owner=part.owner + at) for part, at in zip(parts, rows, strict=False)]
        return Resolutions(**{**_concatenated([vars(part) for part in moved]), "result": result, "spans": spans})

    def spans_of(self, chosen: Bools) -> list[Spans]:
        """Return the completions of chosen rows' entries, (n,) bool, by position among these entries."""
        if chosen.all():
            return self.spans
        mine = chosen[self.owner]
        place = np.cumsum(mine) - 1
        kept = (span.where(mine[span.owner]) for span in self.spans)
        return [replace(span, owner=place[span.owner]) for span in kept]

    def by_status(self, chosen: Bools) -> list[tuple[Status, Bools]]:
        status = self.result.status
        if status is None:
            return [(Status.COMPLETED, chosen)]
        return [(each, chosen & (status == each)) for each in (Status.COMPLETED, Status.FAILED, Status.CANCELLED)]


@dataclass(frozen=True)
class Resolver:
    spec: EngineSpec
    rows: OperationTable
    watchers: Watchers
    log: EventLog
    controls: ControlLog

    def resolve(self, rows: Int64s) -> Resolutions:
        inputs, entries = self.inputs(rows)
        spans = self.relevant(inputs, rows, entries)
        relevant = RelevantEvents.of(inputs, spans)
        parts = list(relevant.parts(len(rows)))
        if len(parts) > 1:
            return Resolutions.joined([self.resolve(rows[part]) for part in parts])
        result = evaluate(inputs, relevant, self.history(inputs, rows, entries))
        deadline_us, fail_us = inputs.deadline_us, None
        if inputs.effects is not None:
            deadline_us, fail_us = inputs.effects.left_us(result.resolved_us), inputs.effects.fail_us
        owner, rule, created_us = inputs.owner, inputs.rule, inputs.created_us
        return Resolutions(
            rows, entries, owner, rule, created_us, deadline_us=deadline_us, result=result, spans=spans, fail_us=fail_us
        )

    def progress(self, resolutions: Resolutions) -> tuple[pa.Array, pa.Array]:
        """Return the keys, events or sum that each row has and needs, (n,): doubles, or decimals if units add up."""
        (inputs, _), scale = self.inputs(resolutions.rows), self.spec.sum_scale
        n, owner, result = len(inputs.rule), inputs.owner, resolutions.result
        satisfied = np.bincount(owner[result.satisfied], minlength=n)
        counts = {
            "one": np.ones(n),
            "n_keys": np.bincount(owner, minlength=n),
            "satisfied": satisfied,
            "any_satisfied": np.minimum(satisfied, 1),
            "matched": result.matched,
            "need": inputs.need,
        }
        sums = {"total": totals(inputs, resolutions.spans, resolutions.resolved_us), "sum_need": inputs.sum_need}
        floats = {name: each.astype(float) for name, each in counts.items()}
        if scale is None:  # Units that are not added up are not read.
            floats |= {name: each if is_double(each) else floats["one"] for name, each in sums.items()}
            progress = {name: pa.array(each) for name, each in floats.items()}
        else:
            progress = {name: numbers.counts_as_decimals(each, scale) for name, each in floats.items()}
            progress |= {name: numbers.as_decimals(each, scale) for name, each in sums.items()}
        rule = pa.array(inputs.rule)
        reached = pc.choose(rule, *(progress[traits.reached] for traits in TRAITS.values()))
        return reached, pc.choose(rule, *(progress[traits.needed] for traits in TRAITS.values()))

    def inputs(self, rows: Int64s) -> tuple[EvaluationInput, Int64s]:
        entries, owner = self.watchers.entries_of(rows)
        counts = np.bincount(owner, minlength=len(rows))
        from_us, deadline_us = self.rows.from_us_of(rows), self.rows.deadline_us[rows]
        effects: ControlEffects | None = None
        if self.controls:
            effects = self.controls.read(self.targets(rows, entries, owner), from_us, deadline_us)
            deadline_us = effects.deadline_us
        rule, need, sum_need, level_need = self._criteria(rows, entries)
        inputs = EvaluationInput(
            rule=rule,
            need=need,
            sum_need=sum_need,
            created_us=self.rows.created_us[rows],
            from_us=from_us,
            deadline_us=deadline_us,
            first_entry=np.cumsum(counts) - counts,
            owner=owner,
            level_need=level_need,
            effects=effects,
        )
        return inputs, entries

    def targets(self, rows: Int64s, entries: Int64s, owner: Int64s) -> Targets:
        ids = self.rows.ids.take(rows) if self.spec.operation_ids else None
        id_hash = self.rows.id_hash[rows] if self.spec.operation_ids else rows
        hashes, whole = self.watchers.hashes.values[entries], self.spec.whole_operations
        return Targets(self.watchers.keys, entries, hashes, owner, ids, id_hash=id_hash, whole=whole)

    def outcomes_of(self, status: Status, resolutions: Resolutions, chosen: Bools) -> OutcomeBatch:
        """Return the outcomes of chosen rows, (n,) bool; EXPIRED ones are resolved at their deadline."""
        rows = resolutions.rows[chosen]
        reasons, codes = [pa.repeat(text, len(rows)) for text in REASONS[status]] if status in REASONS else (None, None)
        keyed = among(resolutions.rule, KEYED)
        missing = MissingKeys.none(len(rows))
        if keyed.any():
            missing_entry = (keyed & chosen)[resolutions.owner] & ~resolutions.result.satisfied
            counts = np.bincount(resolutions.owner[missing_entry], minlength=len(chosen))[chosen]
            keys: pa.Array = self.watchers.keys.take(resolutions.entries[missing_entry])
            missing = MissingKeys(keys, counts, keyed[chosen], self.spec.key_prefix)
        return OutcomeBatch(
            payload=self.rows.payload.take(rows),
            status=status,
            created_us=resolutions.created_us[chosen],
            resolved_us=(resolutions.deadline_us if status == Status.EXPIRED else resolutions.resolved_us)[chosen],
            matched=resolutions.result.matched[chosen],
            missing=missing,
            late=self.rows.late[rows],
            reasons=reasons,
            codes=codes,
        )

    def _criteria(self, rows: Int64s, entries: Int64s) -> tuple[Int64s, Floats, Numbers, Numbers]:
        criterion, scale, table = self.spec.criterion, self.spec.scale, self.rows
        if not isinstance(criterion, Criterion):
            return table.rule[rows], table.need[rows], table.sum_need[rows], table.level_need[entries]
        rule = np.full(len(rows), criterion.code)
        if scale is None or not criterion.reads_values:
            need = np.full(len(rows), float(criterion.need))
            return rule, need, need, np.full(len(entries), float(criterion.need))
        units = units_up(criterion.need, scale)
        return rule, np.full(len(rows), float(units)), constant(units, len(rows)), constant(units, len(entries))

    def relevant(self, inputs: EvaluationInput, rows: Int64s, entries: Int64s) -> list[Spans]:
        from_us, until_us = inputs.from_us[inputs.owner], _until(inputs, inputs.deadline_us)
        completions = partial(self._completions, inputs, rows, entries, from_us=from_us, until_us=until_us)
        sums = inputs.has(ADDING)[inputs.owner]
        if not (self.spec.by_row and sums.any()):
            return completions(log=self.log, controls=self.controls)
        # Values that no sum can take count under the other rules.
        others = completions(log=self.log, controls=self.controls, chosen=~sums)
        return others + completions(log=self.log.summable(), controls=self.controls.summable(), chosen=sums)

    def history(self, inputs: EvaluationInput, rows: Int64s, entries: Int64s) -> list[Spans]:
        if not self.spec.may_have(LEVELLED):
            return []
        start, levels = np.full(len(entries), MIN_TIME_US), inputs.has(LEVELLED)[inputs.owner]
        # An operation that came after its deadline reads the base that the log had at that time.
        until_us = _until(inputs, np.maximum(inputs.deadline_us, saturating_add(inputs.from_us, -1)))
        return self._completions(
            inputs, rows, entries, from_us=start, until_us=until_us, log=self.log, controls=self.controls, chosen=levels
        )

    def _completions(
        self, inputs: EvaluationInput, rows: Int64s, entries: Int64s, *, from_us: Int64s, until_us: Int64s,
        log: EventLog, controls: ControlLog, chosen: Bools | None = None,
    ) -> list[Spans]:  # fmt: skip
        """Return the completions of all or chosen entries between two times, with those that name the operation."""
        at: Any = slice(None) if chosen is None else np.flatnonzero(chosen)
        hashes = self.watchers.hashes.values[entries[at]]
        spans = log.spans(self.watchers.keys, entries[at], hashes, from_us[at], until_us[at])
        named = []
        if inputs.effects is not None:
            targets = self.targets(rows, entries, inputs.owner)
            named = controls.spans(EventKind.COMPLETE, targets, from_us, until_us)
        if chosen is not None:
            spans = [replace(span, owner=at[span.owner]) for span in spans]
            named = [span.where(chosen[span.owner]) for span in named]
        return spans + named


def _concatenated(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Concatenate the arrays of parts. A column that is None in one part is None in all, as all read the same logs."""
    arrays = [name for name, column in parts[0].items() if isinstance(column, np.ndarray)]
    return {name: np.concatenate([part[name] for part in parts]) for name in arrays}


def _until(inputs: EvaluationInput, until_us: Int64s) -> Int64s:
    """Return the last time that counts for each entry, (m,): events after a failure of its key do not count."""
    last_us = until_us[inputs.owner]
    return last_us if inputs.effects is None else np.minimum(last_us, inputs.effects.fail_us)
