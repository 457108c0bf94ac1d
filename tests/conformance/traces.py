"""Finding, reading and packing traces."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

FORMAT = 1
PACK_SUFFIX = ".jsonl.xz"

Step = dict[str, Any]
Inputs = dict[str, frozenset[str]]
"""Operation -> keys of its steps that are not answers; the same key may be an answer of another operation."""


class Trace:
    """One recorded run: where it was read, and the object as it was recorded."""

    def __init__(self, source: str, content: dict[str, Any]) -> None:
        self.source, self.content = source, content
        self.kind: str = content["kind"]
        """Which of Kafka's classes was driven: ``wheel``, ``purgatory``, ``accumulator``, ``bufferpool``."""
        self.seed: int | None = content.get("seed")
        self.config: dict[str, Any] = content["config"]
        self.steps: list[Step] = content["steps"]


class UnreadableTrace(ValueError):
    """A file of traces cannot be read; names the file and what is wrong with it."""


class NotATrace(UnreadableTrace):
    """A file is sound JSON of another sort."""


def find_files(paths: Sequence[Path]) -> list[Path]:
    """Every file of traces at or below ``paths``, each once, by name."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise UnreadableTrace(f"{path}: no such file or folder")
        below = (file for suffix in (".json", PACK_SUFFIX) for file in path.rglob(f"*{suffix}"))
        for file in sorted(below) if path.is_dir() else [path]:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def read_file(file: Path) -> Iterator[Trace]:
    """The traces of one ``.json`` or packed file; raises UnreadableTrace."""
    try:
        if file.name.endswith(PACK_SUFFIX):
            lines = lzma.decompress(file.read_bytes()).decode().splitlines()
            texts = {f"{file}:{number}": line for number, line in enumerate(lines, start=1)}
        else:
            texts = {str(file): file.read_text(encoding="utf-8")}
        contents = {source: json.loads(text) for source, text in texts.items()}
    except (OSError, ValueError, EOFError, lzma.LZMAError) as error:
        raise UnreadableTrace(f"{file}: {error}") from error
    for source, content in contents.items():
        if not isinstance(content, dict) or not {"kind", "config", "steps"} <= content.keys():
            raise NotATrace(f"{source}: not a trace: no object with kind, config and steps")
        if content.get("format", FORMAT) != FORMAT:
            raise UnreadableTrace(f"{source}: format {content['format']}, only {FORMAT} is known")
        yield Trace(source, content)


def pack(paths: Sequence[Path], out: Path) -> dict[Path, int]:
    """Write the traces at or below ``paths`` to ``out/<kind>.jsonl.xz``; returns file -> number of traces."""
    lines: dict[str, list[str]] = {}
    for file in find_files(paths):
        for trace in read_file(file):
            lines.setdefault(trace.kind, []).append(json.dumps(trace.content, separators=(",", ":")) + "\n")
    out.mkdir(parents=True, exist_ok=True)
    written = {}
    for kind, of_kind in sorted(lines.items()):
        target = out / f"{kind}{PACK_SUFFIX}"
        target.write_bytes(lzma.compress("".join(of_kind).encode(), preset=9 | lzma.PRESET_EXTREME))
        written[target] = len(of_kind)
    return written
