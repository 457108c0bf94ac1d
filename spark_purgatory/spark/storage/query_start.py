"""The start of a query with settings that the user's session does not have, and never gets.

Spark runs a query in a copy of the session that it makes at the start. A listener receives the query between the two,
before Spark has read a setting of the copy, and sets them there. Only the logs of offsets and commits are older, and
are made again.

Where Spark does not show the copy (Spark Connect, a vendor's Spark), the settings are in the user's session for the
moment of the start. Then queries start one after the other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, is_remote
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_purgatory.errors import START_OVER, ConfigError
from spark_purgatory.spark.query_listener import QueryListener
from spark_purgatory.spark.storage.spark_access import FORMAT_VERSION, setting_of, settings

LOG = logging.getLogger(__name__)
LOGS = ("checkpointMetadata",), ("offsetLog", "commitLog")
"""Fields of Spark's ``StreamExecution`` with the logs: since Spark 4.1, and in Spark 4.0."""
Decide = Callable[[], Mapping[str, str]]


def started(
    writer: DataStreamWriter,
    spark: SparkSession,
    checkpoint: str,
    *,
    decide: Decide,
    forced: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start a query with settings of its own.

    ``decide`` returns those that it gets where the session has chosen none, or refuses to have one. The format of a
    checkpoint and the ``forced`` ones replace the session's. Raises ConfigError if a new checkpoint began without them.
    """
    writer = writer.option("checkpointLocation", checkpoint)
    if _Starting.works and not is_remote():
        listener = _Starting(spark, checkpoint, _chosen(spark, decide(), forced))
        spark.streams.addListener(listener)
        try:
            query = writer.start()
        finally:
            spark.streams.removeListener(listener)
        if listener.is_done:
            return query
        query.stop()
        _Starting.works = False
        LOG.debug("this Spark does not show a query's session: %s", listener.fault)
        if listener.is_new and listener.has_begun():
            raise ConfigError(
                f"checkpoint={checkpoint!r} began with the session's settings, which it keeps, and without those of "
                f"its query, because this Spark does not show a query's session ({listener.fault}). The query was "
                f"stopped. The next start sets them in another way: {START_OVER}"
            )
    with _starting:
        chosen = _chosen(spark, decide(), forced)
        refused = {name for name in chosen.keys() - (forced or {}).keys() if not _takes(spark, name, chosen[name])}
        with settings(spark, {name: value for name, value in chosen.items() if name not in refused}):
            return writer.start()


def _chosen(spark: SparkSession, wanted: Mapping[str, str], forced: Mapping[str, str] | None) -> dict[str, str]:
    free = {name: value for name, value in wanted.items() if name == FORMAT_VERSION or not setting_of(spark, name)}
    return free | dict(forced or {})


def _takes(spark: SparkSession, name: str, value: str) -> bool:
    try:
        with settings(spark, {name: value}):
            return True
    except PySparkException:
        return False


class _Starting(QueryListener):
    """Sets the settings of one query that starts. Spark waits for it before the query goes on."""

    works = True  # False once Spark has not shown a query's session

    def __init__(self, spark: SparkSession, checkpoint: str, wanted: Mapping[str, str]) -> None:
        self.is_done, self.fault = False, "it was not called"
        self._spark, self._wanted = cast("Any", spark), wanted
        path = self._spark._jvm.org.apache.hadoop.fs.Path(checkpoint)
        conf = self._spark._jsparkSession.sessionState().newHadoopConf()
        self._files = path.getFileSystem(conf)
        self._root = self._files.makeQualified(path)
        self.is_new = not self.has_begun()

    def onQueryStarted(self, event: Any) -> None:
        """Change the query's own session, if it is the query of our checkpoint; end the query if that fails."""
        query = self._spark._jsparkSession.streams().get(str(event.id))
        if query is None or self.is_done:
            return
        try:
            execution = query.streamingQuery()
            if not self._root.equals(self._spark._jvm.org.apache.hadoop.fs.Path(execution.resolvedCheckpointRoot())):
                return
            session = execution.sparkSessionForStream()
            for name, value in self._wanted.items():
                with suppress(Exception):  # A setting that Spark refuses is the platform's.
                    session.conf().set(name, value)
            self._renew_logs(execution, session)
            self.is_done = True
        except Exception as error:
            self.fault = repr(error)
            # It would wait for this call. The query ends before its first micro-batch once it has noted its end.
            threading.Thread(target=query.stop, daemon=True).start()
            while query.isActive():
                time.sleep(0.01)

    def has_begun(self) -> bool:
        """Return True if the checkpoint has a micro-batch, and with it settings that it keeps."""
        return bool(self._files.exists(self._spark._jvm.org.apache.hadoop.fs.Path(self._root, "offsets/0")))

    def _renew_logs(self, execution: Any, session: Any) -> None:
        kind = execution.getClass()
        while kind.getSimpleName() != "StreamExecution":
            kind = kind.getSuperclass()
        known = {each.getName(): each for each in kind.getDeclaredFields()}
        for name in next(names for names in LOGS if names[0] in known):
            log = known[name]
            log.setAccessible(True)
            before = log.get(execution)
            path = execution.resolvedCheckpointRoot() if name == LOGS[0][0] else before.metadataPath().toString()
            make = before.getClass().getConstructors()[0]
            given = [session, path, False][: make.getParameterCount()]
            gateway = self._spark._sc._gateway
            arguments = gateway.new_array(gateway.jvm.java.lang.Object, len(given))
            for at, argument in enumerate(given):
                arguments[at] = argument
            log.set(execution, make.newInstance(arguments))
            if name == LOGS[0][0]:
                new = log.get(execution)
                assert execution.commitLog().equals(new.commitLog()), "the query has read its logs"


_starting = threading.RLock()
