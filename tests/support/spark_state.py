"""A shard's state as Spark keeps it for `transformWithState`: a copy for each attempt, taken whole or thrown away."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Row
from pyspark.sql import types as T


@dataclass
class ShardState:
    """Values, maps and timers of one grouping key."""

    values: dict[str, bytes] = field(default_factory=dict)
    maps: dict[str, dict[int, bytes]] = field(default_factory=dict)
    timers: set[int] = field(default_factory=set)

    def copy(self) -> ShardState:
        return ShardState(dict(self.values), {name: dict(of) for name, of in self.maps.items()}, set(self.timers))


def _the(schema: T.StructType, given: Any, kind: type) -> Any:
    """The one field of a row that is written, if it is what its schema says."""
    assert isinstance(given, tuple) and len(given) == len(schema) == 1, f"a row of {schema.simpleString()}: {given!r}"
    assert isinstance(given[0], kind), f"{schema.simpleString()} takes {kind.__name__}, not {type(given[0]).__name__}"
    return given[0]


class Handle:
    """What a processor is given: the variables of whichever shard is the grouping key."""

    def __init__(self, states: dict[int, ShardState]) -> None:
        self.states = states
        self.key: int | None = None

    @property
    def state(self) -> ShardState:
        assert self.key is not None, "state can be read and written only in a call of a grouping key"
        return self.states.setdefault(self.key, ShardState())

    def getValueState(self, name: str, schema: T.StructType) -> Value:
        return Value(self, name, schema)

    def getMapState(self, name: str, key_schema: T.StructType, schema: T.StructType) -> Map:
        return Map(self, name, key_schema, schema)

    def registerTimer(self, at_ms: int) -> None:
        """As Spark's: the same timer again is one timer."""
        assert isinstance(at_ms, int) and -(2**63) <= at_ms < 2**63
        self.state.timers.add(at_ms)

    def deleteTimer(self, at_ms: int) -> None:
        """As Spark's: a timer that is not there is no error."""
        assert isinstance(at_ms, int) and -(2**63) <= at_ms < 2**63
        self.state.timers.discard(at_ms)


@dataclass
class Value:
    """`ValueState`: what is read is a tuple, in which binary is a bytearray."""

    handle: Handle
    name: str
    schema: T.StructType

    def exists(self) -> bool:
        return self.name in self.handle.state.values

    def get(self) -> tuple[bytearray] | None:
        found = self.handle.state.values.get(self.name)
        return None if found is None else (bytearray(found),)

    def update(self, value: tuple[bytes]) -> None:
        self.handle.state.values[self.name] = _the(self.schema, value, bytes)

    def clear(self) -> None:
        self.handle.state.values.pop(self.name, None)


@dataclass
class Map:
    """`MapState`: what is read is a `Row`."""

    handle: Handle
    name: str
    key_schema: T.StructType
    schema: T.StructType

    @property
    def _all(self) -> dict[int, bytes]:
        return self.handle.state.maps.setdefault(self.name, {})

    def exists(self) -> bool:
        return bool(self._all)

    def getValue(self, key: tuple[int]) -> Row | None:
        found = self._all.get(_the(self.key_schema, key, int))
        return None if found is None else Row(**{self.schema.names[0]: bytes(found)})

    def updateValue(self, key: tuple[int], value: tuple[bytes]) -> None:
        self._all[_the(self.key_schema, key, int)] = _the(self.schema, value, bytes)

    def removeKey(self, key: tuple[int]) -> None:
        """Remove an entry; one that is not there is no error."""
        self._all.pop(_the(self.key_schema, key, int), None)

    def clear(self) -> None:
        self._all.clear()
