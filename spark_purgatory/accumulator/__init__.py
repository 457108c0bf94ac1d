"""The policy of Kafka's producer accumulation: what is batched, when it goes, what waits. Plain Python, no clock.

Time is an argument everywhere (``now_ms``), there are no threads, and what a record is, only its sizes say.

Some of Kafka's behaviour is here only so that traces of the real classes can be replayed against ours; the product
never calls it. All of it is in this list: `policy.AccumulatorPolicy.has_incomplete`, `has_undrained`, `set_leader`,
`mute`, `unmute` and `abort_incomplete`; `appends.Appender.append_or_wait`; `batch_results.BatchResults.fail` and
`overdue`; `batch.Batch.queue_ms`.
"""
