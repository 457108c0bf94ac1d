"""Iceberg's own REST catalog for tests, on this machine's loopback: jars of Maven Central, and SQLite behind it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import WORK
from benchmarks.jars import resolved, retrieved, spark_home
from tests.support.cluster import HOST, free_port
from tests.support.iceberg_lake import SQLITE
from tests.support.server import server

ICEBERG, JETTY = "1.11.0", "12.1.5"
NEEDED = (
    f"org.apache.iceberg:iceberg-core:{ICEBERG}",
    f"org.eclipse.jetty.ee10:jetty-ee10-servlet:{JETTY}",
    f"org.eclipse.jetty.compression:jetty-compression-server:{JETTY}",
    f"org.eclipse.jetty.compression:jetty-compression-gzip:{JETTY}",
    SQLITE,
)
OF_TESTS = (("iceberg-open-api", "test-fixtures"), ("iceberg-core", "tests"))


@contextmanager
def rest_catalog(folder: Path) -> Iterator[str]:
    """The address of a catalog whose tables are in a folder, within the block."""
    ivy = WORK / "iceberg-rest"
    ours = "org.apache.iceberg"
    jars = [str(retrieved(ours, name, ICEBERG, kind, "jar", ivy / name)) for name, kind in OF_TESTS]
    jars += [resolved(NEEDED, ivy / "needed"), *map(str, (spark_home() / "jars").glob("hadoop-client-*.jar"))]
    port = free_port()
    settings = {
        "CATALOG_WAREHOUSE": str(folder),
        "CATALOG_URI": f"jdbc:sqlite:{folder / 'catalog.db'}",
        "CATALOG_JDBC_USER": "user",
        "CATALOG_JDBC_PASSWORD": "password",
        "CATALOG_REST_PORT": str(port),
    }
    folder.mkdir(parents=True, exist_ok=True)
    command = ["java", "-Xmx256m", "-cp", os.pathsep.join(jars), "org.apache.iceberg.rest.RESTCatalogServer"]
    address = f"http://{HOST}:{port}"
    with server(command, f"{address}/v1/config", folder / "server.log", {**os.environ, **settings}):
        yield address
