"""`doctor`: what is right is ok, and what was broken on purpose is found, with a remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_purgatory.core.state.frame import HEADER_BYTES
from spark_purgatory.core.state.step_log import ShardState
from spark_purgatory.doctor.machine import Finding
from spark_purgatory.doctor.session import (
    _about_state,
    checkpoint_findings,
    package_finding,
    protobuf_finding,
    query_findings,
    session_findings,
)
from spark_purgatory.errors import StagingError, StateCorruptError
from spark_purgatory.spark.storage.spark_access import settings
from tests.support.golden_states import GOLDEN
from tests.support.sink_streams import Stream
from tests.support.stream_rows import event, operation, purgatory
from tests.support.streams import Landing

ROOT = Path(__file__).resolve().parents[2]


def by_name(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.what: finding for finding in findings}


def wrong(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.what: finding for finding in findings if finding.remedy}


def doctor(*arguments: str, **environment: str) -> tuple[int, dict[str, dict[str, Any]]]:
    command = [sys.executable, "-m", "spark_purgatory", "doctor", "--json", *arguments]
    given = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=given, check=False)
    assert "Traceback" not in ran.stderr, ran.stderr
    report = json.loads(ran.stdout)
    assert report["ok"] == (ran.returncode == 0)
    return ran.returncode, {finding["what"]: finding for finding in report["findings"]}


def rewrite(file: Path, text: bytes) -> None:
    """Other bytes, without Hadoop's checksum of the former."""
    file.write_bytes(text)
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)


# --- a session ------------------------------------------------------------------------------------


@pytest.mark.blob_host
def test_a_session_that_is_right_has_nothing_to_be_done(spark: SparkSession) -> None:
    found = by_name(session_findings(spark))
    assert wrong(found.values()) == {}
    assert found["Delta"].found == "in this session"
    assert found["workers' spark_purgatory"].status == "ok"
    assert found["state store"].status == "ok"


def test_a_setting_that_does_harm_is_found(spark: SparkSession) -> None:
    with settings(spark, {"spark.sql.streaming.stateStore.providerClass": "org.example.OtherProvider"}):
        assert set(wrong(session_findings(spark))) == {"state store"}


@pytest.mark.long
@pytest.mark.spark
def test_a_worker_without_the_packages_says_which_and_what_to_do(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    bare = str(tmp_path / "bare" / "bin" / "python")
    code, found = doctor("--spark", "--conf", "spark.master=local[1]", PYSPARK_PYTHON=bare, PYTHONPATH=str(ROOT))
    assert code == 1
    assert found["PYSPARK_PYTHON"]["status"] == "NO"
    told = [finding for name, finding in found.items() if name.startswith("workers") and finding["status"] == "NO"]
    assert told and all("docs/shipping.md" in finding["remedy"] for finding in told)
    assert any("pyarrow" in finding["found"] + finding["remedy"] + finding["what"] for finding in told)
    assert found["Delta"]["status"] == "ok"


@pytest.mark.spark
@pytest.mark.long
def test_jars_that_are_asked_for_come_beside_deltas_and_a_missing_one_is_no_damage(tmp_path: Path) -> None:
    """Delta's own package once replaced those of ``--conf``; a checkpoint whose jar is missing is not to be left."""
    asked = "spark.jars.packages=org.apache.commons:commons-csv:1.14.1"
    command = [sys.executable, "-m", "spark_purgatory", "status", "s3a://b/c", "--spark"]
    command += ["--conf", "spark.master=local[1]", "--conf", asked]
    ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    log = max(Path(tempfile.gettempdir()).glob("spark_purgatory_*/spark.log"), key=os.path.getmtime)
    assert "found org.apache.commons#commons-csv;1.14.1" in log.read_text()
    shown = " ".join(ran.stdout.split())
    assert ran.returncode == 1, ran.stderr
    assert "S3AFileSystem not found -> give the session what its storage needs: jars (spark.jars.packages)" in shown
    assert "new checkpoint" not in shown


def test_another_version_of_a_package_is_found() -> None:
    assert package_finding("numpy", "2.4.6", {"2.4.6"}).status == "ok"
    other = package_finding("numpy", "2.4.6", {"2.4.6", "not installed"})
    assert other.found == "2.4.6, not installed; this process has 2.4.6"
    assert other.remedy.startswith("have numpy 2.4.6 in every worker's environment")


def test_workers_without_protobuf_are_noted_for_the_host_that_needs_it() -> None:
    assert protobuf_finding({"fits"}).status == "ok"
    lacking = protobuf_finding({"fits", "not installed"})
    assert lacking.status == "note" and "transformWithState" in lacking.found and "pip install" in lacking.found


# --- a checkpoint ---------------------------------------------------------------------------------


@pytest.fixture
def landing(spark: SparkSession, tmp_path: Path) -> Landing:
    made = Landing(tmp_path)
    made.add([operation(f"o{i}", deadline=300) for i in range(20)], [event("o1", 1)])
    made.add([operation("late", 40, 300)], [event("o2", 40)])
    made.run(spark, purgatory())
    return made


@pytest.mark.long
def test_a_checkpoint_that_is_right_says_where_the_query_stands(spark: SparkSession, landing: Landing) -> None:
    found = by_name(checkpoint_findings(spark, str(landing.checkpoint)))
    assert wrong(found.values()) == {}
    assert "is committed; host='applyInPandasWithState'" in found["checkpoint"].found
    assert found["shards"].found == "shards=3; 3 have a state"
    assert found["pending"].found == "19 operations"


def test_a_state_with_a_changed_bit_says_so() -> None:
    blob = bytearray(GOLDEN.read_bytes())
    assert len(list(_about_state(ShardState(bytes(blob))))) == 1
    blob[HEADER_BYTES + 9] ^= 4
    with pytest.raises(StateCorruptError, match="does not match its checksum"):
        list(_about_state(ShardState(bytes(blob))))


# --- a query and its table ------------------------------------------------------------------------


@pytest.mark.long
def test_a_query_and_its_table_are_right_until_one_is_damaged_forgets_or_is_restored(
    spark: SparkSession, stream: Stream
) -> None:
    path, checkpoint = stream.folder / "table", str(stream.checkpoint)
    stream.add(2).run(stream.rows())

    def found() -> dict[str, Finding]:
        return by_name(query_findings(spark, checkpoint))

    assert wrong(found().values()) == {}
    assert found()["checkpoint"].status == "note", "this query has a sink and no purgatory"
    assert found()["table and checkpoint"].found == "fit: 1 drain, the last complete"
    (claim,) = (stream.checkpoint / "staging" / "table").glob("part-*")
    whole = claim.read_bytes()
    for damaged in (b'{"path": "/l', b'["path"]', b'{"path": 1, "other": 2}'):
        rewrite(claim, damaged)
        assert "staging/table should name the table" in found()["table of the checkpoint"].found
        assert found()["table of the checkpoint"].remedy.startswith("bring back the checkpoint's folder `staging`")
        with pytest.raises(StagingError, match=r"should name the table of the checkpoint but is damaged: '."):
            stream.sink.read(spark, staged=True, checkpoint=checkpoint)
    rewrite(claim, whole)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.setTransactionRetentionDuration' = '1 day')")
    assert "UNSET TBLPROPERTIES" in found()["table"].remedy
    spark.sql(f"ALTER TABLE delta.`{path}` UNSET TBLPROPERTIES ('delta.setTransactionRetentionDuration')")
    stream.add(1).run(stream.rows())
    assert wrong(found().values()) == {}
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 0")
    assert found()["table and checkpoint"].found == "TableLostError"
