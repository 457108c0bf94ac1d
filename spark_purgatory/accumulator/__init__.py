"""The policy of Kafka's producer accumulation: what is batched, when it goes, what waits. Plain Python, no clock.

Time is an argument everywhere (``now_ms``), there are no threads, and what a record is, only its sizes say. What only
traces of Kafka's classes show (memory, leaders, mutes, flushes, splits, the end) is in ``tests/conformance``.
"""
