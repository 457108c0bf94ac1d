"""The sink on real Iceberg tables: ``make test-iceberg``."""
