"""The Delta or Iceberg table: its facts, its columns, its commits, and the checkpoint that claims it."""
