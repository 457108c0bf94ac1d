"""The engine's columns of both inputs, for Spark and for the tester's Arrow tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from spark_purgatory.config import PurgatoryOptions
from spark_purgatory.core.spec.criteria import ByRow
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.spark.operator.field_types import reads_value

C = TypeVar("C")  # A column of Spark or an Arrow array.


class EngineColumns(ABC, Generic[C]):
    """One input's columns for the engine. ``value`` is what the argument ``label`` names a column with."""

    options: PurgatoryOptions

    @abstractmethod
    def _text(self, value: Any, label: str, scope: C | None = None) -> C:
        """Return a key or id as text, with the prefix of its scope if there is one."""

    @abstractmethod
    def _words(self, value: Any, label: str) -> C:
        """Return a column of words, such as those of a rule."""

    @abstractmethod
    def _time_us(self, value: Any, label: str) -> C:
        """Return a time in microseconds since 1970."""

    @abstractmethod
    def _keys(self, several: bool, scope: C | None) -> C:
        """Return the operations' keys as texts, or as arrays of texts if they may have several."""

    @abstractmethod
    def _hashes(self, keys: C, several: bool = False) -> C:
        """Return the hash of each key. Null has a hash too."""

    @abstractmethod
    def _deadline_us(self, created_us: C) -> C:
        """Return the operations' deadlines, at most the largest int64."""

    @abstractmethod
    def _needs(self, spec: EngineSpec, several: bool) -> dict[str, C]:
        """Return each operation's need, and its level at each of its keys."""

    @abstractmethod
    def _number(self, value: Any, label: str, number: str) -> C:
        """Return the events' values in the query's type of numbers."""

    @abstractmethod
    def scope(self) -> C | None:
        """Return the prefix of keys and ids, 32 hexadecimal digits made of the scope's value; None without a scope."""

    def of_operations(self, spec: EngineSpec, several: bool) -> dict[str, C]:
        """Return id, keys, times and rules of the operations, except payload columns. ``several``: keys are arrays."""
        config, criterion, scope = self.options.operations, self.options.criterion, self.scope()
        own_id, keys = self._text(config.id, "operations.id", scope), self._keys(several, scope)
        created_us = self._time_us(config.created, "operations.created")
        columns = {
            "id": own_id,
            "id_hash": self._hashes(own_id),
            "keys": keys,
            "key_hashes": self._hashes(keys, several),
            "created_us": created_us,
            "deadline_us": self._deadline_us(created_us),
        }
        if isinstance(criterion, ByRow):
            columns |= {"rule": self._words(criterion.rule, "criterion.rule"), **self._needs(spec, several)}
        return {name: column for name, column in columns.items() if name not in dict(spec.roles)}

    def of_events(self, number: str) -> dict[str, C]:
        """Return key and time of the events, and the columns that the criterion or control events read."""
        config, scope = self.options.completions, self.scope()
        key = self._text(config.key, "completions.key", scope)
        columns = {"key": key, "key_hash": self._hashes(key), "time_us": self._time_us(config.time, "completions.time")}
        if reads_value(self.options):
            columns["value"] = self._number(config.value, "completions.value", number)
        if config.kind is not None:
            columns["kind"] = self._words(config.kind, "completions.kind")
        if config.operation_id is not None:
            operation_id = self._text(config.operation_id, "completions.operation_id", scope)
            columns |= {"operation_id": operation_id, "operation_hash": self._hashes(operation_id)}
        if config.event_id is not None:
            columns["event_id"] = self._text(config.event_id, "completions.event_id")
        return columns
