"""What a pattern can see of how a sentence reads: its opening words, a few words that stand for plainer ones, and the
length of a commit's subject.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RULES = {"Prose": "shows how to write", "Rules": "describes a commit"}
"""Sections of CONTRIBUTING.md, which failures name."""
SINCE, LONGEST = "2026-11-27T01:03:30+00:00", 72
"""The time from which subjects of commits are checked, the last 20 of them, and their greatest length."""
MADE = {"configuration.md", "command_line.md", "notebooks"}
"""Pages that are made of docstrings, help and notebooks."""
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "tests/README.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if MADE.isdisjoint((path.name, path.parent.name))),
]
PLAIN = (
    *("*.py", "doctor/*.py", "job/*.py", "spark/*.py"),
    *(f"{name}/**/*.py" for name in ("accumulator", "config", "core", "demo", "metrics", "testing")),
    *(f"spark/{room}/*.py" for room in ("checkpoint", "host", "monitoring", "move", "operator", "storage")),
    "spark/sink/**/*.py",
)
"""Files of the package whose docstrings are checked."""
OPENERS = re.compile(r"(?:Of|That of|Those|The same of) ")
FIRST = re.compile(r"(?:What|Whether|How many) ")
"""Openers of docstrings; a page may ask."""
WORDS = re.compile(r"\b(?:anew|beside|(?:is|are|was|were) to be|(?<!each )(?<!all )of which)\b")
FENCE = re.compile(r"^ *(`{3,})\w*\n.*?^ *\1$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
QUOTE = re.compile(r'"[^"\n]*"')
END = re.compile(r"(?<=[.!?])\**\s+(?=\W*[A-Z])")


def page_sentences(text: str) -> Iterator[str]:
    """The sentences of a page: of its paragraphs, list items and cells of tables, without code, quotes and headings."""
    text = CODE.sub("x", FENCE.sub("", text))
    text = QUOTE.sub("x", LINK.sub(r"\1", text))
    lines = [line for line in text.splitlines() if not re.match(r"#|<!--| {4}\S", line)]
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=\|)|\|", "\n".join(lines))
    for paragraph in paragraphs:
        yield from sentences(re.sub(r"^\s*(?:[-*]|\d+\.) ", "", paragraph))


def sentences(text: str) -> list[str]:
    """A paragraph's sentences, each in one line and without signs before its first word."""
    return [" ".join(each.split()).lstrip("*(") for each in END.split(text) if each.strip()]


def findings(found: Iterator[str]) -> list[str]:
    """Sentences that CONTRIBUTING.md asks to write in another way."""
    return [each for each in found if OPENERS.match(each) or WORDS.search(each)]


def docstrings(source: str) -> Iterator[str]:
    """The docstrings of a file, also those below a constant."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else []:
            match each:
                case ast.Expr(ast.Constant(str() as text)):
                    yield inspect.cleandoc(text)


def docstring_findings(text: str) -> list[str]:
    """As for a page; and the first sentence names its subject first."""
    found = list(page_sentences(text))
    return findings(iter(found)) + [each for each in found[:1] if FIRST.match(each)]


def told(section: str, wrong: list[str]) -> str:
    """The text of a failure: the page that explains the rule, then each finding."""
    return f"CONTRIBUTING.md, section {section}, {RULES[section]}:\n" + "\n".join(wrong)


def long_subjects(subjects: list[str]) -> list[str]:
    """Subjects that are too long, but for those that git or GitHub made longer."""
    written = [re.sub(r" \(#\d+\)$", "", each) for each in subjects]
    made = ('Revert "', "fixup! ", "squash! ", "amend! ")
    return [f"{len(each)} characters: {each}" for each in written if len(each) > LONGEST and not each.startswith(made)]


def recent_subjects(folder: Path) -> list[str] | None:
    """Subjects of the last 20 commits since `SINCE`; None if there is no history to read."""
    git = ["git", "-c", "safe.directory=*", "-C", str(folder)]
    log = ["log", "--no-merges", "--max-count=20", f"--since={SINCE}", "--format=%s"]
    try:
        shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True)
        done = subprocess.run([*git, *log], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return None if shallow.stdout.strip() != "false" or done.returncode else done.stdout.splitlines()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_reads_as_a_colleague_would_say_it(path: Path) -> None:
    wrong = findings(page_sentences(path.read_text(encoding="utf-8")))
    assert not wrong, told("Prose", wrong)


@pytest.mark.parametrize("files", PLAIN)
def test_a_docstring_reads_as_a_colleague_would_say_it(files: str) -> None:
    wrong = []
    for path in sorted((ROOT / "spark_purgatory").glob(files)):
        found = docstrings(path.read_text(encoding="utf-8"))
        wrong += [f"{path.relative_to(ROOT)}: {each}" for text in found for each in docstring_findings(text)]
    assert not wrong, told("Prose", wrong)


def test_subjects_of_recent_commits_are_short() -> None:
    subjects = recent_subjects(ROOT)
    if subjects is None:
        pytest.skip("there is no git, or a clone without history: no commit is checked")
    wrong = long_subjects(subjects)
    assert not wrong, told("Rules", wrong)
