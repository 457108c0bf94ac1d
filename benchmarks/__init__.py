"""Workload W side by side: this library, what Spark has for it today, and the floors below both."""
