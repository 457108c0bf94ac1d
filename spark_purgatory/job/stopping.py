"""A job stops by a signal to its own process, or by one to Spark's JVM.

Under ``spark-submit`` the JVM is the parent: SIGTERM reaches it alone, or both if it is sent to the process group. A
JVM ends at once and takes the query with it. So the job adds a shutdown hook to Hadoop's list, before Spark's own: it
waits for the job.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started

BEFORE_SPARK = 1000  # The priority; Spark's own are below 60
PATIENCE_SECONDS = 3600  # The JVM waits for us so long: a drain may be large. SIGKILL ends it at once
SHOW_CURSOR = "\x1b[?25h"
LOG = logging.getLogger(__name__)


class StopRequest:
    """A request to stop the job, and its signal."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.event = threading.Event()
        self.jvm_ends = False  # It got a signal of its own.
        self._stopped = threading.Event()

    def listen(self) -> None:
        """Handle SIGTERM and ctrl-C. PySpark's own handler of ctrl-C cancels jobs and raises."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            # At once, since a thread may wait for the JVM. The live view has hidden the cursor.
            shows = SHOW_CURSOR if sys.stdout.isatty() else ""
            line = "Cut by a second ctrl-C. Nothing is lost: a rerun continues from the checkpoint."
            os.write(1, f"{shows}\n{line}\n".encode())
            os._exit(128 + number)
        self.signal = number
        self.event.set()

    @contextmanager
    def heard_by_the_jvm(self) -> Iterator[None]:
        """Make a JVM that gets a signal within this context wait for the job."""
        gateway = SparkContext._gateway
        assert gateway is not None, "bug: the job has a session with a JVM"
        ensure_callback_server_started(gateway)
        jvm = gateway.jvm
        hooks = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
        # A thread that is never started: the JVM's own object around ours, which makes the hook removable.
        hook = jvm.java.lang.Thread(self)
        hooks.addShutdownHook(hook, BEFORE_SPARK, PATIENCE_SECONDS, jvm.java.util.concurrent.TimeUnit.SECONDS)
        try:
            yield
        finally:
            self._stopped.set()
            if not self.jvm_ends:  # py4j would log what it answers.
                try:
                    hooks.removeShutdownHook(hook)
                except (Py4JError, OSError):
                    LOG.debug("the JVM has ended or is ending", exc_info=True)

    def run(self) -> None:
        """Ask for the stop, as SIGTERM does, and wait for it. The ending JVM calls it by py4j's callback server."""
        self.signal, self.jvm_ends = self.signal or signal.SIGTERM, True
        self.event.set()
        self._stopped.wait(PATIENCE_SECONDS)

    class Java:
        """The interface that py4j needs."""

        implements = ("java.lang.Runnable",)
