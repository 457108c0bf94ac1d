"""A sample: what was measured of one query at one time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from spark_purgatory.metrics.catalog import BY_NAME

Labels = tuple[str, ...]
"""Values of a metric's labels, in the order of the catalogue."""


@dataclass(frozen=True)
class Sample:
    """What was measured of one query.

    Args:
        query: The query's name, or its id where it has none.
        time_ms: When, in milliseconds since 1970.
        values: By metric, then by the values of its labels, ``()`` without any. What is not known is left out.
        batch: Number of the micro-batch in its checkpoint.
    """

    query: str
    time_ms: int
    values: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)
    batch: int = 0

    def __post_init__(self) -> None:
        unknown = set(self.values) - set(BY_NAME)
        assert not unknown, f"bug: metrics that the catalogue lacks: {sorted(unknown)}"

    def flat(self) -> dict[str, float]:
        """One number a name: ``outcomes_total.completed`` for one with labels."""
        return {
            ".".join((name, *labels)): value
            for name, by_labels in self.values.items()
            for labels, value in by_labels.items()
        }


Reporter = Callable[[Sample], None]
"""Takes each sample. One that raises is logged, and the query goes on."""
