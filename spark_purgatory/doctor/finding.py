"""What the doctor looked at, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing looked at: what it is, what was found, and what to do about it ("" if nothing)."""

    what: str
    found: str
    remedy: str = ""
    is_note: bool = False
    """Worth knowing, and neither right nor wrong."""

    @property
    def status(self) -> str:
        """``ok``, ``NO`` where something is to be done, ``note``."""
        return "NO" if self.remedy else "note" if self.is_note else "ok"


def note(what: str, found: str) -> Finding:
    """Something worth knowing."""
    return Finding(what, found, is_note=True)
