"""`Purgatory` on Spark: inputs to engine columns, the packed exchange, the group function that hosts a shard."""
