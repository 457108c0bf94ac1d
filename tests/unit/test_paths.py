"""Whether two paths are one place, however they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_purgatory.config.places import Place

FOLDER = [
    "/lake/t",
    "/lake/t/",
    "/lake//t",
    "/lake/./t",
    "/lake/x/../t",
    "file:/lake/t",
    "file:///lake//t/",
    "FILE:/lake/t",
]
BELOW = ["/lake/t/c", "file:/lake/t/c/", "file:///lake/t//c", "/lake/t/d/../c", "hdfs://name/lake/t/c"]
BESIDE = ["/lake/tc", "/lake", "file:/lake/other/t/c", "/", "/lake/t/../c"]


@pytest.mark.parametrize("folder", FOLDER)
def test_a_folder_has_many_spellings(folder: str) -> None:
    assert all(Place.of(folder).same_as(Place.of(other)) for other in FOLDER)
    assert all(Place.of(path).below(Place.of(folder)) == "c" for path in BELOW if not path.startswith("hdfs"))
    assert all(Place.of(path).below(Place.of(folder)) is None for path in BESIDE)


def test_two_storages_have_no_place_in_common() -> None:
    lake = Place.of("s3a://lake/t")
    assert Place.of("s3://lake/t/c").below(lake) == "c" and Place.of("s3n://lake//t").same_as(lake)
    assert Place.of("s3a://other/t/c").below(lake) is None and Place.of("gs://lake/t/c").below(lake) is None
    assert Place.of("file:/t/c").below(lake) is None
    assert Place.of("/t/c").below(lake) == "c", "which storage is the session's own is not known"
    assert Place.of("abfss://c@account.dfs.core.windows.net/t/x").below(
        Place.of("abfss://c@account.dfs.core.windows.net/t")
    )


def test_symbolic_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "table")
    assert Place.of(f"{tmp_path}/link/_checkpoints/a").below(Place.of(f"file:{tmp_path}/table")) == "_checkpoints/a"


def test_all_is_below_a_root() -> None:
    assert Place.of("/a/b").below(Place.of("/")) == "a/b" and Place.of("s3://x/a").below(Place.of("s3a://x")) == "a"
