"""What users write, validated when it is given: frozen, with errors that name field, value and remedy."""

from spark_purgatory.config.options import (
    ColumnLike,
    Completions,
    Operations,
    Option,
    SinkOptions,
    duration_us,
    idle_after_us,
    is_column,
    require_column,
    require_name,
)
from spark_purgatory.config.purgatory_options import MAX_SHARDS, PurgatoryOptions
from spark_purgatory.config.units import (
    Duration,
    is_duration,
    not_a_duration,
    parse_duration,
    parse_ms,
    parse_size,
    reads_like_a_duration,
)

__all__ = [
    "MAX_SHARDS",
    "ColumnLike",
    "Completions",
    "Duration",
    "Operations",
    "Option",
    "PurgatoryOptions",
    "SinkOptions",
    "duration_us",
    "idle_after_us",
    "is_column",
    "is_duration",
    "not_a_duration",
    "parse_duration",
    "parse_ms",
    "parse_size",
    "reads_like_a_duration",
    "require_column",
    "require_name",
]
