"""Logs of events: completions by key and time, control events, events that were delivered more than once."""
