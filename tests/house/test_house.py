"""The rules of the house, checked on the syntax tree: who may import whom, what is banned where, sizes.

Data flows one way: config -> operator -> exchange -> host -> core -> outcomes -> accumulator -> Delta.
`core` and `accumulator` are pure: no clock, no randomness, no I/O; time is an argument. Each rule is a row of
a table.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import FunctionType

from pyspark.sql.streaming.query import StreamingQuery

import spark_purgatory
from spark_purgatory import AccumulatorQuery, errors, metrics, testing
from spark_purgatory.core.spec import criteria

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "spark_purgatory"

# --- the rules, as data ---------------------------------------------------------------------------

# An area is what stands behind the package's name: a folder or a module. "root" is the package's __init__.
ANYTHING = frozenset({"*"})
OWN_IMPORTS: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "version": frozenset(),
    "worker_python": frozenset(),
    "terminal": frozenset(),
    "core": frozenset({"core", "errors"}),
    "accumulator": frozenset({"accumulator", "errors"}),
    "schema": frozenset({"schema", "core", "errors"}),
    "config": frozenset({"config", "core", "accumulator", "schema", "errors"}),
    "readable": frozenset(),
    "metrics": frozenset({"metrics", "config", "schema", "errors", "readable"}),
    "spark": frozenset(
        {"spark", "core", "accumulator", "config", "schema", "metrics"}
        | {"errors", "readable", "version", "worker_python"}
    ),
    "testing": ANYTHING,
    "job": ANYTHING,
    "demo": ANYTHING,
    "doctor": ANYTHING,
    "cli": ANYTHING,
    "__main__": ANYTHING,
    "root": ANYTHING,
}
OWN_IMPORTS_ELSEWHERE = frozenset({"config", "schema", "errors"})

# Third-party packages. Elsewhere: what an installation without extras has.
INSTALLED_ALWAYS = frozenset({"numpy", "pandas", "pyarrow"})
THIRD_PARTY: dict[str, frozenset[str]] = {
    "core": frozenset({"numpy", "pyarrow"}),
    "accumulator": frozenset(),
    "terminal": frozenset({"rich"}),
    "errors": frozenset(),
    "spark": INSTALLED_ALWAYS | {"delta", "py4j", "pyspark"},
    "metrics": INSTALLED_ALWAYS | {"prometheus_client", "opentelemetry", "grafana_foundation_sdk"},
    "testing": ANYTHING,
    "job": ANYTHING,
    "demo": ANYTHING,
    "doctor": ANYTHING,
    "cli": ANYTHING,
    "__main__": ANYTHING,
}

# Rooms of a place, in order: a module imports from its own room and from rooms that stand before it.
ROOMS: dict[str, tuple[str, ...]] = {
    "core": ("arrays", "kafka", "spec", "events", "engine", "state", "export"),
    "spark": (
        "placement",
        "nested",
        "query_listener",
        "storage",
        "heartbeat",
        "host",
        "operator",
        "checkpoint",
        "sink",
        "monitoring",
        "move",
    ),
    "spark/sink": tuple("staging table drain repair start_checks accumulator_query record_accumulator".split()),
}
ROOMS_APART = frozenset(
    {("spark", "sink", "operator"), ("spark", "sink", "host"), ("core", "spec", "kafka"), ("core", "events", "kafka")}
)
"""(place, room, other): pairs that the order would let pass and that know nothing of each other."""

PURE_AREAS = frozenset({"core", "accumulator"})
PURE_MODULES = frozenset(
    f"{PACKAGE}/spark/sink/{name}.py"
    for name in (
        "drain/protocol", "drain/actions", "staging/ledger",
        "table/history",
    )
)  # fmt: skip
"""What the sink decides, and what it decides by: without Spark, clocks or files, though what has them lies beside."""
IMPURE_STDLIB = frozenset(
    # clocks, chance
    "time sched random secrets uuid "
    # files, processes, the network, consoles
    "os io pathlib shutil tempfile glob fnmatch fileinput mmap sqlite3 dbm shelve logging subprocess signal "
    "socket socketserver ssl select selectors urllib http ftplib smtplib "
    # threads
    "threading _thread multiprocessing concurrent asyncio queue "
    # the machine
    "platform getpass ctypes importlib".split()
)
IMPURE_SUBMODULES = frozenset(
    "numpy.random pyarrow.fs pyarrow.parquet pyarrow.dataset pyarrow.csv pyarrow.json pyarrow.orc "
    "pyarrow.feather pyarrow.flight".split()
)
IMPURE_CALLS = frozenset({"open", "input", "print"})
CLOCK_OWNERS = frozenset({"datetime", "date", "Timestamp"})
CLOCK_METHODS = frozenset({"now", "utcnow", "today"})

BANNED_MODULES = frozenset({"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve"})
BANNED_CALLS = frozenset({"eval", "exec"})
# Under Spark Connect there is no JVM behind the session.
BANNED_ATTRIBUTES = frozenset(
    {"_jvm", "_jdf", "_jsparkSession", "_jsc", "_sc", "sparkContext", "read_pickle", "to_pickle"}
)
BANNED_STRINGS = BANNED_MODULES | frozenset({"_jvm", "_jdf", "_jsparkSession", "sparkContext"})
# Nothing but Hadoop's FileSystem copies a file on any storage; under Spark Connect the module says so. And PySpark's
# own way to a listener takes 100 times as long; under Spark Connect it is not taken. Nor are settings for files of a
# local disk, whose storage is known to Hadoop alone. PySpark has no way to a copy of a session or to that of a query.
MAY_TOUCH_JVM = frozenset(
    f"spark_purgatory/spark/{name}.py"
    for name in (
        "move/old_checkpoint",
        "query_listener",
        "checkpoint/start_check",
        "storage/spark_access",
        "storage/query_start",
    )
)
OF_JVM = frozenset({"_jvm", "_jsc", "_jsparkSession", "_jdf", "_sc"})

MAX_FUNCTION_LINES = 70
MAX_FILE_LINES = 600

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

# --- the checker ----------------------------------------------------------------------------------


@cache
def tree_of(source: str) -> ast.Module:
    return ast.parse(source)


def area_of(path: str) -> str:
    """`spark_purgatory/core/state/blob.py` -> `core`; the package's own `__init__` -> `root`; a job -> ``""``."""
    parts = path.split("/")
    if parts[0] != PACKAGE:
        return ""
    first = parts[1].removesuffix(".py")
    return "root" if first == "__init__" else first


