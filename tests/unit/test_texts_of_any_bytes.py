"""A string of Spark may hold bytes that are not UTF-8. It must not make a shard's state unreadable."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from spark_purgatory import Completions, Operations, Purgatory, criteria
from spark_purgatory.core.state.payload import check_layout
from spark_purgatory.testing import PurgatoryTester

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
TEXTS = pa.array([b"\xff\xfe", b"A", b"\x80"], pa.binary()).view(pa.string())
ENDS = pa.array([0, 1, 1, 3], pa.int32())


def nested() -> dict[str, pa.Array]:
    struct = pa.StructArray.from_arrays([TEXTS, TEXTS], ["a", "b"])
    keys = pa.array(["k", "l", "m"])
    return {
        "text": TEXTS,
        "list": pa.ListArray.from_arrays(ENDS, TEXTS),
        "struct": struct,
        "list of structs": pa.ListArray.from_arrays(ENDS, struct),
        "struct without nulls, in one that may be null": pa.StructArray.from_arrays(
            [
                pa.StructArray.from_arrays(
                    [TEXTS.take(pa.array([0, 1, None]))],
                    fields=[pa.field("b", pa.string(), False)],
                    mask=pa.array([False, False, True]),
                )
            ],
            ["a"],
        ),
        "map": pa.MapArray.from_arrays(ENDS, keys, TEXTS),
    }


@pytest.mark.parametrize("emit", ["early", "final"])
@pytest.mark.parametrize("kind", [kind for kind in nested() if "without" not in kind])
def test_an_operation_with_such_a_text_waits_and_gets_its_outcome(kind: str, emit: str) -> None:
    purgatory = Purgatory(
        operations=Operations(id="id", keys="id", created="at", timeout="10 minutes", watermark="1 minute"),
        completions=Completions(key="id", time="at", watermark="1 minute"),
        criterion=criteria.any_key(),
        emit=emit,  # type: ignore[arg-type]
    )
    tester = PurgatoryTester(purgatory)
    at = pa.array([NOON] * 3, pa.timestamp("us", "UTC"))
    tester.step(operations=pa.table({"id": ["a", "b", "c"], "at": at, "payload": nested()[kind]}))
    tester.step(watermark=NOON + timedelta(minutes=1))
    tester.advance(NOON + timedelta(minutes=20))
    assert [row["status"] for row in tester.outcomes] == ["EXPIRED"] * 3


@pytest.mark.parametrize("kind", nested())
def test_such_texts_are_checked_as_bytes(kind: str) -> None:
    check_layout(pa.record_batch({"column": nested()[kind]}))
