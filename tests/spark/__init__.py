"""The Spark hosts, on a real session."""
