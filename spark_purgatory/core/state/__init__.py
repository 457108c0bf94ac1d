"""A shard's state as bytes: encodings, the checksummed blob, snapshots of the purgatory and of the engine."""
