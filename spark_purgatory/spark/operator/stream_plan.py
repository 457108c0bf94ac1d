"""The operators that a streaming DataFrame has passed, read from the plan that Spark explains.

Spark gives a query one watermark, which cannot move below an operator that waits for it. So a second watermark or a
stateful operator before a purgatory can leave it without outcomes for ever, and Spark raises no error. The plan shows
both, in any wrapping of the stream, and ``EXPLAIN`` works under Spark Connect too. Names and literals in it may have
line breaks. So the plan is explained twice, the second time one subquery deeper: lines of the tree move to the right,
and lines of a literal stay.

`Purgatory.resolve` names its query in the plan (`with_query`), by an alias that is in no schema and no table. So a
checkpoint can be compared with it before the query starts (`queries_of`).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from hashlib import sha256

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_purgatory.config import Completions, Operations
from spark_purgatory.config.options import LOG_HOST
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.operator.carried import schema_text
from spark_purgatory.spark.storage.spark_access import moved, own_session, settings

EXPLAIN = "EXPLAIN EXTENDED SELECT * FROM {} UNION ALL SELECT 1 AS {}"  # A frame's plan, then a node with a unique name
IN_FULL: Mapping[str, str] = {  # The settings with which EXPLAIN leaves nothing out of a plan
    "spark.sql.maxPlanStringLength": f"{2**31 - 16}b",
    "spark.sql.debug.maxToStringFields": "25",
    "spark.sql.redaction.string.regex": "(?!)",  # matches nothing
}
NODE = re.compile(r"([ :]*)(?:[+:]- )?(~?)([A-Z]\w*)(.*)", re.DOTALL)
"""A node of a plan's tree: three characters for each level above it, ``~`` if it streams, its name, the rest."""
WATERMARKED = re.compile(r"(\w+)#\d+\S*: ")
OBSERVED = re.compile(r" (.*?), \[coalesce\(sum\(received#", re.DOTALL)  # A purgatory's counters, under its name.
ALIAS = re.compile(r"SubqueryAlias (spark_purgatory_[0-9a-f]{64})")
STATEFUL = {
    "Aggregate": "an aggregation (groupBy, or a window)",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Distinct": "distinct",
    "Join": "a join of two streams",
    "GlobalLimit": "limit",
    "FlatMapGroupsWithState": "flatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "TransformWithState": "transformWithState",
    "TransformWithStateInPandas": "transformWithStateInPandas",
    "TransformWithStateInPySpark": "transformWithState",
}
"""Spark's stateful operators that may wait for a watermark: their names in a plan, and the names that users know.
dropDuplicates keeps state without waiting, so a purgatory after it has its outcomes in time."""
BY_TABLE = "write its outcomes to a table that a second query reads"
INSTEAD = dict.fromkeys(
    ("DeduplicateWithinWatermark", "Distinct"),
    ". Or leave it out: an id that comes again is a DUPLICATE, and completions.event_id counts an event once",
)


@dataclass(frozen=True)
class Node:
    name: str
    detail: str
    depth: int
    streams: bool


@dataclass(frozen=True)
class Query:
    """The properties of a purgatory's query that its checkpoint depends on."""

    spec: EngineSpec
    shards: int
    host: str
    route: str = "key"  # The field that chooses an operation's shard: "key", "id" or "scope"
    sources: tuple[str, ...] = field(default=(), compare=False)
    """The texts of the plan's sources. Spark opens those with equal texts once."""
    name: str = field(default="", compare=False)  # The name of its counters
    ticks: bool = field(default=False, compare=False)  # True if every micro-batch has rows, with heartbeats
    checkpoint: str | None = field(default=None, compare=False)  # Its newest times are taken over at a start


