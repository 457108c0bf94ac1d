"""What users write, validated when it is given: frozen, with errors that name field, value and remedy."""

from spark_purgatory.config.declared import (
    ColumnLike,
    Columns,
    Declared,
    Names,
    Options,
    TimeOut,
    choices_of,
    is_column,
    near,
    options_of,
    refuses_unknown_names,
    require_column,
)
from spark_purgatory.config.options import Completions, Operations, SinkOptions, require_name, watermark_ms
from spark_purgatory.config.purgatory_options import MAX_SHARDS, PurgatoryOptions
from spark_purgatory.config.units import (
    Duration,
    Size,
    is_duration,
    not_a_duration,
    not_a_size,
    parse_duration,
    parse_size,
    us_per,
)

__all__ = [
    "MAX_SHARDS",
    "ColumnLike",
    "Columns",
    "Completions",
    "Declared",
    "Duration",
    "Names",
    "Operations",
    "Options",
    "PurgatoryOptions",
    "SinkOptions",
    "Size",
    "TimeOut",
    "choices_of",
    "is_column",
    "is_duration",
    "near",
    "not_a_duration",
    "not_a_size",
    "options_of",
    "parse_duration",
    "parse_size",
    "refuses_unknown_names",
    "require_column",
    "require_name",
    "us_per",
    "watermark_ms",
]
