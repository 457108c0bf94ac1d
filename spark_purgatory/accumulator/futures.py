"""The future that an append returns, completed when the record's batch ends (Kafka: ``FutureRecordMetadata``)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar, cast

from spark_purgatory.errors import BatchStateError

V = TypeVar("V")

Callback = Callable[[V | None, BaseException | None], None]  # takes the batch's value or error; the other is None


class RecordFuture(Generic[V]):
    """The result of one record (Kafka: ``FutureRecordMetadata`` and its ``Callback``).

    There are no threads: it never blocks, and reading it too early is an error.
    """

    def __init__(self) -> None:
        self.is_done = False
        self._value: V | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callback[V]] = []

    def result(self) -> V:
        """Return the batch's value. Raises the error that it failed with, or BatchStateError if it has not ended."""
        if self._error is not None:
            raise self._error
        if not self.is_done:
            raise BatchStateError("the record's batch has not ended yet: drain it and complete it first")
        return cast(V, self._value)

    def exception(self) -> BaseException | None:
        """Return the error that the batch failed with; None if it was completed or has not ended."""
        return self._error

    def add_done_callback(self, callback: Callback[V]) -> None:
        """Call ``callback(value, error)`` when the batch ends; at once if it has ended."""
        if self.is_done:
            callback(self._value, self._error)
        else:
            self._callbacks.append(callback)

    def settle(self, value: V | None, error: BaseException | None) -> list[Callable[[], None]]:
        """End with a value or an error, and return the callbacks to call, in the order in which they were added."""
        self.is_done, self._value, self._error = True, value, error
        callbacks, self._callbacks = self._callbacks, []
        return [partial(callback, value, error) for callback in callbacks]


class CallbackQueue:
    """Callbacks of batches that have ended. They are called when the accumulator is consistent, so they may use it."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def add(self, callbacks: list[Callable[[], None]]) -> None:
        """Queue callbacks in this order."""
        self._waiting.extend(callbacks)

    def call_all(self) -> None:
        """Call every queued callback, then raise their errors as one group; Kafka logs them."""
        errors: list[Exception] = []
        while self._waiting:
            try:
                self._waiting.popleft()()
            except Exception as error:
                errors.append(error)
        if errors:
            raise ExceptionGroup(f"{len(errors)} callbacks of records raised; their batches have ended", errors)
