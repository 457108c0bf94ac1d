"""Properties of columns that are only in a Delta table's own log: generated, identity, default."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_purgatory.spark.storage.paths import delta_log, literal

SPECIAL_FEATURES = frozenset({"allowColumnDefaults", "generatedColumns", "identityColumns"})
"""Of a table that may have such columns; the log of others need not be read."""
METADATA_SCHEMA = "metaData struct<schemaString: string>"


@dataclass(frozen=True)
class SpecialColumns:
    """Names in lower case of the columns that Delta fills itself where rows lack them, or in any case."""

    generated: frozenset[str] = frozenset()
    """``GENERATED ALWAYS AS (expression)``."""
    identity: frozenset[str] = frozenset()
    """``GENERATED ... AS IDENTITY``."""
    closed: frozenset[str] = frozenset()
    """Those of ``identity`` that take no values from rows: ``GENERATED ALWAYS AS IDENTITY``."""
    default: frozenset[str] = frozenset()
    """With a ``DEFAULT``."""

    @property
    def filled(self) -> frozenset[str]:
        """All that rows may lack."""
        return self.generated | self.identity | self.default


def special_columns(spark: SparkSession, location: str, anchor: str) -> SpecialColumns:
    """The special columns of the table as it is now; ``anchor`` as in `paths`."""
    paths = delta_log(literal(location), literal(anchor))
    reader = spark.read.schema(METADATA_SCHEMA)
    commits = reader.option("pathGlobFilter", "*.json").json(paths)
    checkpoints = reader.option("pathGlobFilter", "*.checkpoint*.parquet").parquet(*paths)
    wanted = [F.col("metaData.schemaString").alias("text"), F.col("_metadata.file_name").alias("file")]
    found = commits.select(*wanted).unionAll(checkpoints.select(*wanted)).where("text is not null")
    # Names of files begin with the table's version, in 20 digits.
    row = found.agg(F.max_by("text", "file").alias("text")).first()
    return SpecialColumns() if row is None or row["text"] is None else parsed(row["text"])


def parsed(schema: str) -> SpecialColumns:
    """The special columns of a schema as the log has it."""
    notes = {field["name"].lower(): field.get("metadata", {}) for field in json.loads(schema)["fields"]}
    identity = {name for name, note in notes.items() if "delta.identity.start" in note}
    return SpecialColumns(
        generated=frozenset(name for name, note in notes.items() if "delta.generationExpression" in note),
        identity=frozenset(identity),
        closed=frozenset(name for name in identity if not notes[name].get("delta.identity.allowExplicitInsert")),
        default=frozenset(name for name, note in notes.items() if "CURRENT_DEFAULT" in note),
    )
