"""The columns that the engine takes of both inputs, described once for Spark and for the tester's Arrow tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from spark_purgatory.config import PurgatoryOptions
from spark_purgatory.core.spec.criteria import ByRow
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.spark.operator.field_types import reads_value

C = TypeVar("C")
"""A column: Spark's, or an Arrow array."""


class EngineColumns(ABC, Generic[C]):
    """One input's columns as the engine has them. An argument names a column by its ``value`` and its own ``label``."""

    options: PurgatoryOptions

    @abstractmethod
    def _text(self, value: Any, label: str, scope: C | None = None) -> C:
        """A key or id as text, within its partition if there is one."""

    @abstractmethod
    def _words(self, value: Any, label: str) -> C:
        """A column of words, such as those of a rule."""

    @abstractmethod
    def _time_us(self, value: Any, label: str) -> C:
        """A time in microseconds since 1970."""

    @abstractmethod
    def _keys(self, several: bool, scope: C | None) -> C:
        """The operations' keys as texts: one each, or an array where they may have several."""

    @abstractmethod
    def _hashes(self, keys: C, several: bool = False) -> C:
        """The hash of each key; null has one too."""

    @abstractmethod
    def _deadline_us(self, created_us: C) -> C:
        """The operations' deadlines; the largest int64 where one lies beyond it."""

    @abstractmethod
    def _needs(self, spec: EngineSpec, several: bool) -> dict[str, C]:
        """Each operation's need, and its level at each of its keys."""

    @abstractmethod
    def _number(self, value: Any, label: str, number: str) -> C:
        """The events' values in the query's type of numbers."""

    @abstractmethod
    def scope(self) -> C | None:
        """The scope of keys and ids, 32 hexadecimal digits made of their partition; None without partitions."""

    def of_operations(self, spec: EngineSpec, several: bool) -> dict[str, C]:
        """Id, keys (``several``: maybe more than one), times and rules of the operations, but for payload columns."""
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
        """Key and time of the events, and what the criterion or control events read besides."""
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