def plan_of(frame: DataFrame) -> list[Node]:
    """Return the nodes of a DataFrame's analyzed plan, from top to bottom. Raises ConfigError if Spark shortens it."""
    # A literal replaces the columns, because two of them may have one name, which a view cannot have.
    one = frame.select(F.lit(1).alias("one"))
    spark = frame.sparkSession
    # A declarative pipeline has Spark's own values, and no setting can be changed in it.
    changed = {name: value for name, value in IN_FULL.items() if (spark.conf.get(name) or value) != value}
    with own_session(spark) if changed else nullcontext(spark) as own, settings(own, changed):
        one = moved(one, own)
        lines, deeper = _explained(one, "{frame}"), _explained(one, "(SELECT * FROM {frame})")
    if not lines or len(deeper) != len(lines) + 2:
        raise ConfigError(
            "Spark does not explain the whole plan of the stream, so it cannot be checked. Nothing was started. Find "
            "the operation that explain(extended=True) cuts, write its rows to a table, and stream from the table"
        )
    texts: list[str] = []
    for line, deep in zip(lines, deeper[2:], strict=True):
        if _indent(deep) > _indent(line):
            texts.append(line)
        elif texts:
            texts[-1] += f"\n{line}"
    nodes = [match for text in texts if (match := NODE.fullmatch(text))]
    return [
        Node(each[3], each[4], each.start(2), bool(each[2]) or each[3].startswith("StreamingRelation"))
        for each in nodes
    ]


def _explained(frame: DataFrame, source: str) -> list[str]:
    """Return the lines of the analyzed plan of a query over a source; none if it is not complete."""
    end = f"end_{uuid.uuid4().hex}"
    text = frame.sparkSession.sql(EXPLAIN.format(source, end), frame=frame).collect()[0][0]
    _, _, analyzed = text.partition("\n== Analyzed Logical Plan ==\n")
    plan, found, _ = analyzed.partition(end)
    return plan.split("\n")[:-1] if found else []


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" :+-"))


def _below(plan: Sequence[Node], at: int) -> Iterator[int]:
    for i in range(at + 1, len(plan)):
        if plan[i].depth <= plan[at].depth:
            return
        yield i


def _keeps_state(plan: Sequence[Node], at: int) -> bool:
    """Return True if a node of a stream keeps state between micro-batches. A join does if both of its sides stream."""
    below = list(_below(plan, at))
    if plan[at].name != "Join":
        return plan[at].name in STATEFUL and (plan[at].streams or any(plan[i].streams for i in below))
    sides = [i for i in below if plan[i].depth == min(plan[j].depth for j in below)]
    return sum(any(plan[j].streams for j in (i, *_below(plan, i))) for i in sides) > 1


def check_inputs(operations: DataFrame, waits: Operations, completions: DataFrame, completes: Completions) -> None:
    for frame, given in ((operations, waits), (completions, completes)):
        _check_input(frame, given)
    if waits.outcomes_of is not None and completes.outcomes_of is not None:
        raise ConfigError(
            "operations.outcomes_of and completions.outcomes_of are both set, but one input must have a watermark of "
            "its own: write the outcomes of one purgatory to a table, and give resolve() a stream that reads it"
        )


def _check_input(frame: DataFrame, given: Operations | Completions) -> None:
    side, first, plan = type(given).__name__.lower(), given.outcomes_of, plan_of(frame)
    found, own = _purgatories(plan)
    _check_outcomes_of(found, given, side)
    for node in (plan[i] for i in own if _keeps_state(plan, i)):
        raise ConfigError(
            f"{side}: the stream comes out of {STATEFUL[node.name]}, which keeps state, and a purgatory after it may "
            "wait for the watermark for ever: write the stream to a table, and read it in a second query that has the "
            f"purgatory{INSTEAD.get(node.name, '')}"
        )
    for node in (plan[i] for i in own if plan[i].name == "EventTimeWatermark"):
        column = WATERMARKED.search(node.detail)
        which = f"column {column[1]!r}" if column else "a column"
        holds = "that of the first purgatory holds here" if first else f"{side}.watermark= sets it"
        raise ConfigError(f"{side}: {which} already has a watermark: remove withWatermark there, {holds}")


def _purgatories(plan: Sequence[Node]) -> tuple[dict[str, str], list[int]]:
    """Return (hosts of the purgatories whose outcomes a plan contains, by name; positions of the other nodes)."""
    found: dict[str, str] = {}
    own: list[int] = []
    inside: set[int] = set()
    for i, node in enumerate(plan):
        if i in inside:
            continue
        if node.name == "CollectMetrics" and (observed := OBSERVED.match(node.detail)):
            found[observed[1]] = "applyInPandasWithState" if plan[i + 1].name.startswith("FlatMap") else LOG_HOST
            inside.update(_below(plan, i))
        else:
            own.append(i)
    return found, own


