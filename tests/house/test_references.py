"""Every reference leads somewhere: codes of facts about Kafka, sections, links between documents, paths of modules."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FACTS = set(re.findall(r"^- \*\*([A-Z]\d+)\*\*", (ROOT / "docs" / "kafka_facts.md").read_text(), re.MULTILINE))
SEMANTICS = (ROOT / "docs" / "semantics.md").read_text()
CODE = re.compile(r"\b([AWPB]\d{1,2})\b")
SECTION = re.compile(r"\b[Ss]emantics (\d)(?:\.(\d+))?")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)]*))?\)")
MODULE = re.compile(r"`(spark_purgatory(?:\.\w+)+|benchmarks(?:\.\w+)+)`")
SHORT = re.compile(r"(?<!`)`([A-Za-z_]\w*(?:\.\w+)*)(?:\(\))?`(?!`)")
"""A name of ours in a docstring or a comment; names of others stand between two signs each."""
FILE = re.compile(r"`((?:tests|docs|conf|jobs|benchmarks|spark_purgatory)/[\w./-]+\.\w+)`")
PAIR = re.compile(r"`([\w/]+/\w+)(?:\.py)?` \(((?:`\w+(?:\.\w+)*`(?:, | and )?)+)\)")
"""A module and what is in it: `core/kafka/purgatory` (`Watchers`, `advance`)."""
PLACES_FOR_FACTS = ("spark_purgatory/core/kafka/", "spark_purgatory/accumulator/", "tests/unit/test_accumulator")


def listed(*endings: str) -> list[Path]:
    """Files of the repository with one of these endings."""
    names = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    return [ROOT / name for name in names if name.endswith(endings) and (ROOT / name).is_file()]


def sections() -> set[str]:
    """``3`` and ``3.4`` for every heading and numbered paragraph of docs/semantics.md."""
    found, heading = set(), ""
    for line in SEMANTICS.splitlines():
        if match := re.match(r"## (\d+)\. ", line):
            heading = match[1]
            found.add(heading)
        elif match := re.match(r"(\d+)\. ", line):
            found.add(f"{heading}.{match[1]}")
    return found


def anchors(text: str) -> set[str]:
    """What a link may name behind ``#``: each heading, in small letters, with hyphens and without other signs."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def wrong_references(text: str, path: str, folder: Path) -> list[str]:
    """The references of one file that lead nowhere."""
    wrong = []
    if path.startswith(PLACES_FOR_FACTS):
        wrong += [
            f"{path}: fact {code} is not in docs/kafka_facts.md" for code in CODE.findall(text) if code not in FACTS
        ]
    for section, paragraph in SECTION.findall(text):
        number = f"{section}.{paragraph}" if paragraph else section
        if number not in sections():
            wrong.append(f"{path}: semantics {number} is not in docs/semantics.md")
    if path.endswith(".md"):
        for link, anchor in LINK.findall(text):
            if link.startswith(("http:", "https:", "mailto:")):
                continue
            if not (folder / link).exists():
                wrong.append(f"{path}: link to {link}, which is not there")
            elif anchor and anchor not in anchors((folder / link).read_text(encoding="utf-8") if link else text):
                wrong.append(f"{path}: link to {link}#{anchor}, and there is no such heading")
    wrong += [f"{path}: `{name}` is not there" for name in FILE.findall(text) if not (ROOT / name).exists()]
    if path.startswith("spark_purgatory/") and path.endswith(".py"):
        wrong += [f"{path}: `{name}` is not there" for name in SHORT.findall(text) if not names() >= {*name.split(".")}]
    for name in MODULE.findall(text):
        if not is_there(name):
            wrong.append(f"{path}: `{name}` is not there")
    for module, found in PAIR.findall(text):
        defined = defined_in(module)
        wrong += [
            f"{path}: {module} has no `{name}`"
            for name in re.findall(r"`([\w.]+)`", found)
            if not defined >= {*name.split(".")}
        ]
    return wrong


@cache
def defined_in(module: str) -> frozenset[str]:
    """The names that a module, or a room's modules, define: functions, classes, constants, attributes."""
    files = [
        file
        for place in (ROOT / "spark_purgatory" / module, ROOT / module)
        for file in (place.with_suffix(".py"), *place.glob("*.py"))
        if file.is_file()
    ]
    found: set[str] = set()
    for node in (node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))):
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.Attribute(ctx=ast.Store()):
                found.add(node.attr)
    return frozenset(found)


@cache
def names() -> frozenset[str]:
    """Every name that the repository's code has: of modules, of what they define and of what they read."""
    found: set[str] = set()
    for file in listed(".py"):
        found |= set(file.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.alias):
                found |= set(node.name.split("."))
            else:
                given = (getattr(node, field, None) for field in ("id", "attr", "arg"))
                found |= {name for name in given if isinstance(name, str)}
    return frozenset(found)


def is_there(name: str) -> bool:
    """Whether a dotted name is a module, or a name that a module defines."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            spec = find_spec(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        if spec is not None and spec.origin is not None:
            rest = parts[end:]
            return not rest or re.search(rf"\b{rest[0]}\b", Path(spec.origin).read_text()) is not None
    return False


def test_every_reference_leads_somewhere() -> None:
    wrong = []
    for file in listed(".py", ".md", ".yaml"):
        path = file.relative_to(ROOT).as_posix()
        if path != "tests/house/test_references.py":
            wrong += wrong_references(file.read_text(encoding="utf-8"), path, file.parent)
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_map_of_the_code_has_every_module_once() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = re.findall(r"^\| `([\w/]+)` \| .* \| (`.*`) \|$", text.partition("\n## Map\n")[2], re.MULTILINE)
    shown = [
        f"{room}/{name}".removeprefix("spark_purgatory/") for room, named in rooms for name in re.findall(r"\w+", named)
    ]
    package = ROOT / "spark_purgatory"
    modules = [
        path.relative_to(package).with_suffix("").as_posix() for path in listed(".py") if package in path.parents
    ]
    assert sorted(shown) == sorted(name for name in modules if not name.endswith("__init__"))


def test_every_module_that_the_map_names_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_]+(?:/\w+)+)`", text))
    assert len(named) > 100
    places = (ROOT / "spark_purgatory", ROOT)
    assert [
        name
        for name in sorted(named)
        if not any((at / name).is_dir() or (at / f"{name}.py").is_file() for at in places)
    ] == []
