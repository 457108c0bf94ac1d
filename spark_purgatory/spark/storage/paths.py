"""Paths for readers of folders that may not be there, or are hidden, without a line in anyone's log.

Spark writes a stack trace for every missing path that someone reads, and Spark Connect a second one for the error
itself. It warns where all paths of a read are hidden, as ``_delta_log`` is. So such a folder is read together with an
*anchor*, a small file or folder that is there: of a read with two paths Spark looks neither for the output of a file
sink nor for hidden names. What the anchor holds is left out by ``pathGlobFilter``, or by its path.

All that `beside`, `in_checkpoint` and `delta_log` take and give are patterns: `literal` makes one of a path.
"""

from __future__ import annotations

import re

GLOB_CHARACTERS = re.compile(r"([\\*?\[\]{}])")


def literal(path: str) -> str:
    """A path in which no character is a wildcard to Spark's readers."""
    return GLOB_CHARACTERS.sub(r"\\\1", path)


def beside(folder: str, anchor: str, *wanted: str) -> list[str]:
    """What there is of ``wanted`` below a folder, and ``anchor``, which there is."""
    return [f"{folder}/{anchor}", f"{folder}/{{{','.join((anchor, *wanted))}}}"]


def in_checkpoint(folder: str, *wanted: str) -> list[str]:
    """What there is of ``wanted`` in the checkpoint of a query that has begun, and Spark's file ``metadata``."""
    return beside(folder, "metadata", *wanted)


def delta_log(location: str, anchor: str | None) -> list[str]:
    """The log of a Delta table; without an anchor Spark warns that it is hidden."""
    log = f"{location}/_delta_log"
    return [log] if anchor is None else [anchor, log]
