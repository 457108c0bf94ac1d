"""`spark-purgatory run` as a process that tests start, kill and start again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.support.children import ROOT

WAIT_S = 600


class JobProcess:
    """A job's file and the process that runs it; what it prints is in ``job.log`` beside the file."""

    def __init__(
        self,
        file: Path,
        checkpoint: Path,
        command: Sequence[str] = (sys.executable, "-m", "spark_purgatory", "run"),
        environment: Mapping[str, str] | None = None,
        folder: Path = ROOT,
    ) -> None:
        self.file = file
        self.log = file.with_name("job.log")
        self._commits = checkpoint / "commits"
        self._command = [*command, str(file)]
        ours = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
        self._environment = {**os.environ, **ours, **(environment or {})}
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, *arguments],
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self) -> None:
        """End it with all its children, as a power cut would."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def last_commit(self) -> int:
        """The last micro-batch that its query has committed; -1 before the first."""
        return max((int(path.name) for path in self._commits.glob("[0-9]*")), default=-1)

    def wait_until(self, condition: Callable[[], bool]) -> JobProcess:
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            assert self.is_alive(), f"the job ended:\n{self.said()}"
            assert time.monotonic() < deadline_s, f"not so in {WAIT_S} s:\n{self.said()}"
            time.sleep(0.02)
        return self

    def wait_for_commit(self, number: int) -> None:
        self.wait_until(lambda: self.last_commit() >= number)

    def terminate(self, whole_group: bool = False) -> int:
        """SIGTERM to it, or to all its children as well; how it ends."""
        assert self._process is not None
        (os.killpg if whole_group else os.kill)(self._process.pid, signal.SIGTERM)
        return self.exit_code()

    def run_to_the_end(self, *arguments: str) -> None:
        """Read all that is there, and end well."""
        self.start("--set", "trigger={availableNow: true}", *arguments)
        assert self._process is not None
        code = self._process.wait(2 * WAIT_S)
        assert code == 0, self.said()

    def exit_code(self, seconds: float = WAIT_S) -> int:
        assert self._process is not None
        return self._process.wait(seconds)

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-4000:]
