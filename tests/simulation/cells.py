"""Each check in each scenario: ``python -m tests.simulation --cells`` prints them as a table.

A check is something that a query does: a criterion, a control event, ORPHANs, evidence, a view of what waits. A
scenario is something that happens to the query. A cell is one history of the simulation, on each host, in which both
are there; `judge.py` and the oracle say whether it is right. What a model cannot show is in `ON_SPARK`: the tests that
have it on a real Spark.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import pyarrow as pa

from spark_purgatory.core.engine.waiting import waiting_fields
from spark_purgatory.core.spec.codes import RULES
from spark_purgatory.core.spec.engine_spec import Orphans
from spark_purgatory.spark.checkpoint.pending import _of_shard, waiting_rows
from tests.simulation.judge import Wrong
from tests.simulation.play import quiet
from tests.simulation.simulation import Simulation
from tests.simulation.sink import SPARK, Folder
from tests.simulation.tasks import CHAINED_RULE, Query, stored
from tests.simulation.world import COLUMNS, END_MS, SINKS, Scenario, Step
from tests.support.law_worlds import carrying, delayed, noted, of_one_rule, spec_of
from tests.support.oracle import Evidence, decide
from tests.support.worlds import Batch, World, random_world, splits

HOSTS = ("blob", "log")
BATCHES = 5
DELAY_MS = 1500
"""Of the clock of a chain's second purgatory."""
COMPLETE = ("complete",)


@dataclass(frozen=True)
class Check:
    """Something that a query does."""

    rule: str = "mixed"
    kinds: tuple[str, ...] = COMPLETE
    several: bool = False
    """Operations have several keys."""
    final: bool = True
    orphans: Orphans = "none"
    evidence: tuple[int, bool] | None = None
    """How many events an outcome lists, and whether the largest ones."""
    late: bool = False
    spoiled: bool = False
    keyless: bool = False
    """Control events name an operation without a key."""
    shows: tuple[str, ...] = ("COMPLETED", "EXPIRED")
    """What at least one outcome is."""
    is_chained: bool = False
    """What it completes goes to a second purgatory, whose clock is behind."""
    looks: Callable[[Simulation], int] | None = None
    """What is looked at after each step; how much there was to see."""


# --- views of what waits ---------------------------------------------------------------------------------------------


def _waiting(simulation: Simulation) -> tuple[list[dict[str, Any]], list[Any], int]:
    """Operations that wait by what was read and given, the states, and the watermark of the last micro-batch."""
    checkpoint, batches = simulation.checkpoint, simulation.judge.micro_batches
    at = checkpoint.next_batch
    if not at:
        return [], [], 0
    read = [row for number in range(at) for row in batches[number].rows.operations]
    given = Counter(simulation.judge.meaning[n]["row"] for number in range(at) for n in batches[number].numbers)
    left = []
    for row in read:
        left += [row] if not given[row["row"]] else []
        given[row["row"]] -= bool(given[row["row"]])
    names = checkpoint.commits[at - 1]
    kept = [checkpoint.states.load(at, partition, names) for partition in names]
    states = [stored(state) for each in kept for state in each.values()]
    return left, states, batches[at - 1].rows.watermark_ms


