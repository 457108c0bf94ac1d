"""A listener that receives Spark's report of a micro-batch in one call.

PySpark asks the JVM for each number of a report separately, and for each map the JVM looks for the class of an
exception in all jars. That takes 160 to 200 ms of a driver with two cores, for each listener and micro-batch. The same
report as JSON, which is how `StreamingQuery.lastProgress` reads it, takes 1 to 2 ms.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryProgressEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

LOG = logging.getLogger(__name__)


class QueryListener(StreamingQueryListener):
    """A `StreamingQueryListener` whose subclasses override only the calls they need, under Spark Connect too."""

    def _ignore(self, event: Any) -> None:
        pass

    onQueryStarted = onQueryProgress = onQueryTerminated = _ignore

    @property
    def _jlistener(self) -> Any:
        from pyspark import SparkContext  # the client of Spark Connect has none

        if not hasattr(self, "_jlistenerobj"):
            jvm: Any = SparkContext._jvm
            self._jlistenerobj = jvm.PythonStreamingQueryListenerWrapper(_InOneCall(self))
        return self._jlistenerobj


class _InOneCall(JStreamingQueryListener):
    def onQueryProgress(self, jevent: Any) -> None:
        report = json.loads(jevent.progress().json())
        self.pylistener.onQueryProgress(QueryProgressEvent(StreamingQueryProgress.fromJson(report)))


class BatchListener:
    """Spark's ``QueryExecutionListener``, which it calls after each action on a batch."""

    PREFIX: ClassVar[str] = "spark_purgatory batch "
    """The beginning of the names under which batches are observed; the plan of one action may have several."""
    Java = type("Java", (), {"implements": ("org.apache.spark.sql.util.QueryExecutionListener",)})

    def listen(self, spark: SparkSession) -> None:
        """Listen to the actions of a session from now on."""
        from py4j.protocol import Py4JError  # the client of Spark Connect has none
        from pyspark import SparkContext
        from pyspark.java_gateway import ensure_callback_server_started

        gateway: Any = SparkContext._gateway
        ensure_callback_server_started(gateway)
        try:
            spark._jsparkSession.listenerManager().register(self)
        except Py4JError:
            LOG.debug("the platform does not allow a listener: batches are not watched", exc_info=True)

    def on_batch(self, name: str, observed: Mapping[str, Any]) -> None:
        """Take the end of an action whose plan is observed under a name of ours."""

    def onSuccess(self, function: str, execution: Any, duration_ns: int) -> None:
        """Find what was observed for us."""
        observed = execution.observedMetrics()
        for name in observed.keySet().mkString("\n").split("\n"):
            if name.startswith(self.PREFIX):
                self.on_batch(name, json.loads(observed.apply(name).json()))

    def onFailure(self, function: str, execution: Any, exception: Any) -> None:
        """Do nothing: Spark raises the error itself."""
