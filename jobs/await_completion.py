"""The file for spark-submit; where nothing has to be submitted, ``spark-purgatory run FILE`` is the same.

    spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 jobs/await_completion.py conf/orders.yaml
    python -m jobs.await_completion conf/orders.yaml --set trigger.processingTime="5 seconds"

The Python that runs it must have the package: ``pip install 'spark-purgatory[cli,spark]'``.
"""

from __future__ import annotations

import typer

from spark_purgatory.cli import run

if __name__ == "__main__":
    typer.run(run)
