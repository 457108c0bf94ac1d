"""The sentences of docstrings and comments: how they begin, and words that they avoid (CONTRIBUTING.md).

A sentence names its subject first: "Return the rows that ...", "The number of rows ...". Each rule is a row of a table,
and each has a line that breaks it, so that a rule which stopped working is seen.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORDED = ("core", "accumulator", "config", "metrics", "testing", "demo")
"""Packages whose texts follow the rules, besides the modules at the top."""

RULES = (
    (re.compile(r"^(?:Of|That of|Those|What|Whether|How many|How much|Which|Why)\b"), "names its subject first"),
    (re.compile(r"\banew\b"), 'says "again"'),
    (re.compile(r"\bis to be\b"), 'says "must be"'),
    (re.compile(r"\bof which\b"), 'says "whose", or becomes two sentences'),
)


def texts(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of the docstrings of modules, classes, functions and attributes, and of comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def offences(source: str) -> list[str]:
    """What the texts of a source break, by line; an example in a docstring is no sentence."""
    found = []
    for line, text in texts(source):
        plain = re.sub(r"``[^`]*``|`[^`]*`", "x", re.sub(r"^ *(?:>>>|\.\.\.) .*$", "", text, flags=re.MULTILINE))
        for sentence in re.split(r"(?<=[.!?])\s+|\n\s*\n", plain):
            begin = sentence.strip("#-* \n")
            found += [f"{line}: {begin[:60]!r}: a sentence {said}" for rule, said in RULES if rule.search(begin)]
    return found


def sources() -> list[Path]:
    package = ROOT / "spark_purgatory"
    return [*package.glob("*.py"), *(path for room in WORDED for path in (package / room).rglob("*.py"))]


def test_docstrings_and_comments_begin_with_their_subject() -> None:
    wrong = [f"{path.relative_to(ROOT)}:{each}" for path in sources() for each in offences(path.read_text("utf-8"))]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ('"""What is kept of a row."""', "names its subject first"),
        ('"""Rows. Whether they wait is a flag."""', "names its subject first"),
        ('def f():\n    """Of two rows the first."""', "names its subject first"),
        ("x = 1  # That of the second row", "names its subject first"),
        ('LIMIT = 3\n"""How many rows fit."""', "names its subject first"),
        ('"""Number the rows anew."""', '"again"'),
        ("# The row is to be dropped.", '"must be"'),
        ('"""The rows, of which the first counts."""', '"whose"'),
    ],
)
def test_a_sentence_that_breaks_a_rule_is_found(source: str, said: str) -> None:
    [found] = offences(source)
    assert said in found


@pytest.mark.parametrize("source", ['"""Return what `Of` says."""', 'x = "What is it?"', '"""Rows.\n\n>>> Of(1)\n"""'])
def test_code_and_texts_of_the_program_are_left_alone(source: str) -> None:
    assert not offences(source)
