"""Each kind of file of a checkpoint, damaged in each way: the table is right, or the library refuses by name.

Spark's checksum files go with what they were made of, as on a storage without them; where a bit is turned they stay.
"""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_purgatory import STATE_STORE_SETTINGS, RecordAccumulator, errors
from spark_purgatory.spark.sink.drain import actions
from spark_purgatory.spark.storage import spark_access
from tests.support import killed_child
from tests.support.delta_files import delta_rows
from tests.support.killed_child import A_FILE, COLUMNS, Orders, land
from tests.support.lanes import BLOB, LOG
from tests.support.places_world import differences

IN_MEMORY = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
LANES = {
    "applyInPandasWithState": (BLOB, {}),
    "applyInPandasWithState, the other store": (BLOB, {"spark.sql.streaming.stateStore.providerClass": IN_MEMORY}),
    "transformWithState": (LOG, STATE_STORE_SETTINGS),
}
BEFORE, STAGED = 7, 5
"""Files, and the micro-batch with rows in which the query crashes."""
OURS = re.compile(rf"\b({'|'.join(name for name in vars(errors) if name.endswith('Error'))}): ")


class Died(Exception):
    """A failpoint was reached."""


def removed(path: Path, older: bytes) -> None:
    path.unlink()


def emptied(path: Path, older: bytes) -> None:
    path.write_bytes(b"")


def cut(path: Path, older: bytes) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def bit_turned(path: Path, older: bytes) -> None:
    content = bytearray(path.read_bytes())
    at = random.Random(path.name).randrange(len(content) * 8)
    content[at // 8] ^= 1 << at % 8
    path.write_bytes(content)


def replaced(path: Path, older: bytes) -> None:
    path.write_bytes(older)


DAMAGES: tuple[Callable[[Path, bytes], None], ...] = (removed, emptied, cut, bit_turned, replaced)


def kind_of(name: str) -> str:
    """What a file is for."""
    first, last = name.partition("/")[0], name.rpartition("/")[2]
    if first == "staging":
        return "the claim" if "/table/" in name else "staged rows" if "/rows/" in name else last.partition("=")[0]
    if "_stateSchema" in name:
        return "schema of a variable of the state"
    if first == "state":
        return "schema or metadata of the state" if "_metadata" in name else f"state: {last.rpartition('.')[2]}"
    return re.sub(r"/\d+", "", name)


def is_wanted(kind: str, lane: str) -> bool:
    """Only files of the state differ between hosts and stores."""
    return lane == BLOB or "state" in kind


@dataclass
class Cells:
    """A query that was stopped, and what came of each damage to its checkpoint."""

    spark: SparkSession
    folder: Path
    host: str
    found: dict[tuple[str, str], str] = field(default_factory=dict)
    said: dict[tuple[str, str], str] = field(default_factory=dict)
    repaired: set[str] = field(default_factory=set)

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def run(self, files: int = 1) -> None:
        """To the end, so many files a micro-batch; a drain takes some rows, and others stay staged."""
        sink = RecordAccumulator(
            path=str(self.folder / "table"), batch_size="24 KiB", linger="1 hour", delivery_timeout="1 hour"
        )
        rows = killed_child.outcomes(self.spark, self.folder, self.host, files)
        query = sink.write_stream(rows, checkpoint=str(self.checkpoint), trigger={"availableNow": True})
        query.awaitTermination()

    def make(self) -> None:
        """A checkpoint whose last micro-batch is staged and not committed, its table, and copies of them."""
        land(self.folder, range(BEFORE))
        staged = count(1)

        def hook(reached: str) -> None:
            if reached == "after stage" and next(staged) == STAGED:
                raise Died(reached)

        actions.hook = hook
        with pytest.raises((StreamingQueryException, Died), match="after stage"):
            self.run()
        actions.hook = None
        for name in ("checkpoint", "table"):
            shutil.copytree(self.folder / name, self.folder / f"{name} kept")
        Orders(BEFORE * A_FILE).land_closing(self.folder)

    def fresh(self) -> None:
        for name in ("checkpoint", "table"):
            shutil.rmtree(self.folder / name)
            shutil.copytree(self.folder / f"{name} kept", self.folder / name)
        self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def files(self) -> dict[str, list[Path]]:
        """The files of each kind, the newest one last; none of the micro-batch that is run again in any case."""
        found: dict[str, list[Path]] = {}
        committed = max(int(path.name) for path in (self.checkpoint / "commits").glob("[0-9]*"))
        for path in self.checkpoint.rglob("*"):
            kind = kind_of(str(path.relative_to(self.checkpoint)))
            again = {"batch": committed + 1, "staged rows": committed + 1}.get(kind, committed + 2)
            if path.is_file() and not path.name.endswith(".crc") and _age(path)[0] < again:
                found.setdefault(kind, []).append(path)
        return {kind: sorted(found[kind], key=_age) for kind in sorted(found)}

    def outcome(self) -> tuple[str, str]:
        """What a run to the end comes to, and what it says."""
        try:
            self.run(files=BEFORE)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            return ("named" if OURS.search(said) else "in Spark's words"), said
        table = delta_rows(self.folder / "table", COLUMNS)
        wrong = differences(table, Orders(BEFORE * A_FILE).expected())
        return ("WRONG" if wrong else "right"), str(wrong or "")

    def cell(self, kind: str, damage: Callable[[Path, bytes], None]) -> None:
        """One damage; and after the first error of each kind the repair that all of them name: the file from a copy."""
        self.fresh()
        *older, path = self.files()[kind]
        before, crc = path.read_bytes(), path.with_name(f".{path.name}.crc")
        checksum = crc.read_bytes() if crc.exists() else None
        if damage is not bit_turned:
            crc.unlink(missing_ok=True)
        of_it = [each for each in older if each.parent == path.parent] or older
        damage(path, of_it[-1].read_bytes() if of_it else b"{}")
        found, said = self.outcome()
        if found in ("named", "in Spark's words") and kind not in self.repaired:
            self.repaired.add(kind)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(before)
            if checksum is not None:
                crc.write_bytes(checksum)
            after, told = self.outcome()
            found += "" if after == "right" else f", {after} after the repair"
            said += f"\n{told}"
        self.found[kind, damage.__name__] = found
        self.said[kind, damage.__name__] = said


def _age(path: Path) -> tuple[int, int]:
    """The number of a micro-batch or drain; of those of one number the largest counts."""
    name = path.parent.name if path.suffix == ".parquet" else path.name
    numbers = re.findall(r"\d+", name.partition("-")[0]) or ["0"]
    return int(numbers[0]), path.stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize("lane", LANES)
def test_a_damaged_file_of_a_checkpoint_is_named_or_harmless(spark: SparkSession, tmp_path: Path, lane: str) -> None:
    host, settings = LANES[lane]
    with spark_access.settings(spark, settings):
        cells = Cells(spark, tmp_path, host)
        cells.make()
        for kind in [kind for kind in cells.files() if is_wanted(kind, lane)]:
            for damage in DAMAGES:
                cells.cell(kind, damage)
                print(f"{kind:32} {damage.__name__:10} {cells.found[kind, damage.__name__]}", flush=True)
                print(f"      {OURS.split(cells.said[kind, damage.__name__])[-1][:600]}".rstrip(), flush=True)
    counts = Counter(cells.found.values())
    print(f"{lane}: {len(cells.found)} cells, {dict(counts)}")
    assert counts["named"] + counts["right"] == len(cells.found)
