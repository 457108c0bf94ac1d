"""Streams whose workers are killed: ``python -m tests.support.faulty_child FOLDER``, in a session that tries again.

The folder holds ``operations`` and ``events`` (`Landing`) and a file ``plans.json``: faults by name of a stream. For
each stream its outcomes go to the folder of its name.
"""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from spark_purgatory import STATE_STORE_SETTINGS
from spark_purgatory.demo.runner import QUICK_SETTINGS
from spark_purgatory.spark.host import log_host
from spark_purgatory.spark.host.exchange import unix_sockets
from tests.support.faulty_host import FaultyHost
from tests.support.stream_rows import purgatory
from tests.support.streams import Landing


def main(folder: Path) -> None:
    builder = SparkSession.builder.master("local[2,4]").config("spark.sql.shuffle.partitions", "2")
    settings = {**QUICK_SETTINGS, **STATE_STORE_SETTINGS, **unix_sockets(tempfile.gettempdir())}
    for name, value in {**settings, "spark.ui.enabled": "false", "spark.log.level": "FATAL"}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for name, options in json.loads((folder / "plans.json").read_text(encoding="utf-8")).items():
        plan = folder / f"plan of {name}"
        plan.mkdir()
        for number, fault in enumerate(options.pop("faults")):
            (plan / f"{number:02} {fault}").touch()
        log_host.LogHost = partial(FaultyHost, plan=str(plan))  # type: ignore[assignment,misc]
        Landing(folder, name).run(spark, purgatory(host="transformWithState", **options))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
