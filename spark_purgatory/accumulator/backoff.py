"""How long a batch that failed waits before it is tried again (Kafka: ``ExponentialBackoff``)."""

from __future__ import annotations

import math

from spark_purgatory.errors import ConfigError

MULTIPLIER = 2
"""Kafka's RETRY_BACKOFF_EXP_BASE."""


class ExponentialBackoff:
    """``initial_ms * 2 ** retry``, at most ``max_ms`` (Kafka: ``ExponentialBackoff`` with base 2).

    Retry 0 is the first. If ``max_ms <= initial_ms`` the backoff is always ``max_ms``. Kafka multiplies by a random
    number between 0.8 and 1.2, so that producers that failed together do not come back together; a table has one sink.

    Example, 100 ms up to 1 s: 100, 200, 400, 800, 1000, 1000, ...
    """

    def __init__(self, initial_ms: int, max_ms: int) -> None:
        for name, value in (("initial_ms", initial_ms), ("max_ms", max_ms)):
            if value < 0:
                raise ConfigError(f"{name} of a backoff must not be negative, got {value}")
        self.initial_ms = min(initial_ms, max_ms)
        self.max_ms = max_ms
        self.is_constant = max_ms <= initial_ms
        self._max_exponent = 0.0 if self.is_constant else math.log(max_ms / max(initial_ms, 1)) / math.log(MULTIPLIER)

    def __call__(self, retry: int) -> int:
        """Milliseconds to wait before retry number ``retry``, from 0 (Kafka: ``backoff``)."""
        if self.is_constant:
            return self.initial_ms
        term_ms = self.initial_ms * math.pow(MULTIPLIER, min(retry, self._max_exponent))
        return min(int(term_ms), self.max_ms)
