"""Log host = blob host = batch = oracle: forty streams with restarts, under faults and without, warm and cold."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from tests.support.children import run_module

STREAMS = int(os.environ.get("HOST_STREAMS", "40"))
FIRST = int(os.environ.get("HOST_STREAMS_FIRST", "0"))


@pytest.mark.spark
@pytest.mark.slow
def test_log_host_blob_host_batch_and_oracle_agree(tmp_path: Path) -> None:
    run_module("tests.support.hosts_child", str(tmp_path), str(FIRST), str(STREAMS))
    found = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text(encoding="utf-8").splitlines()]
    differences: Counter[str] = Counter()
    for at in found:
        differences.update(at["differences"])
    faults = Counter({at["route"]: 0 for at in found})
    for at in found:
        faults[at["route"]] += at["faults"]
    statuses: Counter[str] = Counter()
    for at in found:
        statuses.update(at["statuses"])
    print(
        f"{len(found)} streams, {sum(at['rows'] for at in found)} outcomes ({dict(statuses)}), "
        f"{sum(at['late'] for at in found)} of them late, faults by route {dict(faults)}: differences "
        f"{dict(differences)}"
    )
    assert len(found) == STREAMS
    assert not [at for at in found if any(at["differences"].values())]
    assert statuses["EXPIRED"] and statuses["COMPLETED"] and sum(at["late"] for at in found)
    assert faults["faults"] and faults["cold and faults"]
