"""Types of columns, and whether a Delta table takes one into another."""

from __future__ import annotations

TAKEN = """null; 1Y; 1S; 1; 1L; 1F; 1D; cast(1 as decimal(38,9)); 'a'; cast('a' as varchar(3)); X'00'; true;
    date'2026-01-01'; timestamp'2026-01-01 00:00:00'; timestamp_ntz'2026-01-01 00:00:00'; array(1); map(1, 1);
    map(named_struct('a', 1), 1); named_struct('a', null, 'b', 1); parse_json('1'); named_struct('v', parse_json('1'));
    array(parse_json('1')); named_struct('a.b', 1, 'a`b', 2)"""


def listed(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split(";")]
