"""The columns of staged rows, which have the names that their table had for them at one of its versions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.spark.nested import within
from spark_purgatory.spark.sink.table.history import NO_VERSION
from spark_purgatory.spark.storage.storage_access import back_ticked

Path = tuple[str, ...]  # The names of a column's structs, and its own.


@dataclass(frozen=True)
class StagedColumns:
    rows: T.StructType
    version: int = NO_VERSION  # The table's version whose names they have; `NO_VERSION` if there was no table.

    @classmethod
    def of(cls, text: str) -> StagedColumns:
        """Read the text of `text`."""
        body = json.loads(text)
        return cls(T.StructType.fromJson(body), body.get("version", NO_VERSION))

    @property
    def text(self) -> str:
        """The columns in the form of the staging log: the JSON of a schema, with the version."""
        return json.dumps({**self.rows.jsonValue(), "version": self.version}, separators=(",", ":"))

    def continued(self, known: str | None) -> str:
        """Return the text to stage rows with: ``known`` if its columns are the same, and its version not older."""
        if known is None:
            return self.text
        other = StagedColumns.of(known)
        return known if other.rows == self.rows and other.version >= self.version else self.text


def with_types(rows: DataFrame, schema: T.StructType) -> DataFrame:
    """Return the rows with the types of a schema, at every depth, column by column."""
    if rows.schema.simpleString() == schema.simpleString():
        return rows
    pairs = zip(rows.columns, schema.fields, strict=True)
    return rows.select(*(F.col(back_ticked(old)).cast(new.dataType).alias(new.name) for old, new in pairs))


def paths(kind: T.DataType, path: Path = ()) -> Iterable[Path]:
    """Yield the columns at every depth, in order."""
    for name, part in within(kind):
        if isinstance(kind, T.StructType):
            yield (*path, name)
        yield from paths(part, (*path, name))
