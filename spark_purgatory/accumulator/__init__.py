"""The policy of Kafka's producer accumulation in plain Python, without threads; time is an argument (``now_ms``).

Parts that only traces of Kafka's classes need (memory, leaders, mutes, flushes, splits, the end) are in
``tests/conformance``.
"""
