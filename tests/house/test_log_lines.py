"""docs/metrics.md has a row for each logger at each of its levels."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEVELS = {"info": "INFO", "warning": "WARNING", "error": "ERROR", "exception": "ERROR"}
ROW = re.compile(r"^\| (`spark_purgatory\..*?) \| ([A-Z]+) \| ", re.MULTILINE)


def test_the_page_has_each_logger_at_each_level_of_the_code() -> None:
    code = set()
    for file in (ROOT / "spark_purgatory").rglob("*.py"):
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "LOG":
                code |= {(name, LEVELS[node.attr])} if node.attr in LEVELS else set()
    rows = ROW.findall((ROOT / "docs" / "metrics.md").read_text(encoding="utf-8"))
    page = [(name, level) for names, level in rows for name in re.findall(r"`([\w.]+)`", names)]
    assert len(code) > 10 and sorted(page) == sorted(code)
