"""A listener to which Spark's report of a micro-batch comes in one call.

PySpark asks the JVM for each number of a report by itself. Every map of it then ends with an exception, and PySpark
looks for the class of that in all jars: 160 to 200 ms of a driver with two cores, for each listener and micro-batch. As
JSON, which is how `StreamingQuery.lastProgress` reads it, the same report takes 1 to 2 ms.
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
    """A `StreamingQueryListener` that hears of no more than a subclass asks for; under Spark Connect it is the same."""

    def onQueryStarted(self, event: Any) -> None:
        """A query has started."""

    def onQueryProgress(self, event: Any) -> None:
        """A micro-batch has ended, or there was nothing to do for a while."""

    def onQueryIdle(self, event: Any) -> None:
        """There was nothing to do for a while."""

    def onQueryTerminated(self, event: Any) -> None:
        """A query has ended."""

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
