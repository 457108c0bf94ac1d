"""The engine: Kafka's purgatory and wheel, column-wise, on numpy and pyarrow alone. No Spark, no clock, no I/O."""
