"""Sorted runs and growing columns, against plain lists."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_purgatory.core.arrays import sorted_runs as runs_module
from spark_purgatory.core.arrays.sorted_runs import (
    EMPTY,
    MAX_ROWS,
    ROW_BITS,
    ROW_MASK,
    GrowableArray,
    Int64s,
    SortedRuns,
    by_first,
)
from tests.support.now_and_then import examples

LOWEST, HIGHEST = -(1 << 35), (1 << 35) - 1
"""The ends of the 36 bits of a prefix."""

Entry = tuple[int, int]
"""(prefix, row)"""


def packed(entries: list[Entry]) -> Int64s:
    return np.array(sorted((prefix << ROW_BITS) | row for prefix, row in entries), np.int64)


def unpacked(entries: Int64s) -> list[Entry]:
    return [(entry >> ROW_BITS, entry & ROW_MASK) for entry in entries.tolist()]


def needles_of(prefixes: list[int]) -> Int64s:
    return np.array([prefix << ROW_BITS for prefix in sorted(prefixes)], np.int64)


def all_sorted(runs: SortedRuns) -> bool:
    """Every run ascends (a difference of two entries may not fit 64 bits), and none is empty."""
    return all(len(run) and (run[1:] >= run[:-1]).all() for run in runs.runs)


def found_in(model: list[Entry], prefixes: list[int]) -> list[Entry]:
    """(which needle, row), in order, of needles in ascending order."""
    return sorted((i, row) for i, prefix in enumerate(sorted(prefixes)) for p, row in model if p == prefix)


PREFIXES = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([LOWEST, LOWEST + 1, -1, 0, HIGHEST - 1, HIGHEST]),
    st.integers(LOWEST, HIGHEST),
)
ROWS = st.one_of(st.integers(0, 5), st.just(ROW_MASK))
ENTRIES = st.lists(st.tuples(PREFIXES, ROWS), max_size=12)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), ENTRIES),
        st.tuples(st.just("find"), st.lists(PREFIXES, max_size=8)),
        st.tuples(st.just("pop"), PREFIXES.filter(lambda prefix: prefix < HIGHEST)),
        st.tuples(st.just("between"), st.tuples(PREFIXES, PREFIXES)),
    ),
    max_size=15,
)


@examples(120, 800)
@given(ACTIONS)
def test_runs_answer_as_one_list_would(actions: list[tuple[str, Any]]) -> None:
    check_against_a_list(actions)


@examples(120, 800)
@given(ACTIONS)
def test_runs_with_a_table_of_starts_answer_as_one_list_would(actions: list[tuple[str, Any]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("DIRECTORY_FLOOR", 0), ("NEEDLES_PAY", 1 << 40)):
            patch.setattr(runs_module, name, value)
        check_against_a_list(actions)


def test_a_table_of_starts_is_made_once_many_needles_were_sought() -> None:
    rng = np.random.default_rng(5)
    entries = np.sort(rng.integers(-(1 << 63), 1 << 63, 100_000))
    runs = SortedRuns([entries])
    needles = np.sort(entries[rng.integers(0, len(entries), 1000)])
    expected = by_first(*runs.find(needles))
    assert [directory._starts is not None for directory in runs.directories] == [False]
    for _ in range(len(entries) // runs_module.NEEDLES_PAY // len(needles)):
        assert [column.tolist() for column in by_first(*runs.find(needles))] == [c.tolist() for c in expected]
    assert [directory._starts is not None for directory in runs.directories] == [True]
    runs.pop_until(0)
    assert len(runs.find(needles[:100])[0]) == 0
    assert [directory._starts is not None for directory in runs.directories] == [False], "another run, another table"


def check_against_a_list(actions: list[tuple[str, Any]]) -> None:
    runs, model = SortedRuns(), list[Entry]()
    for action, given_ in actions:
        if action == "add":
            runs.add(packed(given_))
            model += given_
        elif action == "find":
            found, rows = runs.find(needles_of(given_))
            expected = found_in(model, given_)
            assert Counter(zip(found.tolist(), rows.tolist(), strict=True)) == Counter(expected)
            pairs = by_first(found, rows)
            assert list(zip(*(column.tolist() for column in pairs), strict=True)) == expected
        elif action == "pop":
            popped = unpacked(runs.pop_until(given_))
            assert Counter(popped) == Counter(entry for entry in model if entry[0] <= given_)
            model = [entry for entry in model if entry[0] > given_]
        else:
            low, high = given_
            inside = unpacked(runs.between(low, high))
            assert Counter(inside) == Counter(entry for entry in model if low <= entry[0] < high)
        assert len(runs) == len(model)
        assert Counter(entry for run in runs.runs for entry in unpacked(run)) == Counter(model)
        assert all_sorted(runs)


@pytest.mark.parametrize("seed", range(10))
def test_adding_leaves_at_most_log2_n_plus_2_runs(seed: int) -> None:
    rng, runs, most = random.Random(seed), SortedRuns(), 0
    for _ in range(400):
        size = rng.choice((1, 1, 2, 3, 10, rng.randint(1, 200)))
        runs.add(packed([(rng.randint(LOWEST, HIGHEST), rng.randrange(MAX_ROWS)) for _ in range(size)]))
        assert len(runs.runs) <= math.log2(len(runs)) + 2, f"seed {seed}: {[len(run) for run in runs.runs]}"
        assert all(len(a) > 2 * len(b) for a, b in pairwise(runs.runs))
        most = max(most, len(runs.runs))
    assert most > 1, "nothing was ever left apart: the bound was met in name only"


def test_ten_thousand_appends_copy_a_column_a_few_dozen_times() -> None:
    column: GrowableArray[Any] = GrowableArray(EMPTY)
    places = set()
    for i in range(10_000):
        column.append(np.array([i]))
        places.add((column.values.ctypes.data, len(column.values.base)))
    assert column.values.tolist() == list(range(10_000))
    assert len(places) <= math.log(10_000 / 64, 1.25) + 3, f"{len(places)} copies"
