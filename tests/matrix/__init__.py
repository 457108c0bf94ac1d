"""The tests in other environments: ``make test-matrix``."""
