"""Options that users set: frozen, and checked when they are made. Errors name the field, its value and the remedy."""

from spark_purgatory.config.options import Completions, Operations, PurgatoryOptions, SinkOptions

__all__ = ["Completions", "Operations", "PurgatoryOptions", "SinkOptions"]
