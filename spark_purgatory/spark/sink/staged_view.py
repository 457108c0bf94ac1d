"""The table as it would be if everything staged were drained now."""

from __future__ import annotations

import json

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.errors import ConfigError, StagingError
from spark_purgatory.spark.sink.drain.delta_sink import app_id_of
from spark_purgatory.spark.sink.staging.ledger import NO_BATCH, Ledger
from spark_purgatory.spark.sink.staging.ledger_format import replay
from spark_purgatory.spark.sink.staging.staged_files import read_pieces
from spark_purgatory.spark.sink.staging.stager import missing, pieces_below
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder, local_folder
from spark_purgatory.spark.sink.table.delta_log import TXN_SCHEMA, last_txn_version
from spark_purgatory.spark.sink.table.delta_target import DeltaTarget
from spark_purgatory.spark.sink.table.table_claim import claimed_by
from spark_purgatory.spark.storage.commits import next_batch
from spark_purgatory.spark.storage.paths import delta_log, literal

TRIES = 5


def staged_view(spark: SparkSession, target: DeltaTarget, checkpoint: str) -> DataFrame:
    """A version of the table, and the staged rows that it does not have; each row once, drains or not.

    A micro-batch is seen once Spark has committed it, or a drain has taken some of it: before that its folder may be
    half written. The staging folder is read between two looks at the table's transactions: if these agree, it is of the
    same time.
    """
    anchor = f"{checkpoint.rstrip('/')}/metadata"
    place = StagingFolder(checkpoint, local_folder(spark, checkpoint))
    # The query may name the table in another way than the reader, for example by a relative path.
    named = next(iter(claimed_by(spark, checkpoint).values()), str(target))
    app_id = app_id_of(spark, checkpoint, named)
    for _ in range(TRIES):
        before = _state_of(spark, target, app_id, anchor)
        committed = next_batch(spark, checkpoint)
        ledger = replay(place.read_entries(spark, others_write=True), place.uri)
        found: StagingError | None = None
        known = committed
        try:
            known = ledger.adopt(pieces_below(spark, place, ledger), committed)
        except StagingError as error:
            # A drain that ends meanwhile removes files: only where nothing else has changed they were damaged.
            found = error
        if before == _state_of(spark, target, app_id, anchor):
            if named != str(target) and before[1] == NO_BATCH:
                raise ConfigError(
                    f"checkpoint={checkpoint!r} is that of table {named}, and {target} has no row of it: name the "
                    "table as the query names it"
                )
            if found is not None:
                raise found
            if known < committed:
                raise missing(checkpoint, place.uri, known, committed)
            return _view(spark, target, place.uri, ledger, *before)
    raise StagingError(f"table {target} was drained to {TRIES} times while its staged rows were looked for: try again")


def _state_of(spark: SparkSession, target: DeltaTarget, app_id: str, anchor: str) -> tuple[int | None, int]:
    """Version of the table, None if it is not there, and the last drain that it holds."""
    facts = target.facts(spark)
    if facts is None:
        return None, NO_BATCH
    log = delta_log(literal(facts.location), literal(anchor))
    commits = spark.read.schema(TXN_SCHEMA).option("pathGlobFilter", "*.json").json(log)
    name = F.col("_metadata.file_name")
    row = commits.agg(F.max(F.when(name.rlike(r"^\d{20}\.json$"), name)).alias("name")).first()
    version = int(row["name"].removesuffix(".json")) if row is not None and row["name"] else None
    return version, last_txn_version(spark, facts.location, app_id, anchor)


def _view(
    spark: SparkSession, target: DeltaTarget, folder: str, ledger: Ledger, version: int | None, last_drain: int
) -> DataFrame:
    intent = ledger.intent
    taken = intent.taken if intent is not None and intent.number > last_drain else ()
    left = set(intent.left) if intent is not None else set()
    whole = [piece for piece in ledger.pieces.values() if piece not in left]
    if not (taken or left or whole) and (version is not None or ledger.schema is None):
        return target.read(spark, version)
    schema = T.StructType.fromJson(json.loads(ledger.schema or ""))
    if not (taken or left or whole):
        return spark.createDataFrame([], schema)
    staged = read_pieces(spark, folder, schema, [*taken, *left], whole)
    return staged if version is None else target.read(spark, version).unionByName(staged, allowMissingColumns=True)
