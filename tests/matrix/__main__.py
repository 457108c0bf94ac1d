"""The tests in other environments: ``python -m tests.matrix [CELL ...] [--jobs 2]``, by default all of them.

Each cell runs a slice of the tests twice, with the default host and with the log host. Then checkpoints travel through
releases of Spark, killed at each stop. What was found replaces the cell's entry in `verified.json` of the doctor, which
reads it, and from which docs/shipping.md has its tables.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from spark_purgatory.doctor.machine import FILE
from spark_purgatory.spark.sink.table.iceberg_target import RUNTIMES
from tests.matrix.cells import CELLS, DELTA, SLICE, SLICE_OF_THE_LOG_HOST, WALKS, WITH_DELTA, Cell, Walk
from tests.matrix.environments import CACHE, ROOT, Environment, NotHere, environment_of

UPGRADES = "upgrades"
PAGE = ROOT / "docs" / "shipping.md"
LEG_SECONDS = 600
BATCHES_A_LEG = 2
VERSIONS = """
import json, platform, numpy, pandas, pyarrow, pyspark, google.protobuf
print(json.dumps({"spark": pyspark.__version__, "python": platform.python_version(), "numpy": numpy.__version__,
    "pandas": pandas.__version__, "pyarrow": pyarrow.__version__, "protobuf": google.protobuf.__version__}))
