"""Importing the package is quick and loads nothing that is not needed yet."""

from __future__ import annotations

import subprocess
import sys

import spark_purgatory

IMPORT = """
import sys, time
start = time.perf_counter()
import spark_purgatory
print(time.perf_counter() - start, *{"pyspark", "numpy", "pandas", "pyarrow"} & set(sys.modules))
"""


def test_the_import_takes_less_than_300_ms_and_loads_neither_spark_nor_arrays() -> None:
    runs = [
        subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True) for _ in range(3)
    ]
    seconds = [run.stdout.split() for run in runs]
    assert all(len(words) == 1 for words in seconds), "modules that were loaded"
    assert min(float(words[0]) for words in seconds) < 0.3


def test_every_name_is_there_when_it_is_used() -> None:
    for name in spark_purgatory.__all__:
        assert getattr(spark_purgatory, name) is not None
    assert dir(spark_purgatory) == sorted(spark_purgatory.__all__)
