"""Which purgatory a stream of outcomes comes from: for those who start the query, and so know its checkpoint.

`Purgatory.resolve` knows the query's settings and columns, but not the checkpoint: ``writeStream`` is given that later,
and only a DataFrame. So `resolve` gives the stream an alias of its own (``DataFrame.alias``) and notes under this alias
what the query is. Columns keep the alias through ``where``, ``select``, ``withColumn``, ``drop``, joins and unions;
`origin_of` asks Spark which alias the columns have. The alias is in no schema, and so in no file and no table; metadata
of columns would be. It is lost where a stream gets another alias, becomes a view, or has none of its columns left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b

from pyspark.sql import DataFrame

from spark_purgatory.core.spec.engine_spec import EngineSpec

ALIAS = "spark_purgatory_"
MOST_ORIGINS = 100
"""Kept of one process, the latest: a notebook makes a new one with each change of a query, and each is asked for."""


@dataclass(frozen=True)
class Origin:
    """What a purgatory's query is, as far as its checkpoint is concerned."""

    spec: EngineSpec
    shards: int | None
    host: str = "applyInPandasWithState"
    """As `Purgatory.host`."""


_origins: dict[str, Origin] = {}
"""By alias, the latest last."""


def with_origin(outcomes: DataFrame, origin: Origin) -> DataFrame:
    """The stream, from which `origin_of` finds its origin again."""
    alias = f"{ALIAS}{_digest(origin)}"
    _origins.pop(alias, None)
    _origins[alias] = origin
    while len(_origins) > MOST_ORIGINS:
        _origins.pop(next(iter(_origins)), None)
    return outcomes.alias(alias)


def origin_of(outcomes: DataFrame) -> Origin | None:
    """The origin of a stream, None where it has none or no column of `resolve` is left."""
    known = list(_origins)
    if not known or not _columns_under(outcomes, known):
        return None
    # A request to Spark is 20 to 50 ms, for many aliases as for one: seven are enough for a hundred.
    while len(known) > 1:
        older, newer = known[: len(known) // 2], known[len(known) // 2 :]
        known = newer if _columns_under(outcomes, newer) else older
    return _origins.get(known[0])


def _columns_under(outcomes: DataFrame, aliases: list[str]) -> list[str]:
    """The columns that have one of these aliases. A star would do as well, but PySpark logs where there is none."""
    return outcomes.select(*(outcomes.colRegex(f"{alias}.`.*`") for alias in aliases)).columns


def _digest(origin: Origin) -> str:
    columns = origin.spec.columns
    described = repr((replace(origin.spec, columns=None), origin.shards, origin.host)).encode()
    whole = described + (b"" if columns is None else columns.serialize().to_pybytes())
    return blake2b(whole, digest_size=8).hexdigest()
