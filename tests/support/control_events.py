"""Control events as short rows."""

from __future__ import annotations

from typing import Any

from tests.support.operations import ev

Row = dict[str, Any]


def told(words: str) -> list[Row]:
    """`complete:a:12 extend:b:13:0.005 cancel:a:14@o`: kind, key, ms, value, and the operation it names."""
    events = []
    for word in words.split():
        word, _, name = word.partition("@")
        kind, key, ms, *value = word.split(":")
        number = float(value[0]) if value else None
        events.append(ev(key, int(ms) * 1000, kind=kind, value=number, operation_id=name or None))
    return events
