"""How a query with a sink ends, and who may bring its rows to the table then."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_purgatory import metrics, monitor
from spark_purgatory.cli import app
from spark_purgatory.errors import ForeignWriterError, StorageError
from spark_purgatory.spark.sink.drain import actions
from spark_purgatory.spark.sink.drain.sender import Sender, SparkActions
from tests.support.children import until
from tests.support.sink_queries import HOUR, accumulator, staged_files, start, wait_until
from tests.support.sink_streams import Stream, every


@pytest.mark.long
def test_is_active_drains_nothing_and_a_drain_that_failed_at_the_end_is_asked_for_again(stream: Stream) -> None:
    stream.add(2)
    sink = accumulator(stream, **HOUR, max_block="1 second", retry_backoff="100 milliseconds")
    query = sink.write_stream(stream.rows(), checkpoint=str(stream.checkpoint), trigger={"availableNow": True})
    samples = list[metrics.Sample]()
    monitor(query, samples.append)
    wait_until(lambda: not query.isActive, query)
    assert not query.isActive
    assert repr(query) == f"<AccumulatorQuery: query into {stream.folder / 'table'} has ended>"
    assert not sink.table_exists(stream.spark), "reading isActive writes nothing"
    foreign = stream.spark.range(0).selectExpr("id AS part", "id AS other").write.format("delta")
    foreign.partitionBy("part").save(str(stream.folder / "table"))
    for _ in range(2):
        with pytest.raises(StorageError, match="lacks n"):
            query.awaitTermination()
        assert not query.isActive
    assert staged_files(stream)
    stream.spark.sql(f"ALTER TABLE delta.`{stream.folder / 'table'}` ADD COLUMNS (n bigint)")
    assert query.awaitTermination(10)
    assert stream.numbers() == every(2)
    query.awaitTermination()
    assert stream.numbers() == every(2), "what is there is not brought again"
    told = samples[-1].flat()
    assert (told["drains_total"], told["drained_rows_total"], told["draining_rows"]) == (1, 20, 0)


def test_micro_batches_go_on_beside_a_drain(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = SparkActions.commit

    def held(self: SparkActions, *given: Any) -> Any:
        until((stream.checkpoint / "commits" / "1").exists)
        return commit(self, *given)

    monkeypatch.setattr(SparkActions, "commit", held)
    accumulator(stream, linger="0 seconds")
    assert stream.add(2).run(stream.rows()).numbers() == every(2)


@pytest.mark.long
def test_an_accumulator_whose_checkpoint_another_run_goes_on_with_drains_nothing(stream: Stream) -> None:
    stream.add(1)
    first = start(stream, accumulator(stream, **HOUR))
    wait_until(lambda: bool(first.metrics().get("staged_bytes")), first)
    old = stream.sink
    stream.add(1)
    second = start(stream, accumulator(stream, **HOUR))
    second.processAllAvailable()
    assert not first.isActive, "Spark has stopped it"
    with pytest.raises(ForeignWriterError, match=f"is used by query run {second.runId} now"):
        old.close()
    assert not stream.sink.table_exists(stream.spark)
    stream.sink.close()
    assert stream.numbers() == every(2)
    old.close()
    assert stream.numbers() == every(2), "it knows what the other run has brought"
    assert stream.add(1).run(stream.rows()).numbers() == every(3)


def two_intents(stream: Stream) -> None:
    """A checkpoint in which two runs have made intent 0, and one has committed it."""
    stream.add(1)
    query = start(stream, accumulator(stream, **HOUR))
    wait_until(lambda: (stream.checkpoint / "commits" / "0").exists(), query)
    query.stop()
    twin = Sender(stream.sink.options, str(stream.checkpoint))

    class Died(Exception):
        pass

    def hook(name: str) -> None:
        if name == "before intend":
            actions.hook = dies
            with suppress(Died):
                twin.drain(stream.spark)
            actions.hook = None

    def dies(name: str) -> None:
        if name == "after commit":
            raise Died

    actions.hook = hook
    try:
        with pytest.raises(ForeignWriterError, match=r"two different entries 'intent=0', log/.* and log/"):
            query.flush()
    finally:
        actions.hook = None


@pytest.mark.long
def test_the_command_shows_asks_and_does_it(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    two_intents(stream)
    monkeypatch.setattr("spark_purgatory.job.commands.reading_session", lambda *given, **more: stream.spark)

    def command(*options: str) -> Any:
        result = CliRunner().invoke(app, ["repair", str(stream.checkpoint), *options])
        assert result.exit_code == 0, result.output
        return result.output

    assert "is the true entry" in (said := command("--dry-run")) and "Nothing was changed" in said
    assert "Removed what is not true" in command("--yes")
    assert "there is nothing to repair" in command("--dry-run")
    assert stream.add(1).run(stream.rows()).numbers() == every(2)
