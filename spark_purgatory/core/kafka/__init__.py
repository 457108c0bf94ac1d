"""Kafka's parts, for arrays: timing wheel, timer, watchers, purgatory. No events and no event time.

What only traces of the real classes show is in ``tests/conformance``.
"""
