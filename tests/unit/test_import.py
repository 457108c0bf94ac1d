"""Importing the package is quick and loads nothing that is not needed yet."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import spark_purgatory

PACKAGE = Path(spark_purgatory.__file__).parent
SENDS_FUNCTIONS = frozenset(
    "mapInArrow mapInPandas applyInPandas applyInArrow applyInPandasWithState transformWithState "
    "transformWithStateInPandas udf foreachBatch gather_states rows_of_states".split()
)
"""Methods of Spark, and functions of ours, that have workers run functions and import the modules that define them."""
WITHOUT = """
import importlib, json, sys

class Lacks:
    def find_spec(self, name, path=None, target=None):
        if name in {lacking!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Lacks())
said = {{}}
for name in {names!r}:
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
        getattr(found, attribute) if attribute else None
    except BaseException as error:
        said[name] = f"{{type(error).__name__}}: {{error}}"
    # What a name has loaded helps no other one.
    for loaded in [each for each in sys.modules if each.split(".")[0] == "spark_purgatory"]:
        del sys.modules[loaded]
print(json.dumps(said))
"""
COMMAND_LINE = ("matplotlib", "pydantic", "rich", "typer", "yaml")
"""Packages of the extras `cli` and `plot`."""
CLASSIC = ("py4j", "pyspark.core")
"""What PySpark has and pyspark-client has not."""

IMPORT = """
import sys, time
start = time.process_time()
import spark_purgatory
print(time.process_time() - start, *{"pyspark", "numpy", "pandas", "pyarrow"} & set(sys.modules))
"""


def test_the_import_takes_less_than_300_ms_of_cpu_and_loads_neither_spark_nor_arrays() -> None:
    ran = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
    seconds, *loaded = ran.stdout.split()
    assert loaded == [] and float(seconds) < 0.3


def test_a_warning_is_seen_in_a_program_that_says_nothing_of_logging() -> None:
    code = "import logging, spark_purgatory; logging.getLogger('spark_purgatory.spark').warning('the table was filled')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr == "the table was filled\n"


def test_every_name_is_there_when_it_is_used() -> None:
    for name in spark_purgatory.__all__:
        assert getattr(spark_purgatory, name) is not None
    assert dir(spark_purgatory) == sorted(spark_purgatory.__all__)


@cache
def modules_with_functions_for_workers() -> list[str]:
    found = []
    for file in PACKAGE.rglob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        names = {getattr(call, "attr", getattr(call, "id", "")) for call in calls}
        if names & SENDS_FUNCTIONS:
            found.append(".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts))
    return sorted(found)


def failing_without(lacking: tuple[str, ...], names: list[str]) -> dict[str, str]:
    """The modules, or ``module:attribute``, that a Python without these packages cannot import, and what it says."""
    code = WITHOUT.format(lacking=lacking, names=names)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said: dict[str, str] = json.loads(ran.stdout)
    return said


def test_what_workers_run_is_in_many_modules() -> None:
    found = modules_with_functions_for_workers()
    assert {"spark_purgatory.spark.checkpoint.pending", "spark_purgatory.spark.operator.purgatory"} <= set(found)


def test_workers_need_no_package_of_the_command_line() -> None:
    """In one process: a module that needs one is found among those that do not."""
    needs_one = "spark_purgatory.job.summary"
    failing = failing_without(COMMAND_LINE, [needs_one, *modules_with_functions_for_workers(), needs_one])
    assert failing.keys() == {needs_one}, failing
    assert "No module named 'rich" in failing[needs_one]


def test_every_public_name_is_there_with_the_client_of_spark_connect_alone() -> None:
    names = [f"spark_purgatory:{name}" for name in spark_purgatory.__all__]
    needs_one = "spark_purgatory:of_another_release"
    assert failing_without(CLASSIC, [needs_one, *names, "pyspark.core.rdd"]).keys() == {needs_one, "pyspark.core.rdd"}
