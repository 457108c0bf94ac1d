"""The options that users give: frozen, checked when they are made, with errors that name field, value and remedy."""

from spark_purgatory.config.options import Completions, Operations, SinkOptions
from spark_purgatory.config.purgatory_options import PurgatoryOptions

__all__ = ["Completions", "Operations", "PurgatoryOptions", "SinkOptions"]