def pending(simulation: Simulation) -> int:
    """Compare `pending` with what waits."""
    left, states, watermark_ms = _waiting(simulation)
    fields = waiting_fields(simulation.query.spec)
    schema, added = pa.schema([*COLUMNS, *fields]), {field.name: field.name for field in fields}
    rows = [row for each in states for batch in waiting_rows(watermark_ms, schema, added, each) for row in _rows(batch)]
    found = Counter((row["id"], row["row"], tuple(row["watch_keys"]), row["created_at"]) for row in rows)
    wanted = Counter((row["id"], row["row"], tuple(dict.fromkeys(row["keys"])), row["created"]) for row in left)
    if found != wanted:
        raise Wrong(f"pending has {dict(found - wanted)}, and lacks {dict(wanted - found)}")
    if any(row["age_ms"] != (watermark_ms * 1000 - row["created_at"]) // 1000 for row in rows if watermark_ms):
        raise Wrong("pending gives an operation another age than the watermark says")
    return len(rows)


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    at = batch.schema.get_field_index("created_at")
    return list(batch.set_column(at, "created_at", batch["created_at"].cast(pa.int64())).to_pylist())


def gauges(simulation: Simulation) -> int:
    """Compare `gauges` with what waits."""
    left, states, _ = _waiting(simulation)
    told = [row for each in states for row in _of_shard(each)]
    oldest_ms = [row["oldest_created_ms"] for row in told if row["oldest_created_ms"] is not None]
    found = sum(row["pending"] or 0 for row in told), min(oldest_ms, default=None)
    wanted = len(left), min((row["created"] // 1000 for row in left), default=None)
    if found != wanted:
        raise Wrong(f"gauges say {found} wait, since then, and it is {wanted}")
    return len(left)


def staged(simulation: Simulation) -> int:
    """The judge compares the view of table and staged rows; here it is seen that rows are staged."""
    return len(Folder.of(SPARK, "/checkpoint").read_entries(SPARK, True)) and len(simulation.checkpoint.files)  # type: ignore[arg-type]


CHECKS: Mapping[str, Check] = {
    **{rule: Check(rule, several=rule in ("any_key", "all_keys", "quorum", "level")) for rule in RULES},
    "a rule by row": Check(several=True),
    "several keys, early": Check(several=True, final=False),
    "one key, early": Check(final=False),
    "late rows, early": Check(final=False, late=True),
    "REJECTED and DUPLICATE rows": Check(spoiled=True, shows=("REJECTED", "DUPLICATE")),
    "fail": Check("all_keys", ("complete", "fail"), True, shows=("FAILED",)),
    "cancel": Check(kinds=("complete", "cancel"), shows=("CANCELLED",)),
    "force": Check("count", ("complete", "force")),
    "extend": Check(kinds=("complete", "extend")),
    "fail, early": Check("all_keys", ("complete", "fail"), True, False, shows=("FAILED",)),
    "an operation named without a key": Check(kinds=("cancel", "extend"), several=True, keyless=True),
    "ORPHANs, control": Check(kinds=("complete", "cancel"), orphans="control", shows=("ORPHAN",)),
    "ORPHANs, all": Check(kinds=("complete", "cancel"), orphans="all", shows=("ORPHAN",)),
    "the event that decided": Check(evidence=(1, False), several=True),
    "all events": Check(evidence=(100, False)),
    "the largest events": Check(evidence=(2, True)),
    "events, early": Check(evidence=(100, False), final=False),
    "a chain of two purgatories": Check("any_key", final=False, is_chained=True),
    "a chain, emit final": Check("any_key", is_chained=True),
    "staged rows": Check(looks=staged),
    "pending": Check(looks=pending),
    "gauges": Check(looks=gauges),
}


# --- what happens ----------------------------------------------------------------------------------------------------


def _batch(**given: Any) -> Step:
    return Step("micro-batch", 0, {"files": 1, **given})


def _restart(**given: Any) -> Step:
    return Step("restart", 0, {"drain": False, "timeout": 1, "workers": "gone", **given})


def _move(host: str, shards: int, partitions: int) -> Step:
    return Step("move", 0, {"shards": shards, "partitions": partitions, "host": host})


HAPPENS: Mapping[str, tuple[tuple[Step, ...], str]] = {
    "restart": ((_batch(), _restart(), _batch(), _restart(workers="old"), _batch(files=2)), "a micro-batch ends"),
    "replay, same rows": (
        (_batch(), _batch(crash="before commits"), _batch(), _batch(crash="after stage"), _batch()),
        "crash before commits",
    ),
    "replay, other rows": (
        (_batch(), _batch(crash="before commits"), _restart(timeout=2), _batch(), _batch()),
        "a replay with other rows",
    ),
    "changed setting": (
        (_batch(), _restart(sink="nothing lingers"), _batch(), _restart(sink="memory runs out"), _batch()),
        "a micro-batch ends",
    ),
    "moved": ((_batch(), _move("", 3, 2), _batch(), _move("", 2, 1), _batch()), "a move to the"),
    "other host": ((_batch(), _move("other", 1, 1), _batch(), _move("first", 2, 2), _batch()), "a move to the"),
}
"""Scenarios: their steps, and what must have happened for them to count."""

ON_SPARK: Mapping[str, str] = {
    "upgraded library": "tests/matrix (checkpoints walk through releases), tests/unit/test_state.py (golden states)",
    "upgraded Spark": "tests/matrix (checkpoints walk through Spark 4.0, 4.1 and 4.2)",
    "other session": "tests/spark/test_sessions.py (ANSI, Arrow, case, shuffle partitions, store)",
    "other zone": "tests/spark/test_sessions.py, tests/spark/test_time_boundaries.py",
}


def of_check(name: str, host: str) -> Scenario:
    """The query and the rows of a check."""
    check, world, criterion, batches = _drawn(name)
    spec = spec_of(
        criterion,
        final=check.final,
        identity_width=1 if check.several else 2,
        whole_operations=check.several,
        orphans=check.orphans,
        columns=COLUMNS,
    )
    if check.evidence is not None:
        spec = carrying(spec, *check.evidence)
    query = Query(spec, host, 2, check.several, 2)
    if check.is_chained:
        of_second = {"rule": CHAINED_RULE, "need": 1}
        second = spec_of(of_second, identity_width=2, columns=COLUMNS, clock_delay_ms=DELAY_MS)
        query = query._replace(host="log", then=Query(second, host, 3, False, 2))
    return Scenario(
        name=f"{name} {len(world.operations)}",
        query=query,
        criterion=criterion,
        batches=batches,
        sink=SINKS["all linger"],
        late=check.late,
        timeouts=(1, 2),
    )


@cache
def _drawn(name: str) -> tuple[Check, World, dict[str, Any], tuple[Batch, ...]]:
    """The first world whose outcomes are what the check shows."""
    check = CHECKS[name]
    mixed = check.rule == "mixed"
    criterion: dict[str, Any] = {} if mixed else {"rule": check.rule, "need": 2.0}
    for seed in range(1000):
        rng = random.Random(f"{name} {seed}")
        world = random_world(
            rng,
            n_operations=20 if check.is_chained else 8,
            n_events=30 if check.is_chained else 20,
            n_keys=3,
            max_keys=3 if check.several else 1,
            rules=RULES if mixed else (check.rule,),
            kinds=check.kinds,
            spoiled=check.spoiled,
            keyless=check.keyless,
        )
        world = noted(rng, world)
        if criterion:
            world = of_one_rule(world, criterion)
        batches = splits(rng, *world, BATCHES)
        evidence = None if check.evidence is None else Evidence(("note",), *check.evidence)
        outcomes = decide(
            *world,
            doubles=True,
            whole_operations=check.several,
            criterion=criterion,
            orphans=check.orphans,
            evidence=evidence,
        )
        statuses = {outcome["status"] for outcome in outcomes}
        carried = check.evidence is None or any(outcome.get("event") for outcome in outcomes)
        rows = [len(batch.operations) and len(batch.events) for batch in batches[:3]]
        if set(check.shows) <= statuses and carried and all(rows):
            batches = delayed(rng, batches, 0.5) if check.late else batches
            batches[-1] = batches[-1]._replace(watermark_ms=END_MS)
            return check, world, criterion, tuple(batches)
    raise AssertionError(f"no world shows {name}")


def wrong_with(check: str, happens: str, hosts: Sequence[str] = HOSTS) -> str:
    """Play a cell, which begins on each of the hosts; what is wrong with it, "" if nothing is."""
    with quiet():
        return next(filter(None, (_wrong_on(host, check, happens) for host in hosts)), "")


def _wrong_on(host: str, check: str, happens: str) -> str:
    simulation, looks = Simulation(of_check(check, host)), CHECKS[check].looks
    steps, sign = HAPPENS[happens]
    seen = 0

    def look() -> None:
        nonlocal seen
        seen += looks(simulation) if looks is not None else 0

    try:
        simulation.play(_on(host, steps), look)
    except Exception as error:
        return f"{host}: {type(error).__name__}: {error}"
    given = [number for each in simulation.judge.micro_batches.values() for number in each.numbers]
    if not set(CHECKS[check].shows) <= {simulation.judge.meaning[number]["status"] for number in given}:
        return f"{host}: no outcome is {' or '.join(CHECKS[check].shows)}"
    if not any(sign in name for name in simulation.seen) or (looks is not None and not seen):
        return f"{host}: nothing happened: {dict(simulation.seen)}"
    if stopped := [name for name in simulation.seen if "stopped" in name]:
        return f"{host}: {stopped}"
    return ""


def _on(host: str, steps: Sequence[Step]) -> list[Step]:
    """The steps with seeds of their own, and hosts by their names."""
    other = {"other": HOSTS[host == HOSTS[0]], "first": host}
    given = [{**step.given, "host": other.get(step.given.get("host", ""), "")} for step in steps]
    return [
        Step(step.what, number, of if step.what == "move" else step.given)
        for number, (step, of) in enumerate(zip(steps, given, strict=True))
    ]


CELLS = [
    (check, happens)
    for check, happens in product(CHECKS, HAPPENS)
    if not (CHECKS[check].is_chained and any(step.what == "move" for step in HAPPENS[happens][0]))
]
"""A checkpoint with two operators cannot be moved (tests/spark/test_moves.py)."""


def table() -> tuple[list[str], int]:
    """All cells as lines, and how many of them are wrong."""
    said = {cell: wrong_with(*cell) for cell in CELLS}
    wide = max(map(len, CHECKS))
    lines = [f"{'':{wide}}  {'  '.join(HAPPENS)}"]
    for check in CHECKS:
        words = [
            "red" if said.get((check, each)) else "green" if (check, each) in said else "refused" for each in HAPPENS
        ]
        cells = (f"{word:{len(each)}}" for word, each in zip(words, HAPPENS, strict=True))
        lines.append(f"{check:{wide}}  {'  '.join(cells)}".rstrip())
    lines += [f"{check}, {happens}: {text}" for (check, happens), text in said.items() if text]
    lines += [f"{name}, on Spark: {where}" for name, where in ON_SPARK.items()]
    red = sum(map(bool, said.values()))
    return [*lines, f"{len(said)} cells, each on both hosts; {red} red"], red