def _check_outcomes_of(found: dict[str, str], given: Operations | Completions, side: str) -> None:
    first = given.outcomes_of
    if first is not None and first.host != LOG_HOST:
        raise ConfigError(
            f"{side} are outcomes of a purgatory with host={first.host!r}, after which Spark runs no other in the "
            f"query: give that purgatory host='transformWithState', or {BY_TABLE}"
        )
    if first is not None and given.idle_after is not None:
        raise ConfigError(
            f"{side}.idle_after is set, but outcomes have their purgatory's watermark: set it on the purgatory's inputs"
        )
    for name, host in found.items():
        if first is not None and name == first.name:
            continue
        ways = BY_TABLE
        if first is None:
            other = "" if host == LOG_HOST else "give that purgatory host='transformWithState', and "
            ways = f"{other}set {side}.outcomes_of= to that purgatory, or {ways}"
        because = f"(host={host!r}), so a watermark of its own would never move"
        raise ConfigError(f"{side}: the stream contains outcomes of the purgatory {name!r} {because}: {ways}")
    if first is not None and first.name not in found:
        raise ConfigError(
            f"{side}.outcomes_of names the purgatory {first.name!r}, but the stream does not come out of it: leave "
            "outcomes_of= out, or give the stream that its resolve() returned"
        )


def _check_what_follows(plan: Sequence[Node]) -> None:
    """Raise ConfigError for operators on outcomes that Spark refuses at the start, with the whole plan as its error."""
    hosts, own = _purgatories(plan)
    names = " and ".join(map(repr, hosts))
    on_outcomes = [plan[i] for i in own if not set(own) >= set(_below(plan, i)) and plan[i].name != "Union"]
    if LOG_HOST not in hosts.values() and len(hosts) > 1:
        raise ConfigError(
            f"the stream has the outcomes of the purgatories {names}, and Spark runs only one of them in a query: "
            "write each by a query of its own with a checkpoint of its own, into one table with shares_table=True"
        )
    if any(node.name == "EventTimeWatermark" for node in on_outcomes):
        raise ConfigError(
            f"the outcomes of the purgatory {names} already have its inputs' watermark, and Spark takes no other: "
            f"remove withWatermark, or {BY_TABLE}"
        )
    joins = [i for i in own if plan[i].name == "Join" and plan[i] in on_outcomes and _keeps_state(plan, i)]
    if joins and LOG_HOST not in hosts.values():
        raise ConfigError(
            f"the outcomes of the purgatory {names} are joined with another stream, and Spark keeps the state of only "
            f"one of both in a query: {BY_TABLE}, and join there"
        )


def with_query(results: DataFrame, query: Query) -> DataFrame:
    """Return the same rows with the query's name in their plan, where `queries_of` finds it."""
    facts = repr((query, schema_text(query.spec.columns), schema_text(query.spec.event_columns)))
    name = f"spark_purgatory_{sha256(facts.encode()).hexdigest()}"
    _named[name] = query
    return results.alias(name)


def queries_of(outcomes: DataFrame, needed: bool = False) -> list[Query]:
    """Return the purgatories in a stream, the last first.

    Raises ConfigError if one is ``needed`` and missing, or Spark would refuse what the stream does with outcomes.
    """
    plan = plan_of(outcomes)
    _check_what_follows(plan)
    sources = tuple(node.detail for node in plan if node.name.startswith("StreamingRelation"))
    found = [query for node in plan for query in queries_in(node.name + node.detail)]
    if needed and not found:
        raise ConfigError(
            "outcomes do not come out of a purgatory: give what Purgatory.resolve returned, or a stream made of it"
        )
    return [replace(query, sources=sources) for query in found]


def queries_in(plan: str) -> list[Query]:
    return [_named[name] for name in ALIAS.findall(plan) if name in _named]


_named: dict[str, Query] = {}
"""The queries of this process, by their names in plans. Equal ones have one name."""
