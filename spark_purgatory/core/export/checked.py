"""Checks of edited tables before `put_together` makes engines of them.

They refuse rows that semantics 2.3 rejects, operations that 2.4 makes DUPLICATEs, and columns that contradict each
other. Rows are numbered, and every exported row must be there or be declared as removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_purgatory.core.arrays.sorted_runs import Bools, Int64s
from spark_purgatory.core.arrays.times import MAX_TIME_US, MIN_TIME_US, saturating_add
from spark_purgatory.core.arrays.value_column import as_bools
from spark_purgatory.core.arrays.value_ranks import value_ranks
from spark_purgatory.core.export.put_together import plain
from spark_purgatory.core.export.taken_apart import KEPT_AS
from spark_purgatory.core.spec.arrivals import codes_of
from spark_purgatory.core.spec.codes import KINDS, RULES, EventKind, EventMark, among
from spark_purgatory.core.spec.criteria import ADDING, COUNTED, LEVELLED, Criterion
from spark_purgatory.core.spec.engine_spec import EngineSpec

TABLES = ("operations", "events", "ids")
NO_TIME = "have the first or last microsecond, which stands for no time"
NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")

Columns = Mapping[str, pa.Array]
Found = Iterator[tuple[str, str, Bools]]  # for each rule: the column, its rows' fault, and flags of these rows


@dataclass(frozen=True)
class Fault:
    """A fault of a column of a table, and the number of its rows."""

    column: str
    what: str
    rows: int
    remedy: str = "repair or remove these rows"


@dataclass(frozen=True)
class TableRules:
    """The rules of the query that takes over the tables."""

    spec: EngineSpec
    one_key: bool = False  # operations have one key each, by which rows go to shards
    roles: Mapping[str, str] | None = None  # fields of ``operation`` that are also columns of the table, by column

    def faults(self, name: str, table: pa.Table) -> list[Fault]:
        """Return the faults of a table, which must have all rows of an identity and of a number."""
        columns = plain(table)
        first = np.unique(columns["row"].fill_null(-1).to_numpy(), return_index=True)[1]
        copies = _valid(columns["row"])
        copies[first] = False
        found = [Fault("row", "have the number of another row", int(copies.sum()), "write each row once")]
        for column, what, which in [*_nulls(columns, ["row"]), *getattr(self, f"_{name}")(columns)]:
            found.append(Fault(column, what, int((which & ~copies).sum())))
        return [fault for fault in found if fault.rows]

    def _operations(self, columns: Columns) -> Found:
        spec, ids = self.spec, columns["id"]
        own = ["operation"] if "operation" in columns else []
        yield from _nulls(columns, [*own, "created_us", "deadline_us", "from_us", "late", "undecided"])
        yield from self._keys(columns["keys"])
        times = ("created_us", "deadline_us", "from_us", "id_until_us")
        created, deadline, from_us, until = (_int64(columns[name]) for name in times)
        timed = _valid(columns["created_us"]) & _valid(columns["deadline_us"])
        yield "created_us", NO_TIME, timed & ((created == MIN_TIME_US) | (created == MAX_TIME_US))
        yield "deadline_us", "have a deadline before created_us", timed & (deadline < created)
        early = timed & _valid(columns["from_us"]) & (from_us < saturating_add(created, -spec.lookback_us))
        yield "from_us", "have a time before created_us less the lookback", early
        undecided, has_until = _true(columns["undecided"]), _valid(columns["id_until_us"])
        yield "undecided", "have true, which needs emit='final'", undecided & (not spec.final)
        needs_id = spec.keeps_ids or spec.role("id") is not None
        yield "id", "have null", ~_valid(ids) & (needs_id | has_until)
        yield "id_until_us", "have null and are decided", _valid(ids) & ~undecided & ~has_until
        yield "id_until_us", "have a time and are undecided", undecided & has_until
        yield "id_until_us", "have a time before deadline_us", timed & has_until & (until < deadline)
        yield from self._same_as_own(columns)
        if spec.by_row:
            yield from self._needs(columns)
        decided = timed & ~undecided & _valid(ids)
        yield "id", "would be DUPLICATEs of operations that wait", self._duplicates(columns, decided)

    def _keys(self, keys: pa.Array) -> Found:
        yield "keys", "have no watch key", _lengths(keys) == 0
        yield "keys", "have several watch keys in a query of one", (_lengths(keys) > 1) & self.one_key
        flat, owner = pc.list_flatten(keys), pc.list_parent_indices(keys)
        yield "keys", "have a key that is null", _of_lists(keys, ~_valid(flat))
        seen = pa.table({"row": owner, "key": flat}).group_by(["row", "key"]).aggregate([([], "count_all")])
        again = seen.filter(pc.field("count_all") > 1)["row"]
        yield "keys", "have a key twice", np.isin(np.arange(len(keys)), again.to_numpy())

    def _same_as_own(self, columns: Columns) -> Found:
        for name, field in (self.roles or {}).items():
            own, column = pc.struct_field(columns["operation"], [field]), columns[name]
            if name.endswith("_us"):
                own = own.view(pa.int64())
            column = _first(column) if name == "keys" else column
            differs = ~as_bools(pc.fill_null(pc.equal(column, own.cast(column.type)), True))
            yield name, f"have another value than the operation's own column {field!r}", differs

    def _needs(self, columns: Columns) -> Found:
        rule = codes_of(columns["rule"], RULES)
        yield "rule", f"have none of {', '.join(RULES)}", rule < 0
        need = columns["need"].cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
        whole = (need >= 1) & np.isfinite(need) & (need == np.floor(need))
        yield "need", "have no whole number from 1", np.isin(rule, COUNTED) & ~whole
        sums, levels = columns["sum_need"], columns["level_needs"]
        yield "sum_need", "have no number from 0", among(rule, ADDING) & ~self._numbers(sums, 0)
        yield "sum_need", "have no number", _valid(sums) & ~self._numbers(sums)
        yield "level_needs", "have another length than keys", _lengths(levels) != _lengths(columns["keys"])
        flat = pc.list_flatten(levels)
        yield "level_needs", "have no number", _of_lists(levels, _valid(flat) & ~self._numbers(flat))
        reached = _of_lists(levels, ~self._numbers(flat, -np.inf))
        yield "level_needs", "have no number for a key", among(rule, LEVELLED) & reached

    def _numbers(self, texts: pa.Array, least: float | None = None) -> Bools:
        """Flag texts that `taken_apart.needs_as_text` may have written and, if given, are at least ``least``."""
        scale, whole = self.spec.scale, texts.dictionary_encode()

        def is_number(text: str) -> bool:
            if text in (("never", "always") if scale is not None else ("nan", "inf", "-inf")):
                return least is None or text in ("never", "inf") or (least < 0 and text != "nan")
            if not NUMBER.fullmatch(text):
                return False
            number = Decimal(text)
            if scale is not None and (int(number.as_tuple().exponent) < -scale or number.adjusted() >= 38 - scale):
                return False
            return least is None or number >= Decimal(least)

        known = np.array([*map(is_number, whole.dictionary.to_pylist()), False])
        return known[_int64(whole.indices, -1)]

    def _duplicates(self, columns: Columns, decided: Bools) -> Bools:
        """Flag operations that were created before another one of their identity had reached its deadline (2.4)."""
        identity = {"id": columns["id"], "key": _first(columns["keys"])}
        names = ["id", "key"][: self.spec.identity_width]
        codes = value_ranks(pa.StructArray.from_arrays([identity[name] for name in names], names=names))
        created, deadline = (_int64(columns[name]) for name in ("created_us", "deadline_us"))
        rows = np.flatnonzero(decided & (deadline >= created))
        order = rows[np.lexsort((deadline[rows], created[rows], codes[rows]))]
        same = codes[order][1:] == codes[order][:-1]
        return np.isin(np.arange(len(codes)), order[1:][same & (created[order[1:]] <= deadline[order[:-1]])])

    def _events(self, columns: Columns) -> Found:
        spec, kept, kind = self.spec, codes_of(columns["kept_as"], KEPT_AS), codes_of(columns["kind"], KINDS)
        yield "kept_as", f"have none of {', '.join(KEPT_AS)}", kept < 0
        yield "kind", f"have none of {', '.join(KINDS)}", kind < 0
        yield from _nulls(columns, ["is_named", "time_us"])
        log, control, unmatched, *both = (kept == code for code in range(len(KEPT_AS)))
        ranges, named, completes = both[0] | both[1], _true(columns["is_named"]), kind == EventKind.COMPLETE
        has_marks, has_id, has_key = spec.orphans == "all", _valid(columns["operation_id"]), _valid(columns["key"])
        yield "kind", "have a kind that is not kept so (kept_as)", (log | ranges) & (kind > EventKind.COMPLETE)
        yield "kept_as", "have 'control' for a plain completion", control & completes & ~named
        unheard = (ranges | (unmatched & (completes | (spec.orphans == "none")))) & (not has_marks)
        yield "kept_as", f"have what the query does not keep (orphans={spec.orphans!r})", unheard
        yield "is_named", "have true where events name no operation", named & (log | (not spec.operation_ids))
        yield "operation_id", "have another one than is_named says", has_id != named
        alone = named & (ranges | (kind > EventKind.COMPLETE)) & spec.whole_operations
        yield "key", "have null", ~has_key & ~alone
        time, number, has_number = _int64(columns["time_us"]), _int64(columns["number"]), _valid(columns["number"])
        timed = _valid(columns["time_us"])
        yield "time_us", NO_TIME, timed & ~ranges & ((time == MIN_TIME_US) | (time == MAX_TIME_US))
        marks = unmatched & has_marks
        extends = (control | (unmatched & ~marks)) & (kind == EventKind.EXTEND)
        yield "number", "have null", (marks | extends | ranges) & ~has_number
        yield "number", "have a negative one", (marks | extends) & (number < 0)
        yield "number", "have one that is no sum of marks", marks & (number > sum(EventMark))
        yield "number", "have an end before time_us", ranges & timed & has_number & (number < time)
        values = columns["value"].cast(pa.float64())
        yield "value", "have NaN, where an export has null", _true(pc.is_nan(values))
        if isinstance(spec.criterion, Criterion) and spec.criterion.code in ADDING:
            yield "value", "have a negative one", (log | control) & completes & _true(pc.less(values, 0.0))

    def _ids(self, columns: Columns) -> Found:
        yield from _nulls(columns, ["id", "until_us"])


def conserved(name: str, rows: int, wrote: int, removed: int) -> list[Fault]:
    """Return a fault if rows of a table are missing or too many; ``wrote`` were exported."""
    if rows > wrote:
        return [Fault("row", f"are more than the {wrote:,} that were exported", rows - wrote, "keep only those")]
    if rows + removed == wrote:
        return []
    said = f"removed={{{name!r}: {wrote - rows}}} (--removed {name}={wrote - rows})"
    what = f"of the {wrote:,} that were exported are missing, and {removed:,} were said to be removed"
    return [Fault("row", what, wrote - rows, f"bring them back, or if you removed them on purpose, say so with {said}")]


def told(name: str, faults: Iterable[Fault]) -> list[str]:
    """Return the texts of an error about a table's faults."""
    return [f"table {name!r}, column {each.column!r}: {each.rows:,} rows {each.what}: {each.remedy}" for each in faults]


def _nulls(columns: Columns, names: Iterable[str]) -> Found:
    for name in names:
        yield name, "have null", ~_valid(columns[name])


def _lengths(lists: pa.Array) -> Int64s:
    return _int64(pc.list_value_length(lists))


def _first(lists: pa.Array) -> pa.Array:
    """Return the first element of each list, or null."""
    return lists.values.take(pa.array(lists.offsets.to_numpy()[:-1], mask=_lengths(lists) == 0))


def _of_lists(lists: pa.Array, which: Bools) -> Bools:
    """Flag the lists with one of the flagged elements, (flat,) bool."""
    owners = pc.list_parent_indices(lists).to_numpy()[which]
    return np.isin(np.arange(len(lists)), owners)


def _int64(column: pa.Array, null: int = 0) -> Int64s:
    return column.fill_null(null).cast(pa.int64()).to_numpy(zero_copy_only=False)


def _valid(column: pa.Array) -> Bools:
    return as_bools(column.is_valid()).copy()


def _true(column: pa.Array) -> Bools:
    return as_bools(pc.fill_null(column, False))
