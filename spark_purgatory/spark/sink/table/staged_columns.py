"""The columns of staged rows, with the names that their table had for them at one of its versions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.spark.nested import within
from spark_purgatory.spark.sink.table.history import NO_VERSION, History
from spark_purgatory.spark.storage.storage_access import back_ticked

Path = tuple[str, ...]  # The names of a column's structs, and its own.


@dataclass(frozen=True)
class StagedColumns:
    """The columns of staged rows, with the names that the table had for them at one of its versions."""

    rows: T.StructType  # With the names in the staged files.
    version: int = NO_VERSION  # The table's version; `NO_VERSION` if there was no table.
    there: T.StructType | None = None  # With the table's names at that version; None if they are the same.

    @classmethod
    def of(cls, text: str) -> StagedColumns:
        """Read the text of `text`."""
        body = json.loads(text)
        there = T.StructType.fromJson(body["there"]) if "there" in body else None
        return cls(T.StructType.fromJson(body), body.get("version", NO_VERSION), there)

    @property
    def text(self) -> str:
        """The columns in the form of the staging log: the JSON of a schema, with more."""
        there = {} if self.there is None else {"there": self.there.jsonValue()}
        return json.dumps({**self.rows.jsonValue(), "version": self.version, **there}, separators=(",", ":"))

    def continued(self, known: str | None) -> str:
        """Return the text to stage rows with: ``known`` if its columns are the same, and its version not older."""
        if known is None:
            return self.text
        other = StagedColumns.of(known)
        return known if other.rows == self.rows and other.version >= self.version else self.text

    def at(self, history: History, names: T.StructType) -> StagedColumns:
        """Return the same columns with their ``names`` at the history's last version."""
        return replace(self, version=history.version, there=names if moved(self.rows, names) else None)


def moved(before: T.StructType, after: T.StructType) -> dict[str, str]:
    """Return the columns that have another name in ``after``, at every depth."""
    pairs = zip(paths(before), paths(after), strict=True)
    return {".".join(old): ".".join(new) for old, new in pairs if old[-1].lower() != new[-1].lower()}


def with_names(rows: DataFrame, schema: T.StructType) -> DataFrame:
    """Return the rows with the names and types of a schema, at every depth, column by column."""
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
