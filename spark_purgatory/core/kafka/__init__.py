"""Kafka's parts, for arrays: timing wheel, timer, watchers, purgatory. No events and no event time.

Some of Kafka's behaviour is here only so that traces of the real classes can be replayed against ours; the product
never calls it. All of it is in this list:

- `purgatory.DelayedOperationPurgatory.cancel_for_key` (``cancelForKey``): the engine's control events end
  single operations instead.
- `timing_wheel.TimerAdd.bucket_ms` and `timing_wheel.SystemTimer.clocks_ms`: what a trace shows of a wheel.

In `spark_purgatory.accumulator`, likewise: `policy.AccumulatorPolicy.has_incomplete`, ``has_undrained``,
``set_leader`` and ``abort_incomplete``; `batch.Batch.queue_ms`.
"""
