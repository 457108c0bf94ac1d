"""What is tried: environments, the tests that run in each, and the releases between which a checkpoint travels."""

from __future__ import annotations

from dataclasses import dataclass

DEVELOPMENT = "4.2.0"
"""The PySpark that `make test` installs: a cell with it needs none of its own."""
DELTA = "4.4.0"


@dataclass(frozen=True)
class Cell:
    """An environment. What it does not name is that of `make test`."""

    name: str
    spark: str = DEVELOPMENT
    python: str = "3.11"
    java: str = "17"
    packages: tuple[str, ...] = ()
    """Over those of `make test`, as pip takes them."""
    has_delta: bool = True
    iceberg: tuple[str, ...] = ()
    """Tests that run in place of the slices, with Iceberg's runtime for this Spark."""


LOWEST = ("numpy==2.0.0", "pandas==2.2.2", "pyarrow==18.0.0")
"""What pyproject.toml allows: 2.2.2 is the first pandas that takes numpy 2."""
PROTOBUF_5 = ("protobuf==5.28.3", "googleapis-common-protos==1.66.0", "grpcio-status==1.68.1")
"""What Spark 4.0 was generated for, and of the packages of Spark Connect those that take it."""
NEWEST = ("numpy>=2.0,<3", "pandas>=2.2,<3", "pyarrow>=18,<27", "protobuf>=6.33.5,<7")

OF_ICEBERG = ("tests/iceberg",)

CELLS = (
    Cell("spark-4.0", "4.0.5", packages=(*LOWEST, *PROTOBUF_5)),
    Cell("spark-4.1", "4.1.4"),
    Cell("spark-4.2", "4.2.0"),
    Cell("spark-4.3", "4.3.0", has_delta=False),
    Cell("lowest", packages=(*LOWEST, "protobuf==6.33.5")),
    Cell("python-3.13", python="3.13", packages=NEWEST),
    # As Fabric 2.0 has it.
    Cell("iceberg-4.0", "4.0.5", packages=(*LOWEST, *PROTOBUF_5), iceberg=OF_ICEBERG),
    Cell("iceberg-4.1", "4.1.4", iceberg=OF_ICEBERG),
    Cell("fabric", "4.1.4", "3.13", "21", ("numpy==2.4.1", "pandas==2.3.3", "pyarrow==24.0.0", "protobuf==6.33.5")),
)

WITH_DELTA = (
    "tests/spark/test_record_accumulator.py",
    "tests/spark/test_pending.py",
    "tests/spark/test_doctor.py::test_a_session_is_ready_for_the_log_host_or_says_what_is_missing",
    "tests/spark/test_doctor.py::test_a_checkpoint_that_is_right_says_where_the_query_stands",
)
SLICE = (
    "tests/spark/test_stream.py",
    "tests/spark/test_key_types.py",
    "tests/spark/test_gauges.py",
    "tests/spark/test_query_watch.py",
    "tests/law/test_stream_law.py",
    "tests/unit/test_state.py",
    "tests/unit/test_step_log.py",
    "tests/unit/test_payload_evolution.py",
    "tests/unit/test_releases.py::test_a_protobuf_older_than_sparks_messages_is_refused_with_the_one_that_fits",
    "tests/unit/test_releases.py::test_without_protobuf_the_log_host_is_refused_and_the_other_is_not",
)
"""Run in every cell; the first host is the default one."""
SLICE_OF_THE_LOG_HOST = ("tests/spark/test_stream.py",)

Walk = tuple[str, ...]
MOVED = "delta, moved to other shards"
"""A sink's name of a walk in which each release moves the checkpoint before it goes on: from 4.1 on into states of
format 2, which 4.0 does not read."""
BEGUN_ON_4_1 = "delta, begun on 4.1"
"""A sink's name of a walk whose checkpoint has states of format 2, which Spark has since 4.1."""
WALKS: tuple[tuple[str, str, Walk], ...] = (
    ("applyInPandasWithState", "parquet", ("4.0.5", "4.1.4", "4.2.0", "4.3.0", "4.2.0", "4.1.4", "4.0.5")),
    ("transformWithState", "parquet", ("4.1.4", "4.2.0", "4.3.0", "4.2.0", "4.1.4")),
    # 4.3 has no Delta yet.
    ("applyInPandasWithState", "delta", ("4.0.5", "4.1.4", "4.2.0", "4.1.4", "4.0.5")),
    ("transformWithState", "delta", ("4.1.4", "4.2.0", "4.1.4")),
    ("applyInPandasWithState", BEGUN_ON_4_1, ("4.1.4", "4.2.0", "4.1.4")),
    ("applyInPandasWithState", MOVED, ("4.0.5", "4.2.0", "4.1.4", "4.2.0")),
    ("transformWithState", MOVED, ("4.0.5", "4.2.0", "4.1.4", "4.2.0")),
)
"""(host, sink, releases that go on with one checkpoint in turn, each killed in a micro-batch but the last)."""
