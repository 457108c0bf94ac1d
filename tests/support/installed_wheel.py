"""`python -m tests.support.installed_wheel DIST`: install DIST's wheel into empty environments and run its commands.

One environment has the oldest PySpark that the wheel takes, the other the newest; of each a bill of materials is
written beside DIST. The commands run in a folder of their own, so that nothing of the source tree is on the path. Exit
code: 0, or the first command's that failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from email import message_from_bytes
from pathlib import Path

from packaging.requirements import Requirement

OTHER_SPARK = "4.1.0"
"""A release that is not ours, for a cluster that has its own."""
EXTRAS = "spark,cli,plot"


def oldest_spark(wheel: Path) -> str:
    """The lowest PySpark that the wheel's extra takes."""
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        told = message_from_bytes(archive.read(metadata)).get_all("Requires-Dist", [])
    asked = [each for each in map(Requirement, told) if each.marker is None or each.marker.evaluate({"extra": "spark"})]
    [spark] = [each for each in asked if each.name == "pyspark"]
    [lowest] = [bound.version for bound in spark.specifier if bound.operator == ">="]
    return lowest


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
        ["report", "checkpoint", "-o", "report.html"],
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


def runs(wheel: Path, folder: Path, pins: list[str], bill: Path) -> int:
    """Install the wheel with its extras under ``pins``, note what came with it, run what a user runs first."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    scripts = folder / "venv" / "bin"
    print(f"Installing {wheel.name} with its extras {EXTRAS}{''.join(f' and {pin}' for pin in pins)}", flush=True)
    subprocess.run([scripts / "pip", "install", "--quiet", f"{wheel}[{EXTRAS}]", *pins], check=True)
    sbom = [sys.executable, "-m", "cyclonedx_py", "environment", "--validate", "--output-reproducible"]
    subprocess.run([*sbom, "-o", str(bill), str(scripts / "python")], check=True)
    frozen = subprocess.run(
        [scripts / "pip", "freeze", "--exclude", "spark-purgatory"], stdout=subprocess.PIPE, check=True
    )
    bill.with_suffix("").with_suffix(".requirements.txt").write_bytes(frozen.stdout)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    conf = Path(__file__).resolve().parents[2] / "conf" / "orders.yaml"
    (elsewhere / "orders.yaml").write_text(conf.read_text(encoding="utf-8"), encoding="utf-8")
    for arguments in commands(elsewhere / "demo" / "landing"):
        print(f"$ spark-purgatory {' '.join(arguments)}", flush=True)
        ended = subprocess.run([scripts / "spark-purgatory", *arguments], cwd=elsewhere, env=environment, check=False)
        if ended.returncode:
            return ended.returncode
    return 0


def main(dist: Path) -> int:
    wheel, sdist = (next(dist.resolve().glob(kind)) for kind in ("*.whl", "*.tar.gz"))
    for name, pins in {"oldest": [f"pyspark=={oldest_spark(wheel)}"], "newest": []}.items():
        bill = dist.resolve().parent / f"{dist.name}-sbom" / f"{name}-spark.cdx.json"
        bill.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="spark_purgatory_wheel_") as folder:
            if code := runs(wheel, Path(folder), pins, bill):
                return code
            if not pins:
                stays_beside(wheel, Path(folder) / "beside")
                print(f"Installing {sdist.name} in place of the wheel", flush=True)
                scripts = Path(folder) / "venv" / "bin"
                subprocess.run(
                    [scripts / "pip", "install", "--quiet", "--force-reinstall", "--no-deps", sdist], check=True
                )
                subprocess.run([scripts / "spark-purgatory", "doctor"], cwd=folder, check=True)
        print(f"What came with it: {bill}", flush=True)
    print("OK: wheel and sdist run when installed, on the oldest and the newest Spark, and leave another Spark alone")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
