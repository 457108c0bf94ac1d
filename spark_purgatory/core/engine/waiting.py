"""The waiting operations of a shard as rows, for people who ask why an operation still waits."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_purgatory.core.arrays.numbers import LARGEST_SCALE
from spark_purgatory.core.arrays.sorted_runs import Int64s
from spark_purgatory.core.arrays.times import elapsed_ms
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.engine.evidence import events_of
from spark_purgatory.core.engine.outcomes import MissingKeys
from spark_purgatory.core.engine.resolver import Resolutions
from spark_purgatory.core.spec.codes import RULES, among
from spark_purgatory.core.spec.criteria import KEYED
from spark_purgatory.core.spec.engine_spec import EngineSpec

TIMESTAMP = pa.timestamp("us", "UTC")
WAITING_FIELDS = (  # Columns of a waiting operation, after its own
    *(pa.field(name, pa.list_(pa.string())) for name in ("watch_keys", "missing_keys")),
    pa.field("matched", pa.int64()),
    pa.field("criterion", pa.string()),
    *(pa.field(name, pa.float64()) for name in ("reached", "needed")),
    pa.field("progress", pa.string()),
    *(pa.field(name, TIMESTAMP) for name in ("created_at", "deadline_at", "held_until")),
    *(pa.field(name, pa.int64()) for name in ("age_ms", "remaining_ms")),
)


def waiting_fields(spec: EngineSpec) -> list[pa.Field]:
    """Return `WAITING_FIELDS`, as decimals if decimals are added up, and ``events`` if outcomes carry events."""
    fields = [*WAITING_FIELDS]
    if spec.sum_scale is not None:
        exact = pa.decimal128(LARGEST_SCALE, spec.sum_scale)
        fields = [field.with_type(exact) if field.type == pa.float64() else field for field in fields]
    return fields if spec.evidence is None else [*fields, pa.field("events", pa.list_(spec.event_type()))]


class Waiting:
    """The operations that wait in one shard; columns are made if asked, ages from a watermark, null without one."""

    def __init__(self, engine: EventTimePurgatory, watermark_us: int | None) -> None:
        self._engine = engine
        self._watermark_us = watermark_us
        self._rows = engine.purgatory.waiting()

    def __len__(self) -> int:
        return len(self._rows)

    def payload(self) -> pa.StructArray:
        return self._engine.rows.payload.take(self._rows)

    def column(self, name: str) -> pa.Array:
        columns: dict[str, Callable[[], pa.Array]] = {
            "watch_keys": lambda: self._keys(np.ones(len(self._resolved.owner), bool), np.ones(len(self), bool)),
            "missing_keys": lambda: self._keys(~self._resolved.result.satisfied, among(self._resolved.rule, KEYED)),
            "matched": lambda: pa.array(self._resolved.result.matched),
            "criterion": lambda: pa.array(RULES).take(pa.array(self._resolved.rule)),
            "reached": lambda: self._counts[0],
            "needed": lambda: self._counts[1],
            "progress": lambda: pc.binary_join_element_wise(*map(_texts, self._counts), " of "),
            "created_at": lambda: pa.array(self._resolved.created_us).cast(TIMESTAMP),
            "deadline_at": lambda: pa.array(self._resolved.deadline_us).cast(TIMESTAMP),
            "held_until": self._held_until,
            "age_ms": lambda: self._ms(lambda now_us: elapsed_ms(now_us, self._resolved.created_us)),
            "events": lambda: events_of(self._engine.resolver, self._resolved),
            "remaining_ms": lambda: self._ms(lambda now_us: elapsed_ms(self._resolved.deadline_us, now_us)),
        }
        return columns[name]()

    @cached_property
    def _resolved(self) -> Resolutions:
        return self._engine.resolver.resolve(self._rows)

    @cached_property
    def _counts(self) -> tuple[pa.Array, pa.Array]:
        return self._engine.resolver.progress(self._resolved)

    def _keys(self, chosen: np.ndarray, applies: np.ndarray) -> pa.Array:
        chosen = chosen & applies[self._resolved.owner]
        counts = np.bincount(self._resolved.owner[chosen], minlength=len(self))
        keys: pa.Array = self._engine.purgatory.watchers.keys.take(self._resolved.entries[chosen])
        return MissingKeys(keys, counts, applies, self._engine.spec.key_prefix).to_arrow()

    def _held_until(self) -> pa.Array:
        held = self._resolved.is_resolved & ~self._resolved.awaits_deadline
        return pa.array(self._resolved.resolved_us, mask=~held).cast(TIMESTAMP)

    def _ms(self, elapsed: Callable[[Int64s], Int64s]) -> pa.Array:
        if self._watermark_us is None:
            return pa.nulls(len(self), pa.int64())
        return pa.array(elapsed(np.full(len(self), self._watermark_us)))


def _texts(numbers: pa.Array) -> pa.StringArray:
    """Return doubles with up to 12 digits and decimals with all; each distinct number is formatted once."""
    whole = numbers.dictionary_encode()
    texts = pa.array(map(_digits, whole.dictionary.to_pylist()), pa.string())
    return texts.take(whole.indices).fill_null("a number of over 38 digits")


def _digits(number: float | Decimal) -> str:
    if isinstance(number, float):
        return f"{number + 0.0:.12g}"  # + 0.0: no -0.0, which equals 0.0
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
