"""Every error this package raises: whose fault it is, with all the numbers, never with payload.

``PurgatoryError`` is the root. Below it, by fault: ``ConfigError`` the caller's, ``StateError`` the state's,
``StorageError`` the storage's, ``BugError`` ours.
"""

from __future__ import annotations


class PurgatoryError(Exception):
    """Root of all errors of this package."""


class ConfigError(PurgatoryError, ValueError):
    """The caller gave something that cannot work; names the field, the value and what is allowed."""


class EmptyWatchKeysError(ConfigError):
    """An operation was given no watch keys (Kafka: IllegalArgumentException of ``tryCompleteElseWatch``)."""


class LimitError(PurgatoryError):
    """A limit was reached; nothing was lost; names the limit, the figure and the remedy."""


class StateError(PurgatoryError):
    """State read from a checkpoint cannot be used; names what differs."""


class StateCorruptError(StateError):
    """The state's bytes are not what was written: magic, length, checksum or content."""


class StateVersionError(StateError):
    """The state was written in a format that this version does not read."""


class StateMismatchError(StateError):
    """The state belongs to a query with another shard count, criterion or schema."""


class StorageError(PurgatoryError):
    """The sink's storage refused or holds something unexpected."""


class BugError(PurgatoryError, AssertionError):
    """One of our own invariants is broken; the message starts with ``bug:``."""

    def __init__(self, message: str) -> None:
        super().__init__(f"bug: {message}; please report it with this message")
