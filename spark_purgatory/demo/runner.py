"""The demo from end to end: make the landing folders, run orders.yaml over them, sum up, count again.

Everything is in one folder. Its file demo.json is written last, so the landing folders are complete if it exists. The
same command continues a demo that was killed, from the job's checkpoint.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from spark_purgatory.demo.landing import write_landing
from spark_purgatory.errors import ConfigError
from spark_purgatory.job.arguments import writing_to
from spark_purgatory.job.config_file import load_config
from spark_purgatory.job.job_config import JobConfig
from spark_purgatory.job.run_report import ExitCode, guarded
from spark_purgatory.job.runner import run
from spark_purgatory.job.session import ROOT, SHORT_JAVA, build_session
from spark_purgatory.job.stopping import StopRequest
from spark_purgatory.job.summary import Summary
from spark_purgatory.terminal import at_work, say, table

# The demo's check: the landing folders are counted again, in plain SQL that shares no code with the package.

RECOUNT = """
WITH
received AS (
  SELECT *, order_id IS NULL OR ordered_at > now() + INTERVAL 1 DAY AS broken FROM landed_orders
),
orders AS (
  SELECT order_id, min(ordered_at) AS ordered_at, min(pay_by) AS pay_by, count(*) AS copies
  FROM received WHERE NOT broken GROUP BY order_id
),
-- The watermark when everything was read: the latest time of the slower input, less its 10 minutes.
clock AS (
  SELECT least((SELECT max(ordered_at) FROM received WHERE NOT broken),
               (SELECT max(paid_at) FROM landed_payments)) - INTERVAL 10 MINUTES AS watermark
),
-- Delayed payments land an hour after pay_by, all others within 10 minutes: half an hour separates them.
matched AS (
  SELECT o.order_id, o.pay_by, o.copies,
         bool_or(p.paid_at BETWEEN o.ordered_at AND o.pay_by AND p.landed_at < o.pay_by + INTERVAL 30 MINUTES) AS paid
  FROM orders o LEFT JOIN landed_payments p ON p.order_id = o.order_id
  GROUP BY o.order_id, o.pay_by, o.copies
),
decided AS (
  SELECT order_id, copies,
         CASE WHEN paid THEN 'COMPLETED' WHEN pay_by <= watermark THEN 'EXPIRED' ELSE 'PENDING' END AS status
  FROM matched CROSS JOIN clock
)
SELECT order_id, explode(concat(array(status), array_repeat('DUPLICATE', cast(copies - 1 AS int)))) AS status
FROM decided
UNION ALL
SELECT order_id, 'REJECTED' FROM received WHERE broken
"""


COMPARE = f"""
WITH both AS (
  SELECT order_id, status, 1 AS expected, 0 AS found FROM ({RECOUNT})
  UNION ALL
  SELECT order_id, status, 0 AS expected, 1 AS found FROM outcomes
),
orders AS (
  SELECT order_id, status, sum(expected) AS expected, sum(found) AS found FROM both GROUP BY order_id, status
)
SELECT status, sum(expected) AS expected, sum(found) AS found, sum(abs(expected - found)) AS different
FROM orders GROUP BY status
"""


@dataclass(frozen=True)
class Recount:
    """The rows of one status: expected from the folders, found in the table, and those without a partner."""

    expected: int
    found: int
    different: int


def recount(spark: SparkSession, landing: Path, outcomes: Path | str) -> dict[str, Recount]:
    for name in ("orders", "payments"):
        spark.read.parquet(str(landing / name)).createOrReplaceTempView(f"landed_{name}")
    table = spark.table(outcomes) if isinstance(outcomes, str) else spark.read.format("delta").load(str(outcomes))
    table.createOrReplaceTempView("outcomes")
    rows = spark.sql(COMPARE).collect()
    return {row["status"]: Recount(row["expected"], row["found"], row["different"]) for row in rows}


CONF = Path(__file__).with_name("orders.yaml")
MARKER = "demo.json"
# Spark's classes as a JVM needs them in memory, from `make test`: a first query then ends after 12 s, not 17.
CLASS_ARCHIVE = ROOT / ".venv" / "spark.jsa"
QUICK_JAVA = f"{SHORT_JAVA} -XX:+UseSerialGC"
if CLASS_ARCHIVE.exists() and " " not in str(CLASS_ARCHIVE):
    # Another Java ignores the archive, and would report that on its output.
    QUICK_JAVA += f" -XX:SharedArchiveFile={CLASS_ARCHIVE} -Xlog:disable"
QUICK_SETTINGS = {"spark.driver.extraJavaOptions": QUICK_JAVA}
OURS = ("landing", "outcomes", "checkpoint", "spark.log", MARKER)  # a demo writes and removes only these


def run_demo(named: Path | None, console: Console, **wanted: int) -> int:
    """Run the demo, in a temporary folder if none is named, and return its exit code."""
    folder = named or Path(tempfile.mkdtemp(prefix="spark_purgatory_demo_"))
    code = guarded(console, lambda: _run(folder, wanted, console))
    if code == 0 and named is None:
        _remove(folder)
        say(console, "With --dir FOLDER the demo stays, to look at what waits and to run its job again.")
    elif folder.exists():
        say(console, f"Kept: {folder}")
    if code == 0 and named is not None:
        say(console, "What still waits, and one page on the query:")
        say(console, f"  spark-purgatory pending {folder / 'checkpoint'}")
        say(console, f"  spark-purgatory report {folder / 'checkpoint'} --name orders")
    return code


def _run(folder: Path, wanted: dict[str, int], console: Console) -> int:
    started = time.monotonic()
    with writing_to("--dir", folder):
        _land(folder, wanted, console)
    config = demo_config(folder)
    log = folder / "spark.log"
    starting = "Starting Spark (the first time it downloads Delta's jars, about half a minute)"
    if not console.is_terminal:
        console.print(starting)
    with at_work(console, starting):
        spark = build_session(config, log)
    stop = StopRequest()
    stop.listen()
    summary = run(spark, config, console, stop, log)
    if stop.signal is not None:
        return ExitCode.INTERRUPTED
    with at_work(console, "Counting the landing files in SQL"):
        counted = recount(spark, folder / "landing", folder / "outcomes")
    spark.stop()
    return _judge(summary, counted, time.monotonic() - started, console)


def _land(folder: Path, wanted: dict[str, int], console: Console) -> None:
    marker = folder / MARKER
    if marker.exists():
        found = json.loads(marker.read_text(encoding="utf-8"))
        if {name: found.get(name) for name in wanted} != wanted:
            raise ConfigError(
                f"{folder} has a demo of {found['operations']:,} operations with seed {found['seed']}: continue it "
                "with the same --operations and --seed, or name another --dir"
            )
        console.print(f"Continuing the demo in {folder}", highlight=False)
        return
    strangers = [path.name for path in folder.iterdir() if path.name not in OURS] if folder.exists() else []
    if strangers:
        raise ConfigError(f"{folder} is in use, because it contains {strangers[0]}: name an empty folder with --dir")
    _remove(folder)
    folder.mkdir(parents=True, exist_ok=True)
    landed = write_landing(folder / "landing", **wanted)
    marker.write_text(json.dumps({**wanted, **asdict(landed)}), encoding="utf-8")
    counts = f"{landed.orders:,} orders and {landed.payments:,} payments landed in {landed.files} files"
    say(console, f"{counts} below {folder / 'landing'}")


def demo_config(folder: Path) -> JobConfig:
    places = {
        "operations.source.path": "landing/orders",
        "completions.source.path": "landing/payments",
        "output.path": "outcomes",
        "checkpoint": "checkpoint",
    }
    settings = [f"{field}={json.dumps(str(folder / at))}" for field, at in places.items()]
    return load_config(CONF, [*settings, *(f"spark.{name}={value}" for name, value in QUICK_SETTINGS.items())])


def _judge(summary: Summary | None, counted: dict[str, Recount], seconds: float, console: Console) -> int:
    pending = summary.tally.pending if summary else 0
    waiting = counted.pop("PENDING", Recount(0, 0, 0)).expected
    wrong = abs(waiting - pending) + sum(status.different for status in counted.values())
    rows = {name: (status.expected, status.found) for name, status in sorted(counted.items())}
    rows["pending (in the state)"] = waiting, pending
    cells = [(name, f"{a:,}", f"{b:,}", "=" if a == b else "DIFFERS") for name, (a, b) in rows.items()]
    title = "Counted again from the landing files, in plain SQL"
    console.print(table(title, ("status", "landing files", "Delta table", ""), cells))
    if not wrong and summary is not None and summary.conserved:
        console.print(f"OK: every order has one outcome, and it is the right one. {seconds:.0f} s.", style="green")
        return 0
    text = f"WRONG: {wrong:,} orders differ between the landing files and the table, or the sums above do not add up."
    say(console, text, style="red")
    return ExitCode.FAILED


def _remove(folder: Path) -> None:
    for name in OURS:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()
