"""Which Spark, protobuf and session are accepted, noted or refused; releases are the package index's or made up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyspark
import pytest

from spark_purgatory.doctor.machine import release_finding, verified, verified_releases
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.host.requirements import (
    FILE_MANAGER,
    KEEPS_OLD_FILES,
    LOCAL_FILES,
    check_blob_host,
    check_streaming,
    fitting_protobuf,
)
from spark_purgatory.worker_python import arrow_remedy

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, first: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A Python of its own, with ``first`` before everything that is installed."""
    lines = [] if first is None else [f"import sys; sys.path.insert(0, {str(first)!r})"]
    source = "\n".join([*lines, code])
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, cwd=ROOT, check=False)


def test_the_release_that_is_installed_here_was_tested() -> None:
    found = release_finding("Spark", pyspark.__version__)
    assert found.status == "ok"
    assert found.found == f"{pyspark.__version__}, tested on {verified()['date']}"


@pytest.mark.parametrize("release", ["4.2.99", "4.9.0", "4.0.99", "5.0.0", "4.3.0.dev2"])
def test_a_release_that_was_not_tested_is_a_note_with_those_that_were(release: str) -> None:
    found = release_finding("Spark", release)
    assert found.status == "note"
    assert all(tested in found.found for tested in verified_releases())


@pytest.mark.parametrize(
    ("release", "arrow", "remedy"),
    [
        ("4.0.4", "26.0.1", "pip install 'pyarrow<26', or take Spark 4.0.5"),
        ("4.1.3", "27.0.0", "pip install 'pyarrow<26', or take Spark 4.1.4"),
        ("4.1.0.dev2", "26.0.0", "pip install 'pyarrow<26', or take Spark 4.1.4"),
        ("4.0.4", "25.9.9", ""),
        ("4.0.5", "26.0.1", ""),
        ("4.1.4", "26.0.1", ""),
        ("4.2.0", "26.0.1", ""),
        ("5.0.0", "30.0.0", ""),
    ],
)
def test_an_arrow_that_a_release_fails_with_has_a_remedy(release: str, arrow: str, remedy: str) -> None:
    assert arrow_remedy(release, arrow) == remedy


def test_a_session_with_an_arrow_that_its_operator_fails_with_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pa, "__version__", "26.0.1")
    with pytest.raises(ConfigError, match=r"fails in Spark 4\.1\.2 with pyarrow 26\.0\.1.*pip install 'pyarrow<26'"):
        check_blob_host(SimpleNamespace(version="4.1.2"))  # type: ignore[arg-type]


def test_a_protobuf_older_than_sparks_messages_is_refused_with_the_one_that_fits(tmp_path: Path) -> None:
    """protobuf itself tells that it is older: the file that says which one it is, of another copy of it."""
    import google.protobuf

    package = tmp_path / "google" / "protobuf"
    package.parent.mkdir()
    package.symlink_to(Path(google.protobuf.__file__).parent)
    older = tmp_path / "runtime_version.py"
    text = (package / "runtime_version.py").read_text()
    older.write_text(text.replace("\nMAJOR = OSS_MAJOR", "\nMAJOR = 4"))
    assert older.read_text() != text
    code = (
        "import importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('google.protobuf.runtime_version', {str(older)!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "sys.modules['google.protobuf.runtime_version'] = module\n"
        "from spark_purgatory.spark.host.requirements import check_log_host\n"
        "check_log_host(None)"
    )
    ran = python(code, tmp_path)
    said = ran.stderr.splitlines()[-1]
    assert "ConfigError" in said and f"fits PySpark {pyspark.__version__}" in said and "VersionError" in said, said
    assert said.endswith(f"pip install {fitting_protobuf()}")


def test_without_protobuf_the_log_host_is_refused_and_the_other_is_not() -> None:
    lacks = (
        "import sys\n"
        "class Lacks:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith('google'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Lacks())\n"
        "from spark_purgatory import Purgatory\n"
        "from spark_purgatory.spark.host.requirements import check_log_host\n"
        "print('imported')\n"
        "check_log_host(None)"
    )
    ran = python(lacks)
    assert ran.stdout == "imported\n"
    assert "ModuleNotFoundError: No module named 'google'" in ran.stderr.splitlines()[-1]


def test_nobody_asks_for_a_distribution_named_pyspark() -> None:
    """Databricks has the module pyspark without a distribution of that name."""
    code = (
        "import importlib.metadata as metadata, sys\n"
        "known = metadata.distribution\n"
        "def distribution(name):\n"
        "    if name.startswith('pyspark'):\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return known(name)\n"
        "metadata.distribution = distribution\n"
        "from spark_purgatory.doctor.machine import pyspark_finding\n"
        "print(repr(pyspark_finding().remedy))"
    )
    ran = python(code)
    assert ran.stdout == "''\n", ran.stderr


def test_a_session_that_would_keep_the_state_of_a_first_run_is_refused() -> None:
    given = {FILE_MANAGER: f"org.apache.spark.sql.execution.streaming.{KEEPS_OLD_FILES}"}
    with pytest.raises(ConfigError, match=r"the session has .*first run.*Unset it"):
        check_streaming(given.get)
    check_streaming({**given, LOCAL_FILES: "org.apache.hadoop.fs.LocalFileSystem"}.get)
    check_streaming({}.get)
