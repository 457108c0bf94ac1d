"""`RecordAccumulator` on Spark: staged files, the ledger, drains into a Delta table exactly once."""
