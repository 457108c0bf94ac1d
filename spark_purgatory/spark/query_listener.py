"""A listener that receives Spark's report of a micro-batch in one call.

PySpark asks the JVM for each number of a report separately, and each map of it ends with an exception whose class is
looked for in all jars. That takes 160 to 200 ms of a driver with two cores, for each listener and micro-batch. The same
report as JSON, which is how `StreamingQuery.lastProgress` reads it, takes 1 to 2 ms.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryProgressEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)


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
