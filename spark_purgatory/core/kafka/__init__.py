"""Kafka's purgatory and timer for arrays, without events; ``tests/conformance`` has what only its traces need."""