def imported_modules(tree: ast.AST, path: str) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of everything imported, relative imports resolved, names included."""
    package = path.removesuffix(".py").split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def circles_of(files: dict[str, str]) -> list[str]:
    """Files that import each other, in one circle each, wherever in a file the import stands."""
    of_module = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in files}
    imports: dict[str, set[str]] = {}
    for path, source in files.items():
        names = [name for _, name in imported_modules(tree_of(source), path)]
        found = [of_module.get(name) or of_module.get(name.rpartition(".")[0]) for name in names]
        imports[path] = {other for other in found if other is not None and other != path}
    circles = []
    while True:
        try:
            TopologicalSorter(imports).prepare()
        except CycleError as error:
            circle = error.args[1]
            circles.append(" imports ".join(reversed(circle)))
            imports[circle[1]].discard(circle[0])
        else:
            return circles


def check_imports(tree: ast.AST, path: str) -> Iterator[str]:
    area = area_of(path)
    own = OWN_IMPORTS.get(area, OWN_IMPORTS_ELSEWHERE)
    third_party = THIRD_PARTY.get(area, INSTALLED_ALWAYS)
    for line, name in imported_modules(tree, path):
        top, _, rest = name.partition(".")
        if top in BANNED_MODULES:
            yield f"{path}:{line}: imports {top}, which is banned everywhere"
        elif top == PACKAGE:
            target = rest.partition(".")[0] or "root"
            target = target if (ROOT / PACKAGE / target).exists() or target in OWN_IMPORTS else target or "root"
            if own is not ANYTHING and target not in own:
                yield f"{path}:{line}: {area} may not import {PACKAGE}.{target}"
        elif top in sys.stdlib_module_names:
            if area in PURE_AREAS and top in IMPURE_STDLIB:
                yield f"{path}:{line}: {area} is pure and may not import {top}"
        elif third_party is not ANYTHING and top not in third_party:
            yield f"{path}:{line}: {area} may not import {top}"
        elif area in PURE_AREAS and ".".join(name.split(".")[:2]) in IMPURE_SUBMODULES:
            yield f"{path}:{line}: {area} is pure and may not import {name}"


def check_pure_module(tree: ast.Module, path: str) -> Iterator[str]:
    """It imports pure modules alone, but for what only a type checker reads."""
    runs = [node for node in tree.body if not (isinstance(node, ast.If) and last_name(node.test) == "TYPE_CHECKING")]
    for line, name in imported_modules(ast.Module(runs, []), path):
        top, _, rest = name.partition(".")
        files = {f"{module.replace('.', '/')}.py" for module in (name, name.rpartition(".")[0])}
        is_pure = rest.partition(".")[0] in PURE_AREAS | {"errors"} or not PURE_MODULES.isdisjoint(files)
        if (top == PACKAGE and not is_pure) or top in IMPURE_STDLIB or top not in {PACKAGE, *sys.stdlib_module_names}:
            yield f"{path}:{line}: is pure and may not import {name}"


def check_rooms(tree: ast.AST, path: str) -> Iterator[str]:
    for place, order in ROOMS.items():
        if path.startswith(f"{PACKAGE}/{place}/"):
            yield from check_rooms_of(place, order, tree, path)


def check_rooms_of(place: str, order: tuple[str, ...], tree: ast.AST, path: str) -> Iterator[str]:
    above = f"{PACKAGE}/{place}/"
    room = path.removeprefix(above).split("/")[0].removesuffix(".py")
    where = place.replace("/", ".")
    if room == "__init__":
        return
    if room not in order:
        yield f"{path}:1: {room} is no room of {where}: put the module into one of {', '.join(order)}"
        return
    for line, name in imported_modules(tree, path):
        other = name.replace(".", "/").removeprefix(above).split("/")[0]
        if other not in order:
            continue
        if order.index(other) > order.index(room) or (place, room, other) in ROOMS_APART:
            yield f"{path}:{line}: {where}.{room} may not import {where}.{other}"


def check_banned_everywhere(tree: ast.AST, path: str) -> Iterator[str]:
    allowed = OF_JVM if path in MAY_TOUCH_JVM else frozenset()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BANNED_CALLS:
            yield f"{path}:{node.lineno}: calls {node.func.id}()"
        elif isinstance(node, ast.Attribute) and node.attr in BANNED_ATTRIBUTES - allowed:
            yield f"{path}:{node.lineno}: touches .{node.attr}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in BANNED_STRINGS - allowed:
            yield f"{path}:{node.lineno}: names {node.value!r} in a string"
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            yield f"{path}:{node.value.lineno}: passes allow_pickle"


def last_name(node: ast.expr) -> str:
    """`dt.datetime` -> `datetime`, `datetime` -> `datetime`, anything else -> ``""``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def check_pure(tree: ast.AST, path: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if node.attr in CLOCK_METHODS and last_name(node.value) in CLOCK_OWNERS:
                yield f"{path}:{node.lineno}: reads a clock by {last_name(node.value)}.{node.attr}"
            elif node.attr == "random" and last_name(node.value) in {"np", "numpy"}:
                yield f"{path}:{node.lineno}: draws from {last_name(node.value)}.random"
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
                yield f"{path}:{node.lineno}: calls {node.func.id}()"
            elif last_name(node.func) == "datetime64" and any(
                isinstance(argument, ast.Constant) and argument.value in CLOCK_METHODS for argument in node.args
            ):
                yield f"{path}:{node.lineno}: reads a clock by datetime64"


def check_sizes(tree: ast.AST, path: str, n_lines: int) -> Iterator[str]:
    if n_lines > MAX_FILE_LINES:
        yield f"{path}:1: file of {n_lines} lines, at most {MAX_FILE_LINES}"
    for node in ast.walk(tree):
        if not isinstance(node, FunctionNode):
            continue
        length = (node.end_lineno or node.lineno) - node.lineno + 1 - docstring_lines(node)
        if length > MAX_FUNCTION_LINES:
            yield f"{path}:{node.lineno}: function {node.name} of {length} lines, at most {MAX_FUNCTION_LINES}"


def docstring_lines(node: FunctionNode) -> int:
    """Lines of a function's docstring: they describe each argument, and no limit should make them shorter."""
    if ast.get_docstring(node) is None:
        return 0
    text = node.body[0]
    return (text.end_lineno or text.lineno) - text.lineno + 1


def check_source(source: str, path: str) -> list[str]:
    """Every finding in one file; ``path`` is relative to the root and says which rules apply."""
    tree = tree_of(source)
    findings = list(check_sizes(tree, path, len(source.splitlines())))
    if area_of(path):
        findings += check_imports(tree, path)
        findings += check_rooms(tree, path)
        findings += check_banned_everywhere(tree, path)
    if path in PURE_MODULES:
        findings += check_pure_module(tree, path)
    if area_of(path) in PURE_AREAS or path in PURE_MODULES:
        findings += check_pure(tree, path)
    return findings


@cache
def sources(*folders: str) -> dict[str, str]:
    files = sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


# --- the house ------------------------------------------------------------------------------------


def test_every_file_keeps_the_rules() -> None:
    files = sources(PACKAGE, "benchmarks", "jobs")
    assert files, "no Python file found: the house would be checked in name only"
    findings = [finding for path, source in files.items() for finding in check_source(source, path)]
    assert not findings, "\n" + "\n".join(findings)


def test_no_files_import_each_other() -> None:
    assert not circles_of(sources(PACKAGE))


def test_a_class_name_stands_for_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path, source in sources(PACKAGE).items():
        for node in ast.walk(tree_of(source)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path)
    doubled = {name: found for name, found in places.items() if len(found) > 1}
    assert not doubled, f"each needs a name of its own: {doubled}"


def test_calls_name_what_they_give_from_six_arguments_on() -> None:
    """Only what is not ours may take so many by position: Spark's columns, texts of the log."""
    wrong = []
    for path, source in sources(PACKAGE).items():
        for node in ast.walk(tree_of(source)):
            args = node.args if isinstance(node, ast.Call) else []
            given, name = sum(not isinstance(each, ast.Starred) for each in args), ast.unparse(node).partition("(")[0]
            if given > 5 and not name.startswith(("F.", "LOG.", "logger.", "pa.", "records.", "self._jvm.")):
                wrong.append(f"{path}:{node.lineno}: {name} takes {given} arguments by position")
    assert not wrong, "\n" + "\n".join(wrong)


def rules_named(source: str) -> list[int]:
    """Lines of a source that name a rule, but for those of `TRAITS`, which says of each how it is evaluated."""
    tree = tree_of(source)
    traits = next(
        (node for node in tree.body if isinstance(node, ast.Assign) and last_name(node.targets[0]) == "TRAITS"), None
    )
    allowed = set() if traits is None else set(ast.walk(traits))
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and last_name(node.value) == "Rule" and node not in allowed
    ]


