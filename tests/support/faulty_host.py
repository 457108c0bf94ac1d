"""A log host to which something happens at named places: its worker is killed, the holder's is, or the task fails.

Faults are files ``NUMBER ACTION FAILPOINT`` in a folder, taken in the order of their names, one in a micro-batch; but a
shard that is loaded after a fault may fail again.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from pyspark import TaskContext

from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state import shard_head
from spark_purgatory.spark.host.log_host import LogHost, LogHostOptions

ACTIONS = ("kill", "fail", "kill the holder")


class PlannedFaultError(Exception):
    """A task fails because the plan says so."""


class FaultyHost(LogHost):
    """`LogHost` with a plan; shards are saved anew every few entries."""

    def __init__(self, spec: EngineSpec, options: LogHostOptions, *, plan: str) -> None:
        super().__init__(spec, options)
        self._plan = plan

    def reached(self, failpoint: str) -> None:
        """Do what the plan says next, if it says it of this failpoint and nothing was done in this micro-batch."""
        shard_head.LOG_ENTRIES = (2, 4)
        planned = sorted(Path(self._plan).glob("[0-9]*"))
        if not planned or not planned[0].name.endswith(f" {failpoint}"):
            return
        context = TaskContext.get()
        assert context is not None
        batch = context.getLocalProperty("streaming.sql.batchId")
        action = planned[0].name.split(" ", 1)[1].removesuffix(f" {failpoint}")
        if action == "kill the holder" and not self._holder():
            return
        try:
            Path(self._plan, f"done in {batch}").touch(exist_ok=False)
        except FileExistsError:
            # A shard is loaded where something happened before: its second fault is in the same micro-batch.
            if failpoint != "after load":
                return
        planned[0].unlink()
        if action == "fail":
            raise PlannedFaultError(failpoint)
        os.kill(os.getpid() if action == "kill" else self._holder(), signal.SIGKILL)

    def _holder(self) -> int:
        """The process that the shard's head names, 0 where it names none."""
        stored = self._head.get()
        address = "" if stored is None else shard_head.read_head(bytes(stored[0])).holder
        found = re.search(r"/(\d+)-\w+\.socket$", address)
        return int(found[1]) if found is not None else 0
