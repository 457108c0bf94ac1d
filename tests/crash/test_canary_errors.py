"""Every error and log line that the sink can make, made to fail with canaries of each type in the rows: none is shown.

Spark's own log is not looked at: Delta writes the row that a constraint refuses into it before anybody else sees it.
"""

from __future__ import annotations

import logging
import shutil
import traceback
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_purgatory import RecordAccumulator
from tests.support.now_and_then import each_commit
from tests.support.sink_queries import HOUR, staged_files, start, wait_until
from tests.support.sink_streams import ROWS_A_FILE, Stream

MARK = "kanarie"
CANARIES = (MARK, "7712338", "7712-03-08", MARK.encode().hex(), "O'Brien", "Brien", "KANARIE_7F3A")
SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "l": pa.int64(),
        "d": pa.float64(),
        "de": pa.decimal128(9, 2),
        "text": pa.string(),
        "da": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
        "raw": pa.binary(),
        "st": pa.struct({"s": pa.string()}),
        "ar": pa.list_(pa.string()),
        "m": pa.map_(pa.string(), pa.int32()),
        "p": pa.string(),
    }
)
DDL = """n bigint, l bigint, d double, de decimal(9, 2), text string, da date, at timestamp, raw binary,
    st struct<s: string>, ar array<string>, m map<string, int>, p string"""
SHORT = {"linger": "1 second", "delivery_timeout": "1 second", "retry_backoff": "200 ms", "max_block": "1 second"}


def canaries(n: int) -> dict[str, Any]:
    """A row; its values are in no plan, so Spark's own errors about a query do not show them."""
    return {
        "n": n,
        "l": 7712338561123 + n,
        "d": 7712338561.5,
        "de": Decimal("7712338.56"),
        "text": f"{MARK}'O'Brien \"7f3a\" {n}",
        "da": date(7712, 3, 8),
        "at": datetime(7712, 3, 8, 5, 6, 7, 712338, tzinfo=UTC),
        "raw": MARK.encode(),
        "st": {"s": MARK},
        "ar": [MARK, "[KANARIE_7F3A] x"],
        "m": [(MARK, 7712338)],
        "p": f"{MARK}=7f3a {n % 2}",
    }


class CanaryStream(Stream):
    """Files of canaries."""

    def add(self, files: int) -> Stream:
        first = self.files
        super().add(files)
        for file in range(first, self.files):
            rows = [canaries(file * ROWS_A_FILE + n) for n in range(ROWS_A_FILE)]
            pq.write_table(pa.Table.from_pylist(rows, SCHEMA), self.folder / "in" / f"{file:03d}.parquet")
        return self


class Scene:
    """A stream of canaries, and all that the sink has told of it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.stream = CanaryStream(spark, folder).add(1)
        self.table = folder / "table"
        self.told: list[str] = []

    def rows(self) -> DataFrame:
        reader = self.stream.spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.stream.folder / "in"))

    def sql(self, statement: str) -> None:
        self.stream.spark.sql(statement.replace("TABLE t ", f"TABLE delta.`{self.table}` "))

    def run(self, **options: Any) -> BaseException | None:
        """The stream over what there is; what ended it, if it was an error."""
        partition_by = () if self.table.exists() and any(self.table.iterdir()) else ("p",)
        sink = RecordAccumulator(path=str(self.table), partition_by=partition_by, on_delivery=self._heard, **options)
        query = None
        try:
            trigger = {"availableNow": True}
            query = sink.write_stream(self.rows(), checkpoint=str(self.stream.checkpoint), trigger=trigger)
            query.awaitTermination()
        except Exception as error:
            self.told += traceback.format_exception(error)
            return error
        finally:
            if query is not None:
                self.told += [str(query.exception()), str(query.recentProgress)]
        return None

    def _heard(self, delivery: object, error: BaseException | None) -> None:
        self.told += [str(delivery)] if error is None else traceback.format_exception(error)

    def staged(self) -> list[Path]:
        return staged_files(self.stream)

    def stage(self) -> None:
        """Rows that wait, of a query that was stopped."""
        sink = RecordAccumulator(path=str(self.table), partition_by="p", **HOUR)
        query = start(self.stream, sink, self.rows())
        wait_until(lambda: bool(self.staged()), query)
        query.stop()


def a_check(scene: Scene, **options: Any) -> str:
    scene.run()
    few = f"n < {ROWS_A_FILE} OR l < 0 OR text IS NULL OR d < 0 OR de < 0 OR m IS NULL"
    scene.sql(f"ALTER TABLE t ADD CONSTRAINT few CHECK ({few})")
    scene.stream.add(1)
    scene.run(**{**SHORT, **options})
    return "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES"


def a_partition_folder_that_cannot_be_made(scene: Scene) -> str:
    scene.run()
    for folder in scene.table.glob("p=*"):
        shutil.rmtree(folder)
        folder.touch()
    scene.stream.add(1)
    scene.run(**SHORT)
    return "p=..."


def a_row_too_large(scene: Scene) -> str:
    scene.run(batch_size="1 byte", buffer_memory="100 bytes")
    return "is larger than the whole buffer_memory"


def a_staged_row_that_was_changed(scene: Scene) -> str:
    scene.stage()
    file = scene.staged()[0]
    rows = pq.ParquetFile(file).read()
    changed = pa.array([f"{MARK} {n}" for n in range(rows.num_rows)])
    file.with_name(f".{file.name}.crc").unlink()
    pq.write_table(rows.set_column(rows.schema.get_field_index("text"), "text", changed), file)
    scene.run()
    return "the values of a row differ from their hash"


def a_log_entry_that_is_damaged(scene: Scene) -> str:
    scene.stage()
    entry = next(path for path in (scene.stream.checkpoint / "staging" / "log").rglob("schema=*") if path.is_file())
    entry.write_text(entry.read_text().replace("l", "k"))
    scene.run()
    return "StagingError"


def a_column_of_another_type(scene: Scene) -> str:
    scene.run()
    rows = scene.rows
    scene.rows = lambda: rows().selectExpr("* EXCEPT (l)", "CAST(l AS string) AS l")  # type: ignore[method-assign]
    scene.stream.add(1)
    scene.run()
    return "has other types for l (string, in the table bigint)"


SCENES: list[Callable[[Scene], str]] = [
    a_check,
    a_partition_folder_that_cannot_be_made,
    a_row_too_large,
    a_staged_row_that_was_changed,
    a_log_entry_that_is_damaged,
    a_column_of_another_type,
]


@pytest.mark.parametrize(
    "play",
    each_commit(SCENES, lambda play: play is a_row_too_large),
    ids=lambda play: play.__name__,
)
def test_no_error_and_no_log_line_of_the_sink_shows_a_row(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, play: Callable[[Scene], str]
) -> None:
    scene = Scene(spark, tmp_path)
    with caplog.at_level(logging.DEBUG, logger="spark_purgatory"):
        expected = play(scene)
    log = [logging.Formatter().format(record) for record in caplog.records if "purgatory" in record.name]
    told = "\n".join([*scene.told, *log])
    assert expected in told, told[-3000:]
    leaks = [line for line in told.splitlines() if any(canary in line for canary in CANARIES)]
    assert not leaks, leaks[:5]
