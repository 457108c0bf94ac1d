"""``python -m spark_purgatory``: see `spark_purgatory.cli`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line, or say what it lacks."""
    try:
        from spark_purgatory.cli import app
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        print(f"{error.name} is not installed: pip install 'spark-purgatory[cli,spark]'", file=sys.stderr)
        return 1
    app(prog_name="spark-purgatory")
    return 0


if __name__ == "__main__":
    sys.exit(main())
