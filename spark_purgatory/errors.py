"""Every error this package raises: whose fault it is, with all the numbers, never with payload.

``PurgatoryError`` is the root. Below it, by fault: ``ConfigError`` the caller's, ``StateError`` the state's,
``StorageError`` the storage's, ``BugError`` ours.
"""

from __future__ import annotations

START_OVER = (
    "start over with a new checkpoint and a new table, because the sources are then read from their beginning and the "
    "table would get rows that it has a second time"
)
"""The last way out. A new checkpoint alone would double the table."""


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


class StateUnreadableError(StateError):
    """Spark cannot read the state's files from the checkpoint: one is missing or damaged. Bring it back from a copy."""


class StorageError(PurgatoryError):
    """The sink's storage refused or holds something unexpected."""


class SourceError(PurgatoryError):
    """A source of a job cannot be read: a topic is not there, or no broker answers."""


class BugError(PurgatoryError, AssertionError):
    """One of our own invariants is broken; the message starts with ``bug:``."""

    def __init__(self, message: str) -> None:
        super().__init__(f"bug: {message}; please report it with this message")


class BufferExhaustedError(LimitError):
    """buffer_memory is full and the table took nothing for max_block (Kafka: BufferExhaustedException)."""


class BatchStateError(ConfigError):
    """A batch got an event that its state does not allow; names the batch, its state and the event."""


class DeliveryTimeoutError(StorageError):
    """A batch could not be delivered within the delivery time-out (Kafka: TimeoutException)."""


class StagingError(StorageError):
    """The staging folder is damaged, lost, or not this query's; names the entry or the batch that is missing."""


class TableLostError(StorageError):
    """The target was dropped, replaced or restored, or has forgotten what the query committed (txnVersion)."""


class TableForgetsError(StorageError):
    """The target is set to forget transactions (``delta.setTransactionRetentionDuration``)."""


class ForeignWriterError(StorageError):
    """Someone else commits under this query's app id, or writes into its staging folder."""


class SkippedWriteError(StorageError):
    """Delta took a write without an error, and the table's history does not have it: its app id is another's, too."""


class SchemaMismatchError(StorageError):
    """The target's columns are not those of the staged rows."""
