"""`RecordAccumulator` on Spark: staged files, the ledger, drains into a Delta or Iceberg table exactly once."""
