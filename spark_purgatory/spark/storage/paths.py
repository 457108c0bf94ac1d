"""Paths for readers of folders that may be missing, without a line in the log.

Spark logs a stack trace for every missing path that is read, and Spark Connect a second one for the error. So such a
folder is read together with an *anchor*, a small file or folder that exists: in a read with two paths Spark does not
look for the output of a file sink. The caller drops the anchor's rows by its path. Arguments and results of `beside`
and `in_checkpoint` are patterns, which `literal` makes of paths.
"""

from __future__ import annotations

import re

GLOB_CHARACTERS = re.compile(r"([\\*?\[\]{}])")


def literal(path: str) -> str:
    """Return a path without characters that are wildcards to Spark's readers."""
    return GLOB_CHARACTERS.sub(r"\\\1", path)


def beside(folder: str, anchor: str, *wanted: str) -> list[str]:
    """Return paths of ``wanted`` below a folder, which may be missing, and of ``anchor``, which exists."""
    return [f"{folder}/{anchor}", f"{folder}/{{{','.join((anchor, *wanted))}}}"]


def in_checkpoint(folder: str, *wanted: str) -> list[str]:
    """Return paths of ``wanted`` in the checkpoint of a query that has begun, and of Spark's file ``metadata``."""
    return beside(folder, "metadata", *wanted)
