"""What makes a session of the tests quick, and changes nothing that a test sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""A test's query runs once, on few rows: to compile it was a seventh of the CPU of two long files. Runs in processes
of their own, the job, the failpoints, Spark Connect, compile as everybody's do."""
COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
"""Spark's own choice."""
OF_TESTS = {
    **INTERPRETED,
    "spark.sql.icu.caseMappings.enabled": "false",  # The first upper() of a JVM took two seconds, to load ICU's rules.
    "spark.databricks.delta.stats.collect": "false",  # Few rows need no minimum and maximum of a file's columns.
    "spark.python.authenticate.socketTimeout": "300s",  # On a busy machine a worker needs more than Spark's 15 s.
}
"""What changes how long a test takes, and nothing that it sees."""
YOUNG = " -Xmn384m"
"""Of a small young generation everything is copied often."""


def remember_java_classes() -> None:
    """Each ``F.col`` asks the JVM for the class `functions`, which it looks for in a dozen packages of 300 jars."""
    from py4j.java_gateway import JavaClass, JVMView

    look_up = JVMView.__getattr__

    def remembered(view: JVMView, name: str) -> Any:
        found = look_up(view, name)
        if isinstance(found, JavaClass):
            vars(view)[name] = found
        return found

    JVMView.__getattr__ = remembered


def forget_defaults_of_map_reduce(session: SparkSession) -> None:
    """Spark sends Hadoop's whole configuration with each scan, state store and write: it was a fifteenth of the JVM's
    CPU, and most of it are defaults of MapReduce and YARN, which their code has as well.
    """
    jvm: Any = session.sparkContext._jvm
    loader, look_up = jvm.Thread.currentThread().getContextClassLoader(), jvm.java.lang.Class.forName
    look_up("org.apache.hadoop.mapred.JobConf", True, loader)  # It adds them, once.
    configuration = look_up("org.apache.hadoop.conf.Configuration", True, loader)
    field = configuration.getDeclaredField("defaultResources")
    field.setAccessible(True)
    resources = field.get(None)
    for name in {"mapred-default.xml", "yarn-default.xml"} & set(resources):
        resources.remove(name)
    getattr(jvm, configuration.getName()).reloadExistingConfigurations()
