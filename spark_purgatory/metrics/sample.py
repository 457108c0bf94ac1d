"""A sample: the metrics of one query at one time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from spark_purgatory.metrics.catalog import BY_NAME

Labels = tuple[str, ...]
"""Values of a metric's labels, in the order of the catalogue."""


@dataclass(frozen=True)
class Sample:
    """The metrics of one query at one time.

    Args:
        query: The query's name, or its id if it has no name.
        time_ms: The time in milliseconds since 1970.
        values: Values by metric and by the values of its labels, ``()`` if it has none. Unknown ones are left out.
        batch: The number of the micro-batch in its checkpoint.
    """

    query: str
    time_ms: int
    values: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)
    batch: int = 0

    def __post_init__(self) -> None:
        unknown = set(self.values) - set(BY_NAME)
        assert not unknown, f"bug: metrics that the catalogue lacks: {sorted(unknown)}"

    def flat(self) -> dict[str, float]:
        """Return one number for each name; one with labels is named like ``outcomes_total.completed``."""
        pairs = ((name, labels, value) for name, each in self.values.items() for labels, value in each.items())
        return {".".join((name, *labels)): value for name, labels, value in pairs}


Reporter = Callable[[Sample], None]
"""A function that takes each sample. If it raises, the error is logged and the query continues."""