def test_a_criterion_is_named_in_the_specification_and_in_one_table() -> None:
    """So that another one is an entry there and nothing else."""
    outside = {path: source for path, source in sources(PACKAGE).items() if "/core/spec/" not in path}
    wrong = [f"{path}:{line}" for path, source in outside.items() for line in rules_named(source)]
    assert not wrong, f"ask `criteria` or `TRAITS` what the rule is like: {wrong}"


def test_no_test_module_imports_from_another() -> None:
    shared = tuple(f"tests.{name}" for name in "support simulation fuzz conformance matrix conftest law.cases".split())
    wrong = []
    for path, source in sources("tests").items():
        for line, name in imported_modules(tree_of(source), path):
            if name.startswith("tests.") and not name.startswith(shared) and not path.startswith("tests/conformance"):
                wrong.append(f"{path}:{line}: imports {name}: move what several modules use to tests/support")
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_public_api_has_docstrings() -> None:
    homes = (spark_purgatory, testing, metrics, errors, criteria)
    public = {name: getattr(home, name) for home in homes for name in getattr(home, "__all__", vars(home))}
    described = (FunctionType, type, property, staticmethod, classmethod)
    wrong = []
    for name, api in public.items():
        parts = {name: api} | (vars(api) if isinstance(api, type) else {})
        wrong += [
            f"{name}: {key}"
            for key, part in parts.items()
            if not key.startswith("_") and isinstance(part, described) and not part.__doc__
        ]
    assert not wrong


def test_the_package_is_typed() -> None:
    assert (ROOT / PACKAGE / "py.typed").is_file()


def test_a_query_has_every_name_of_sparks() -> None:
    own = {name for name in vars(AccumulatorQuery) if not name.startswith("_")}
    assert {name for name in vars(StreamingQuery) if not name.startswith("_")} < own
