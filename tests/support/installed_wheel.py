"""`python -m tests.support.installed_wheel DIST`: install DIST's wheel into an empty environment and run its commands.

The commands run in a folder of their own, so that nothing of the source tree is on the path. Exit code: 0, or the first
command's that failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

OTHER_SPARK = "4.1.0"
"""A release that is not ours, for a cluster that has its own."""


def commands(landing: Path) -> list[list[str]]:
    """What a user runs first, the job over what the demo has landed last."""
    places = {
        "operations.source.path": landing / "orders",
        "completions.source.path": landing / "payments",
        "output.path": "outcomes",
        "checkpoint": "checkpoint",
    }
    changes = [part for field, place in places.items() for part in ("--set", f"{field}={place}")]
    return [
        ["--version"],
        ["doctor"],
        ["demo", "--operations", "2000", "--dir", "demo"],
        ["run", "orders.yaml", *changes, "--spark-log", "spark.log"],
        ["pending", "checkpoint", "--limit", "3"],
        ["report", "checkpoint", str(landing.parents[1] / "outcomes"), "-o", "report.html"],
    ]


def stays_beside(wheel: Path, folder: Path) -> None:
    """Install the wheel without extras beside another Spark, as on Databricks, and check that it leaves it alone."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [str(folder / "bin" / "pip"), "install", "--quiet"]
    print(f"Installing {wheel.name} alone beside pyspark {OTHER_SPARK}", flush=True)
    subprocess.run([*pip, f"pyspark=={OTHER_SPARK}"], check=True)
    subprocess.run([*pip, str(wheel)], check=True)
    code = "import spark_purgatory; from importlib.metadata import version; print(version('pyspark'))"
    said = subprocess.run([folder / "bin" / "python", "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == OTHER_SPARK, f"pyspark {OTHER_SPARK} became {said}"


def main(dist: Path) -> int:
    """Install, run, report."""
    wheel = next(dist.resolve().glob("*.whl"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
    with tempfile.TemporaryDirectory(prefix="spark_purgatory_wheel_") as name:
        folder = Path(name)
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        scripts = folder / "venv" / "bin"
        print(f"Installing {wheel.name} with its extras spark, cli and plot", flush=True)
        subprocess.run([scripts / "pip", "install", "--quiet", f"{wheel}[spark,cli,plot]"], check=True)
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir()
        conf = Path(__file__).resolve().parents[2] / "conf" / "orders.yaml"
        (elsewhere / "orders.yaml").write_text(conf.read_text(encoding="utf-8"), encoding="utf-8")
        for arguments in commands(elsewhere / "demo" / "landing"):
            print(f"$ spark-purgatory {' '.join(arguments)}", flush=True)
            ended = subprocess.run(
                [scripts / "spark-purgatory", *arguments], cwd=elsewhere, env=environment, check=False
            )
            if ended.returncode:
                return ended.returncode
        stays_beside(wheel, folder / "beside")
        sdist = next(dist.resolve().glob("*.tar.gz"))
        print(f"Installing {sdist.name} in place of the wheel", flush=True)
        install = [str(scripts / "pip"), "install", "--quiet", "--force-reinstall", "--no-deps", str(sdist)]
        subprocess.run(install, check=True)
        subprocess.run([scripts / "spark-purgatory", "doctor"], cwd=elsewhere, env=environment, check=True)
    print("OK: wheel and sdist run when installed, and leave another Spark alone")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
