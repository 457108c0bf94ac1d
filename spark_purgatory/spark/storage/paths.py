"""Paths for readers of folders that may not be there, without a line in anyone's log.

Spark writes a stack trace for every missing path that someone reads, and Spark Connect a second one for the error
itself. So such a folder is read together with an *anchor*, a small file or folder that is there: of a read with two
paths Spark does not look for the output of a file sink. What the anchor holds is left out by its path.

All that `beside` and `in_checkpoint` take and give are patterns: `literal` makes one of a path.
"""

from __future__ import annotations

import re

GLOB_CHARACTERS = re.compile(r"([\\*?\[\]{}])")


def literal(path: str) -> str:
    """A path in which no character is a wildcard to Spark's readers."""
    return GLOB_CHARACTERS.sub(r"\\\1", path)


def beside(folder: str, anchor: str, *wanted: str) -> list[str]:
    """Return what there is of ``wanted`` below a folder, and ``anchor``, which there is."""
    return [f"{folder}/{anchor}", f"{folder}/{{{','.join((anchor, *wanted))}}}"]


def in_checkpoint(folder: str, *wanted: str) -> list[str]:
    """Return what there is of ``wanted`` in the checkpoint of a query that has begun, and Spark's file ``metadata``."""
    return beside(folder, "metadata", *wanted)
