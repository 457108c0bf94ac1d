"""The command line as ``python -m spark_purgatory`` (`spark_purgatory.cli`)."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> int:
    try:
        from spark_purgatory.cli import app
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        # A vendor's runtime has its own Spark, which PySpark from an index would replace.
        extras = "cli" if find_spec("pyspark") else "cli,spark"
        print(f"{error.name} is not installed: pip install 'spark-purgatory[{extras}]'", file=sys.stderr)
        return 1
    app(prog_name="spark-purgatory")
    return 0


if __name__ == "__main__":
    sys.exit(main())
