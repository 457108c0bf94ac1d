"""The policy of Kafka's producer accumulation in plain Python, without threads; time is an argument (``now_ms``)."""
