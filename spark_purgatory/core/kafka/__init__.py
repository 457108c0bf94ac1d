"""Kafka's parts, for arrays: timing wheel, timer, watchers, purgatory. No events and no event time."""
