"""Hosts of a shard's engine on Spark: the packed exchange, the blob host and the log host."""
