"""Kafka's parts, for arrays, without events and event time. What only its traces show is in ``tests/conformance``."""