"""


def main() -> int:
    """Run what was asked for; 0 where all is green."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix")
    parser.add_argument(
        "cells", nargs="*", help=f"of {', '.join(cell.name for cell in CELLS)}, {UPGRADES}[:SINK or HOST]"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes with Spark at a time")
    parser.add_argument("--check", action="store_true", help="keep nothing of what is found but the exit code")
    parser.add_argument("--table", action="store_true", help="print what was found before, and run nothing")
    asked = parser.parse_args()
    names = asked.cells or [*(cell.name for cell in CELLS), UPGRADES]
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    if not asked.table:
        environments = dict(installed([cell for cell in CELLS if cell.name in names]))
        with ThreadPoolExecutor(asked.jobs) as pool:
            cells = [cell for cell in CELLS if cell.name in environments]
            # What is found is kept at once: a run that is ended in between was not for nothing.
            for run in pool.map(lambda cell: run_cell(cell, environments[cell.name]), cells):
                found = merged(found, [run], [])
                keep(found, asked.check)
            for legs in pool.map(lambda walk: walk_of(*walk), chosen_walks(names)):
                found = merged(found, [], legs)
                keep(found, asked.check)
    if not asked.check:
        PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    print(*tables_of(found).values(), sep="\n\n")
    wrong = [leg for leg in found["upgrades"] if leg["result"] != "green"]
    return int(bool(wrong) or any(cell["failed"] for cell in found["cells"]))


def installed(cells: Iterable[Cell]) -> Iterator[tuple[str, Environment | NotHere]]:
    """Each cell's environment, or why this machine cannot have it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    for cell in cells:
        print(f"{cell.name}: installing", file=sys.stderr)
        try:
            yield cell.name, environment_of(cell)
        except NotHere as error:
            yield cell.name, error


# --- a cell ---------------------------------------------------------------------------------------


def run_cell(cell: Cell, environment: Environment | NotHere) -> dict[str, Any]:
    """The slice on both hosts, and the versions it met."""
    facts: dict[str, Any] = {"name": cell.name, "date": today(), "spark": cell.spark, "java": cell.java}
    if isinstance(environment, NotHere):
        return {**facts, "passed": 0, "failed": 0, "named": str(environment)}
    began = time.monotonic()
    said = subprocess.run(
        [environment.python, "-c", VERSIONS], env=environment.variables(), capture_output=True, text=True, check=False
    )
    if said.returncode:
        return {**facts, "passed": 0, "failed": 1, "named": said.stderr.strip().splitlines()[-1]}
    facts |= {**json.loads(said.stdout), "delta": DELTA if cell.has_delta else "", "java": java_of(environment)}
    slices = {"": (*SLICE, *(WITH_DELTA if cell.has_delta else ())), "transformWithState": SLICE_OF_THE_LOG_HOST}
    if cell.iceberg:
        facts |= {"delta": "", "iceberg": RUNTIMES[cell.spark.rpartition(".")[0]]}
        slices = {"": cell.iceberg}
    ended = [tests_of(cell, environment, host, chosen) for host, chosen in slices.items()]
    failures = [name for _, failed, _ in ended for name in failed]
    print(f"{cell.name}: {len(failures)} failed {failures}", file=sys.stderr)
    return {
        **facts,
        "passed": sum(passed for passed, _, _ in ended),
        "failed": len(failures),
        "skipped": sum(skipped for _, _, skipped in ended),
        "named": "; ".join(failures),
        "seconds": round(time.monotonic() - began),
    }


def tests_of(cell: Cell, environment: Environment, host: str, chosen: tuple[str, ...]) -> tuple[int, list[str], int]:
    """(passed, names of those that failed, left out) of a slice."""
    log = CACHE / "logs" / f"{cell.name}{'-' if host else ''}{host}".replace(".", "_")  # with_suffix
    log.parent.mkdir(exist_ok=True)
    report = log.with_suffix(".xml")
    report.unlink(missing_ok=True)
    options = ["-q", "-p", "no:cacheprovider", "-m", "not slow and not long", f"--junitxml={report}"]
    options += [*(["--host", host] if host else []), *([] if cell.has_delta else ["--without-delta"])]
    with log.with_suffix(".log").open("w") as file:
        command = [environment.python, "-m", "pytest", *options, *chosen]
        subprocess.run(command, env=environment.variables(), cwd=ROOT, stdout=file, stderr=file, check=False)
    if not report.exists():
        return 0, [f"no test ran (see {log.with_suffix('.log')})"], 0
    cases = list(ElementTree.parse(report).iter("testcase"))
    wrong = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    failed = [case.get("name", "") for case in wrong]
    skipped = sum(case.find("skipped") is not None for case in cases)
    return len(cases) - len(failed) - skipped, failed, skipped


def java_of(environment: Environment) -> str:
    """The version of the Java that Spark starts there."""
    home = environment.java_home
    java = str(Path(home, "bin", "java")) if home else "java"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    return said.split('"')[1] if '"' in said else said


# --- checkpoints that travel ----------------------------------------------------------------------


def chosen_walks(names: Iterable[str]) -> list[tuple[str, str, Walk]]:
    """All of them, or those of a host or of a sink: ``upgrades:delta``."""
    asked = [name.partition(":")[2] for name in names if name.partition(":")[0] == UPGRADES]
    walks = [each for each in WALKS if any(of in ("", *each[:2]) for of in asked)]
    for release in {release for *_, walk in walks for release in walk}:
        environment_of(Cell("walk", release))
    return walks


def walk_of(host: str, sink: str, walk: Walk) -> list[dict[str, Any]]:
    """One checkpoint through releases of Spark; each leg is killed, and the last ends and is compared."""
    legs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="purgatory-walk-") as name:
        folder = Path(name)
        for number, release in enumerate(walk):
            batches = BATCHES_A_LEG if number < len(walk) - 1 else 0
            said, found = run_leg(folder, host, sink, release, batches)
            result = verdict(number, batches, found) or f"wrong: {why(said)}"
            before = walk[number - 1] if number else ""
            leg = {"host": host, "sink": sink, "from": before, "to": release, "date": today()}
            legs.append({**leg, **found, "result": result})
            print(f"{host} {sink} {before} -> {release}: {result}", file=sys.stderr)
            if result.startswith("wrong"):
                break
    return legs


def run_leg(folder: Path, host: str, sink: str, release: str, batches: int) -> tuple[str, dict[str, Any]]:
    """What the process printed, and what it noted."""
    environment = environment_of(Cell("walk", release))
    noted = folder / "found.jsonl"
    before = len(noted.read_text().splitlines()) if noted.exists() else 0
    command = [environment.python, "-m", "tests.matrix.upgrade_leg", str(folder), host, sink, str(batches)]
    with (folder / "stderr.log").open("w+") as log:
        # A session of its own, for it ends its process group.
        ended = subprocess.Popen(
            command, env=environment.variables(), cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )
        try:
            ended.wait(LEG_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(ended.pid, signal.SIGKILL)
            print(f"TimeoutError: not done in {LEG_SECONDS} s", file=log, flush=True)
        log.seek(0)
        said = log.read()
    lines = noted.read_text().splitlines()[before:] if noted.exists() else []
    return said, json.loads(lines[0]) if lines else {}


def verdict(number: int, batches: int, found: dict[str, Any]) -> str:
    """ "green" where a leg did what it should, "" where not."""
    if not found or (number and not found["pending"]):
        return ""
    if batches:
        return "green" if "killed in" in found else ""
    return "green" if found["outcomes"] and not found["wrong"] and not found["missing"] else ""


def why(said: str) -> str:
    """The last line of an error."""
    lines = [line.strip() for line in said.splitlines() if "rror" in line or "xception" in line]
    return (lines[-1] if lines else "no error was printed")[:300].replace("|", "/")


# --- what was found -------------------------------------------------------------------------------


def keep(found: dict[str, Any], is_check: bool) -> None:
    """Write the file, unless what is found is not kept."""
    if not is_check:
        FILE.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def merged(before: dict[str, Any], runs: list[dict[str, Any]], legs: list[dict[str, Any]]) -> dict[str, Any]:
    """The file with these cells anew, and with these legs in place of those of their walk."""
    travelled = {(leg["host"], leg["sink"]) for leg in legs}
    others = [leg for leg in before["upgrades"] if (leg["host"], leg["sink"]) not in travelled]
    order = [(host, sink) for host, sink, _ in WALKS]
    old = {cell["name"]: cell for cell in before["cells"]}
    cells = {**old, **{run["name"]: run for run in runs}}
    ordered = [cells[cell.name] for cell in CELLS if cell.name in cells]
    return {
        "date": max((cell["date"] for cell in ordered), default=today()),
        "cells": ordered,
        "upgrades": sorted([*others, *legs], key=lambda leg: order.index((leg["host"], leg["sink"]))),
    }


def today() -> str:
    """Of the run."""
    return f"{datetime.now(UTC):%Y-%m-%d}"


def with_tables(page: str, found: dict[str, Any]) -> str:
    """The page with these tables between its marks."""
    for name, table in tables_of(found).items():
        before, mark, rest = page.partition(f"<!-- verified: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        page = f"{before}{mark}\n{table}\n\n{end}{after}"
    return page


def tables_of(found: dict[str, Any]) -> dict[str, str]:
    """Both tables of docs/shipping.md, by mark; what was not run yet says so."""
    ran = {cell["name"]: cell for cell in found["cells"]}
    cells = [
        "| Spark | Delta or Iceberg | Java | Python | numpy, pandas, pyarrow, protobuf | tests passed | on |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(cell_line(cell, ran.get(cell.name, {"named": "not run yet", "date": ""})) for cell in CELLS),
    ]
    failed = [
        f"* Spark {cell['spark']} with Python {cell['python']} did not pass `{cell['named'].replace('; ', '`, `')}`."
        for cell in found["cells"]
        if cell["failed"]
    ]
    if failed:
        cells += ["", *failed]
    return {"cells": "\n".join(cells), "upgrades": "\n".join(upgrade_lines(found["upgrades"]))}


def cell_line(cell: Cell, found: dict[str, Any]) -> str:
    """A row of the first table."""
    if "numpy" not in found:
        return f"| {cell.spark} | | {cell.java} | {cell.python} | | {found['named']} | {found['date']} |"
    said = f"{found['passed']} of {found['passed'] + found['failed']}"
    packages = ", ".join(found[name] for name in ("numpy", "pandas", "pyarrow", "protobuf"))
    table = f"Iceberg {found['iceberg']}" if "iceberg" in found else found["delta"] or "none yet"
    versions = (found["spark"], table, found["java"], found["python"], packages)
    return f"| {' | '.join(versions)} | {said} | {found['date']} |"


def upgrade_lines(legs: list[dict[str, Any]]) -> Iterator[str]:
    """Rows of the second table: by pair of releases, what each host's checkpoints did, by sink."""
    results = {(leg["host"], leg["sink"], leg["from"], leg["to"]): leg["result"] for leg in legs}
    ways = [(host, sink, pair) for host, sink, walk in WALKS for pair in pairwise(walk)]
    hosts = dict.fromkeys(host for host, _, _ in WALKS)
    yield f"| Checkpoint of | continues on | {' | '.join(f'`{host}`' for host in hosts)} |"
    yield f"| --- | --- |{' --- |' * len(hosts)}"
    for before, after in dict.fromkeys(pair for _, _, pair in ways):
        sinks = {host: [sink for of, sink, pair in ways if (of, pair) == (host, (before, after))] for host in hosts}
        cells = [
            "; ".join(f"{sink}: {results.get((host, sink, before, after), 'not run yet')}" for sink in sinks[host])
            for host in hosts
        ]
        yield f"| {before} | {after} | {' | '.join(cells)} |"


if __name__ == "__main__":
    os.environ.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    sys.exit(main())
