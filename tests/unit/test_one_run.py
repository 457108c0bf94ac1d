"""Two runs of a job on one checkpoint: the second is refused before it costs anything, or waits."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from spark_purgatory.job.one_run import only_run
from spark_purgatory.job.run_report import ExitCode
from spark_purgatory.job.runner import run_file


def test_a_second_run_is_refused_and_its_report_has_the_last_micro_batch(tmp_path: Path) -> None:
    (tmp_path / "commits").mkdir()
    for name in ("metadata", "commits/8", "commits/9", "commits/10"):
        (tmp_path / name).touch()
    job = Path(__file__).parents[2] / "conf" / "orders.yaml"
    with only_run(str(tmp_path)):
        code = run_file(job, [f"checkpoint={tmp_path}"], json=str(tmp_path / "run.json"))
        assert code == ExitCode.REFUSED
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts["last_micro_batch"] == 10
    assert facts["error"].startswith(f"checkpoint {tmp_path} is used by another run of the job")


def test_a_second_run_waits_if_it_may(tmp_path: Path) -> None:
    (tmp_path / "metadata").touch()
    began, ended = threading.Event(), []

    def second() -> None:
        began.set()
        with only_run(str(tmp_path), "1 hour"):
            ended.append("second")

    thread = threading.Thread(target=second)
    with only_run(str(tmp_path)):
        thread.start()
        began.wait()
        ended.append("first")
    thread.join()
    assert ended == ["first", "second"]
