"""The event-time engine of one shard: operations, events and a watermark in, outcomes out."""
