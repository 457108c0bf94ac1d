"""The table with its staged rows, as if everything staged were drained now."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import ConfigError, StagingError
from spark_purgatory.spark.checkpoint.shard_states import is_checkpoint
from spark_purgatory.spark.nested import by_name, merged
from spark_purgatory.spark.sink.drain.protocol import missing
from spark_purgatory.spark.sink.drain.table_truth import TableTruth, check_kept, drains_in
from spark_purgatory.spark.sink.staging.ledger import Ledger, Names, Piece
from spark_purgatory.spark.sink.staging.staged_files import pieces_below, quoted, read_pieces
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder, read_ledger
from spark_purgatory.spark.sink.table import table_claim
from spark_purgatory.spark.sink.table.column_rules import fitted_columns
from spark_purgatory.spark.sink.table.delta_start import check_name
from spark_purgatory.spark.sink.table.history import NO_VERSION
from spark_purgatory.spark.sink.table.staged_columns import StagedColumns, with_types
from spark_purgatory.spark.sink.table.table_place import resolved
from spark_purgatory.spark.sink.table.target import Target
from spark_purgatory.spark.storage.checkpoint_files import next_batch, repartitions_in
from spark_purgatory.spark.storage.spark_access import own_session

TRIES = 5


def staged_view(spark: SparkSession, target: Target, checkpoint: str) -> DataFrame:
    """Return a version of the table with the staged rows that it does not have, each row once.

    A micro-batch is included once Spark has committed it or a drain has taken some of it. Before that its folder may be
    half written. The table's version is read before and after the staging folder, until both are equal.
    """
    if not is_checkpoint(spark, checkpoint):
        raise ConfigError(
            f"checkpoint={checkpoint!r} is not the checkpoint of a query that was started: start the query, or name "
            "the checkpoint of the query whose staged rows you want"
        )
    with own_session(spark) as own:
        place = StagingFolder.of(own, checkpoint)
        ledger, pieces, version = _looked_at(own, target, checkpoint, place)
        facts = target.facts(own) if pieces and version != NO_VERSION else None
    if not pieces and version != NO_VERSION:
        return target.read(spark, version)
    if ledger.schema is None:
        raise ConfigError(
            f"table {target} does not exist yet, and no row is staged for it: its query has not had a micro-batch with "
            "rows. Call table_exists() first, or read again later"
        )
    columns = StagedColumns.of(ledger.schema)
    if not pieces:
        return spark.createDataFrame([], columns.rows)
    staged = read_pieces(spark, place.uri, columns.rows, pieces)
    if version == NO_VERSION:
        return staged
    table = target.read(spark, version)
    if facts is not None:
        target.check_names(columns, facts, table.schema, target.history_of_names(spark, columns, facts))
        staged = with_types(staged, fitted_columns(columns.rows, table.schema))
    whole = merged(table.schema, staged.schema)  # Spark's own unionByName does not look into maps.
    both = (rows.select(*by_name(rows.schema, whole, quoted)) for rows in (table, staged))
    return next(both).union(next(both))


def _looked_at(
    spark: SparkSession, target: Target, checkpoint: str, place: StagingFolder
) -> tuple[Ledger, list[Piece], int]:
    """Return the ledger, the pieces that a version of the table lacks, and that version, all of one time."""
    # The query and the reader may call the table by other names, and other tables may have its name.
    claimed = table_claim.claimed_by(spark, checkpoint)
    here = resolved(spark, SinkOptions(path=target.path, table=target.table))
    ours = {"path": here.path} if here.path else {"table": str(here.table)}
    is_named = not claimed or table_claim.is_one_table(claimed, ours)
    app_id = table_claim.app_id_of(spark, checkpoint)
    for _ in range(TRIES):
        before = target.state(spark, None).history
        committed = next_batch(spark, checkpoint)
        ledger = read_ledger(spark, place, others_write=True)
        found, known = None, committed
        try:
            pieces = pieces_below(spark, place.uri, ledger, committed)
            repartitions = repartitions_in(spark, checkpoint, ledger.unknown(pieces, committed))
            known = ledger.adopt(pieces, committed, repartitions)
        except StagingError as error:
            # A drain that ends meanwhile removes files. They were damaged only if nothing else has changed.
            found = error
        version = before.version
        if version == target.state(spark, None).history.version:
            if not is_named and not _is_of(spark, target, ledger, app_id):
                theirs = next(iter(claimed.values()))
                raise ConfigError(
                    f"checkpoint={checkpoint!r} belongs to table {theirs}, and table {target} has no rows of its "
                    f"query: name {theirs}"
                )
            if version == NO_VERSION:
                _check_kept(spark, target, ledger, app_id, checkpoint)
            if found is not None:
                raise found
            if known < committed:
                raise missing(checkpoint, place.uri, known, committed)
            if version != NO_VERSION:
                _check_newest(spark, target, ledger, app_id, version)
            return ledger, _waiting(spark, target, ledger, app_id, version), version
    raise StagingError(f"table {target} changed {TRIES} times while its staged rows were read: try again")


def _check_kept(spark: SparkSession, target: Target, ledger: Ledger, app_id: str, checkpoint: str) -> None:
    """Raise TableLostError if the query has made drains to a table that is not there."""
    drains = ledger.next_drain - (not ledger.is_done)
    if drains and target.table:
        check_name(spark, target.table, drains, app_id)
    ledger.names = Names(checkpoint, table=str(target), app_id=app_id)
    TableTruth().compare(ledger, target.state(spark, None))


def _check_newest(spark: SparkSession, target: Target, ledger: Ledger, app_id: str, version: int) -> None:
    """Raise StagingError if the table has a later drain than the log: rows that are staged here may be in it, too.

    Raises TableLostError if the table was restored to before the last drain.
    """
    if ledger.schema is None:
        return  # Nothing was staged.
    known, since = -1, StagedColumns.of(ledger.schema).version
    if ledger.intent is not None:
        known, since = ledger.intent.number, ledger.intent.base_version
    history = target.history(spark, since).up_to(version)
    check_kept(Names(table=str(target)), ledger.table_version, history)
    drains, _ = drains_in(history, app_id)
    if max(drains, default=known) > known:
        raise StagingError(
            f"table {target} has drain {max(drains)} of the query, and the checkpoint's staging log ends at drain "
            f"{known}: the rows staged there may be in the table already. If the checkpoint was moved (spark-purgatory "
            "move), name the new one. Otherwise bring its folder 'staging' back from a copy"
        )


def _is_of(spark: SparkSession, target: Target, ledger: Ledger, app_id: str) -> bool:
    facts = target.facts(spark)
    if facts is None or ledger.table_id is not None:
        return facts is not None and facts.id == ledger.table_id
    return ledger.intent is not None and bool(target.history(spark, ledger.intent.base_version).drains(app_id))


def _waiting(spark: SparkSession, target: Target, ledger: Ledger, app_id: str, version: int) -> list[Piece]:
    """Return the staged pieces that a version of the table lacks. StagingError if that cannot be known."""
    intent, staged = ledger.intent, [*ledger.pieces.values()]
    if intent is None or (ledger.is_done and version != NO_VERSION):
        return staged
    if version != NO_VERSION:
        history = target.history(spark, intent.base_version)
        if intent.number in drains_in(history.up_to(version), app_id)[0]:
            return staged
        if intent.number not in history.drains(app_id) and not history.is_whole_since(intent.base_version):
            raise StagingError(
                f"the history of table {target} was cut after drain {intent.number} began, so it does not show whether "
                "the drain's rows are in the table. Start the query, which finishes the drain. Then read again"
            )
    return [*intent.taken, *staged]
