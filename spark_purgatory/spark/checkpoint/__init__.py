"""What a query's checkpoint says while the query runs: gauges of what waits."""
