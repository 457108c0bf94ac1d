"""The scale model: cells that it was not fitted to, and coefficients that are known."""

from __future__ import annotations

from dataclasses import replace
from operator import mul

import pytest

from benchmarks.scale_model import BLOB, LOG, PREDICTED, QUANTITIES, TOLERATED, Cell, Model, errors, fitted, read_cells


@pytest.mark.parametrize(("host", "quantity"), [(host, quantity) for host in (BLOB, LOG) for quantity in QUANTITIES])
def test_half_of_the_cells_predict_the_other_half(host: str, quantity: str) -> None:
    wrong = [abs(told[quantity]) for cell, told in errors(read_cells()) if cell.host == host]
    assert len(wrong) >= 8
    assert max(wrong) <= TOLERATED.get(quantity, PREDICTED)
    # Milliseconds follow the machine's other load, and the driver's memory the last collection of garbage.
    at_least = 0.5 if quantity in ("ms", "driver_bytes") else 0.75
    assert sum(off <= PREDICTED for off in wrong) >= at_least * len(wrong)


def test_known_coefficients_are_found_and_none_is_negative() -> None:
    loads = [
        Cell(LOG, 1000 * n, 10 * n % 70, 7 * n % 50, 1 + n % 3, 2 + n % 5, 1 + n % 2, 1 + n % 4) for n in range(1, 60)
    ]
    known = [300, 4, 7, 2, 0.5, 0.01, 0.002]
    cells = [replace(load, found={"cpu_s": sum(map(mul, known, load.terms("cpu_s")))}) for load in loads]
    assert fitted(cells, "cpu_s") == pytest.approx(known, abs=1e-6)
    falling = [replace(load, found={"ms": 1e6 - load.waiting}) for load in loads]
    assert min(fitted(falling, "ms")) >= 0


def test_more_partitions_than_cores_take_longer_but_no_more_memory() -> None:
    model = Model(read_cells())
    few, many = (model.predicted(Cell(LOG, 10_000, 2_000, 261, 1, 32, 2, partitions)) for partitions in (2, 32))
    assert many["cpu_s"] > few["cpu_s"] and many["ms"] > few["ms"]
    assert many["worker_bytes"] == few["worker_bytes"]
