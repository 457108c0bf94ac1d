"""Places of storage, equal for all spellings of a path."""

from __future__ import annotations

import os
import posixpath
import re
from dataclasses import dataclass

ALIASES = {"s3": "s3a", "s3n": "s3a", "abfs": "abfss", "wasb": "wasbs"}  # other schemes of one storage
# Scheme, authority and path. Escapes stay as they are, because Hadoop takes a path as it is written.
_URI = re.compile(r"(?:([a-zA-Z][\w+.-]*):)?(?://([^/]*))?(.*)", re.DOTALL)

ENCODED = re.compile(r"""[\s"#%<>?[\\\]^`{|}]""")
"""Characters of a path that a URI encodes. Spark's reader of state stores encodes the path twice, and finds nothing."""


@dataclass(frozen=True)
class Place:
    """A path as storage takes it: ``file:/a/b``, ``file:///a//b/`` and ``/a/./b`` are equal.

    A path without a scheme is in the session's default storage, which is unknown here. It is taken to be in the storage
    of the path that it is compared with.
    """

    scheme: str | None
    authority: str
    path: str  # without a local folder's symbolic links, as far as this machine has it

    @classmethod
    def of(cls, uri: str) -> Place:
        scheme, authority, path = split_uri(uri)
        path = posixpath.normpath(re.sub("/+", "/", path)) if path else "/"
        scheme = scheme and ALIASES.get(scheme.lower(), scheme.lower())
        return cls(scheme, authority, os.path.realpath(path) if scheme in (None, "file") and path[0] == "/" else path)

    @classmethod
    def local(cls, path: str) -> Place:
        return cls.of(path if split_uri(path)[0] else os.path.abspath(path))

    def same_as(self, other: Place) -> bool:
        return self._is_beside(other) and self.path == other.path

    def below(self, folder: Place) -> str | None:
        """Return the path below a folder, "" for the folder itself; None if it is elsewhere."""
        if not self._is_beside(folder):
            return None
        if self.path == folder.path:
            return ""
        root = folder.path.rstrip("/") + "/"
        return self.path.removeprefix(root) if self.path.startswith(root) else None

    def _is_beside(self, other: Place) -> bool:
        if self.scheme is None or other.scheme is None:
            return True
        return (self.scheme, self.authority) == (other.scheme, other.authority)


def split_uri(uri: str) -> tuple[str | None, str, str]:
    match = _URI.match(uri)
    assert match is not None
    return match[1], match[2] or "", match[3]
