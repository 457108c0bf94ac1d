"""`PurgatoryTester`: your purgatory step by step, on the real engine and without a Spark session.

Like Kafka's ``TopologyTestDriver``, Flink's test harness and Spark's ``TwsTester``, a test gives rows, moves the clock
and reads the outcomes. A step takes milliseconds and does not depend on the wall clock.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from spark_purgatory.config import PurgatoryOptions
from spark_purgatory.core.arrays.times import END_OF_TIME_MS
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.engine.outcomes import evidence_fields
from spark_purgatory.core.engine.waiting import WAITING_FIELDS, waiting_fields
from spark_purgatory.core.spec.arrivals import read_events, read_operations
from spark_purgatory.core.state.engine_snapshot import restore, save
from spark_purgatory.core.state.payload import plain
from spark_purgatory.core.state.step_log import ShardState
from spark_purgatory.errors import ConfigError
from spark_purgatory.schema import COUNTERS, REJECTION_COUNTERS
from spark_purgatory.spark.checkpoint.pending import waiting_rows
from spark_purgatory.spark.host.calls import counts_of
from spark_purgatory.spark.host.exchange import outcome_columns
from spark_purgatory.spark.operator.carried import arrow_schema
from spark_purgatory.spark.operator.purgatory import Plan, plan_for
from spark_purgatory.testing.tester_inputs import events_table, kind_of, operations_table

# Rows of a test as tables with the types that Spark would give them.
#
# The types are those of a schema, or of the first rows, as in ``spark.createDataFrame``: an int becomes a bigint, a
# str a string, a `datetime` with a time zone a timestamp, a `timedelta` a day-time interval. Later rows must fit these
# types. An error names the column of a value that does not fit; no value is rounded or guessed.

Rows: TypeAlias = Sequence[Mapping[str, Any]]  # of one input: dicts by column name
Schema: TypeAlias = pa.Schema | T.StructType
UNFIT = (pa.ArrowException, TypeError, OverflowError, UnicodeError)


class RowReader:
    """A reader of the rows of one input into tables with the schema of the first rows."""

    def __init__(self, given: str, schema: Schema | None) -> None:
        self.given = given
        self.schema: T.StructType | None = None
        if schema is not None:
            self._set(schema)

    def read(self, rows: Rows) -> pa.Table | None:
        """Return the rows as a table; None if there is no row and no schema."""
        rows = list(rows)
        if any(not isinstance(row, Mapping) for row in rows):
            raise ConfigError(f"{self.given} must be rows as dicts by column name")
        names = list(dict.fromkeys(name for row in rows for name in row))
        if self.schema is None:
            if not rows:
                return None
            self._set(pa.schema([(name, self._array(rows, name, None).type) for name in names]))
        assert self.schema is not None
        if unknown := [name for name in names if name not in self.schema.names]:
            raise ConfigError(
                f"{self.given}: column {unknown[0]!r} is not one of {', '.join(self.schema.names)}, which the schema "
                f"or the first rows have: give all columns in {self.given}_schema="
            )
        fields = arrow_schema(self.schema)
        columns = [self._array(rows, name, kind) for name, kind in zip(fields.names, fields.types, strict=True)]
        return pa.Table.from_arrays(columns, fields.names)

    def _set(self, schema: Schema) -> None:
        if isinstance(schema, pa.Schema):
            try:
                schema = from_arrow_schema(schema, prefer_timestamp_ntz=True)
            except PySparkException as error:
                raise ConfigError(f"{self.given}: Spark does not have a column's type: cast it. {error}") from error
        if not isinstance(schema, T.StructType):
            raise ConfigError(f"{self.given}_schema={schema!r} must be a pyarrow.Schema or a pyspark StructType")
        self.schema = schema

    def _array(self, rows: Sequence[Mapping[str, Any]], name: str, kind: pa.DataType | None) -> pa.Array:
        values = [row.get(name) for row in rows]
        try:
            array = pa.array(values, kind)
        except UNFIT as error:
            at = next((i for i, value in enumerate(values) if not _fits(value, kind)), 0)
            where = f"{self.given}[{at}][{name!r}] is a {type(values[at]).__name__}"
            if isinstance(error, UnicodeError):
                raise ConfigError(f"{where} with a lone surrogate, which UTF-8 does not have: remove it") from None
            wanted = "the type of the rows before it" if kind is None else f"{plain(kind)} of the schema or first rows"
            raise ConfigError(
                f"{where}, which does not fit {wanted}: give values of one type, or {self.given}_schema="
            ) from error
        has_zone = getattr(array.type, "tz", None) is not None
        if any((value.tzinfo is None) == has_zone for value in values if isinstance(value, datetime)):
            raise ConfigError(
                f"{self.given}: column {name!r} has datetimes with a time zone and without one, but a timestamp is an "
                "instant: write datetime(..., tzinfo=UTC)"
            )
        return array


def _fits(value: Any, kind: pa.DataType | None) -> bool:
    try:
        pa.array([value], kind)
    except UNFIT:
        return False
    return True


MAKE = "make the PurgatoryTester with"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHARDS = 1
COUNTED = (*(name for name in COUNTERS if name not in ("pending_change", "state_bytes_written")), *REJECTION_COUNTERS)


class Given(NamedTuple):
    operations: pa.Table | None
    completions: pa.Table | None
    watermark_ms: int


class TesterState(NamedTuple):
    """The progress of a tester. Each step makes a new one, so that a step that raises changes nothing."""

    watermark_ms: int = 0
    plan: Plan | None = None
    state: bytes | None = None
    outcomes: tuple[pa.Table, ...] = ()
    given: tuple[Given, ...] = ()  # the steps, until the columns of both inputs are known and decide their meaning


class PurgatoryTester:
    """A purgatory under test: give rows, move the watermark, and read outcomes and waiting operations.

    The engine, its state's format and the checks of types are those of a query; only the rows come from you. Like a
    micro-batch, every step restores the engine from its state and saves it. So a test covers restarts, and a step that
    raises changes nothing. There is one shard, because outcomes do not depend on the number of shards.

    Processing time has no effect here: the watermark moves only when you move it (``watermark=`` of both inputs is the
    delay by which Spark moves it), ``max_future`` rejects no row, and ``idle_after`` adds no heartbeat rows.

    Args:
        purgatory: Your `Purgatory`. Its fields must name columns: only Spark can evaluate a ``Column`` expression.
        operations_schema: The operations' columns and types, a ``pyarrow.Schema`` or a pyspark ``StructType``; by
            default those of the first operations.
        completions_schema: The columns and types of the completions, in the same forms.

    Raises:
        ConfigError: The configuration cannot work, or needs Spark.

    Example:
        >>> from datetime import UTC, datetime
        >>> from spark_purgatory import Completions, Operations, Purgatory, criteria
        >>> purgatory = Purgatory(
        ...     operations=Operations(
        ...         id="order_id", keys="order_id", created="ordered_at", timeout="30 minutes"
        ...     ),
        ...     completions=Completions(key="order_id", time="paid_at"),
        ...     criterion=criteria.any_key(),
        ... )
        >>> tester = PurgatoryTester(purgatory)
        >>> noon = datetime(2026, 11, 1, 12, tzinfo=UTC)
        >>> tester.step(operations=[{"order_id": id, "ordered_at": noon} for id in (7, 8)])
        []
        >>> paid = tester.step(completions=[{"order_id": 7, "paid_at": noon.replace(minute=5)}])
        >>> [(row["order_id"], row["status"], row["wait_ms"]) for row in paid]
        [(7, 'COMPLETED', 300000)]
        >>> [row["order_id"] for row in tester.pending]
        [8]
        >>> [row["status"] for row in tester.advance(noon.replace(minute=30))]
        ['EXPIRED']
    """

    def __init__(
        self,
        purgatory: PurgatoryOptions,
        operations_schema: Schema | None = None,
        completions_schema: Schema | None = None,
    ) -> None:
        self.purgatory = purgatory
        self._operations = RowReader("operations", operations_schema)
        self._completions = RowReader("completions", completions_schema)
        self._now = TesterState()
        self._last: tuple[TesterState, Given] | None = None
        if operations_schema is not None:
            self._now = TesterState(plan=self._learn(self.purgatory))

    def step(
        self, operations: Rows = (), completions: Rows = (), watermark: datetime | None = None
    ) -> list[dict[str, Any]]:
        """Run one micro-batch: the watermark moves, then events and operations arrive.

        Args:
            operations: Rows as dicts by column name. A column that a dict lacks is null.
            completions: Rows of events, in the same form.
            watermark: The watermark at which the rows arrive: a datetime with a time zone, rounded down to
                milliseconds. By default it does not move. A stream uses that of its earlier micro-batches.

        Returns:
            The outcomes of this step, as dicts. Times are datetimes in UTC, or ints of microseconds since 1970 after
            the year 9999.

        Raises:
            ConfigError: A row does not fit its schema, or the watermark goes back.
            LimitError: More operations would wait than ``max_pending_per_shard``, or the state has more bytes than
                ``max_state_bytes_per_shard``.
        """
        watermark_ms = self._now.watermark_ms if watermark is None else self._moved_to(watermark)
        return self._take(operations, completions, watermark_ms)

    def advance(self, watermark: datetime | timedelta) -> list[dict[str, Any]]:
        """Move the watermark without rows, and return the outcomes.

        Args:
            watermark: The new watermark, a datetime with a time zone; or its move, a timedelta.

        Raises:
            ConfigError: The watermark goes back, or a timedelta is given while there is no watermark.
        """
        if isinstance(watermark, timedelta):
            if self.watermark is None:
                raise ConfigError(f"watermark={watermark!r}, but there is no watermark yet: give a datetime")
            watermark = self.watermark + watermark
        return self.step(watermark=watermark)

    def finish(self) -> list[dict[str, Any]]:
        """Decide everything and return the outcomes, like a batch query at its end: the watermark passes all times."""
        return self._take((), (), END_OF_TIME_MS)

    def replay(self, seed: int = 0) -> list[dict[str, Any]]:
        """Run the last step again, as Spark does after a crash: its rows arrive in another order.

        Args:
            seed: Another seed gives another order.

        Returns:
            The outcomes, which replace those of the step.

        Raises:
            ConfigError: No step has run since the beginning or the last restart.
        """
        if self._last is None:
            raise ConfigError("replay() repeats the last step, and there is none yet: call step() first")
        self._now, given = self._last
        draw = random.Random(seed)
        operations, completions = (
            None if rows is None else rows.take(pa.array(draw.sample(range(len(rows)), len(rows)), pa.int64()))
            for rows in (given.operations, given.completions)
        )
        return self._run_step(Given(operations, completions, given.watermark_ms))

    def restart(self, purgatory: PurgatoryOptions | None = None) -> None:
        """Continue from the state's bytes, as a query does at a restart, perhaps with another configuration.

        Args:
            purgatory: The new configuration.

        Raises:
            ConfigError: It cannot work, or the columns of an input are not known yet.
            StateMismatchError: It differs from the old one in something that a restart cannot change.
        """
        if self._operations.schema is None or self._completions.schema is None:
            raise ConfigError(f"restart() needs both inputs' columns: {MAKE} operations_schema=, completions_schema=")
        plan = self._learn(purgatory or self.purgatory)
        if self._now.state is not None:
            restore(plan.spec, self._now.state, SHARDS)
        self.purgatory = purgatory or self.purgatory
        self._now, self._last = self._now._replace(plan=plan), None

    @property
    def watermark(self) -> datetime | None:
        """The watermark; None while there is none, and after `finish`."""
        if not 0 < self._now.watermark_ms < END_OF_TIME_MS:
            return None
        return EPOCH + timedelta(milliseconds=self._now.watermark_ms)

    @property
    def outcomes(self) -> list[dict[str, Any]]:
        """All outcomes so far, in the order of the steps."""
        return _dicts(self.outcomes_table)

    @property
    def outcomes_table(self) -> pa.Table:
        """All outcomes so far, with the types that Spark gives them."""
        nothing = pa.table({}) if self._now.plan is None else self._outcome_table(self._now.plan, [])
        return pa.concat_tables([nothing, *self._now.outcomes])

    @property
    def pending(self) -> list[dict[str, Any]]:
        """The waiting operations: their columns, and those of `spark_purgatory.pending`."""
        return _dicts(self.pending_table())

    def pending_table(self, prefix: str = "") -> pa.Table:
        """Return the waiting operations as a table.

        Args:
            prefix: A prefix of the added columns, if the operations have columns with their names.

        Raises:
            ConfigError: The operations have a column with the name of an added one.
        """
        columns = pa.schema([]) if self._operations.schema is None else arrow_schema(self._operations.schema)
        fields = WAITING_FIELDS if self._now.plan is None else waiting_fields(self._now.plan.spec)
        added = [field.with_name(prefix + field.name) for field in fields]
        if clash := [field.name for field in added if field.name in columns.names]:
            raise ConfigError(f"operations have a column {', '.join(clash)}, like pending_table: set prefix='waits_'")
        schema = pa.schema([*columns, *added])
        if self._now.state is None or self._now.plan is None:
            return schema.empty_table()
        names = {prefix + field.name: field.name for field in fields}
        waiting = waiting_rows(self._now.watermark_ms, schema, names, ShardState(self._now.state))
        return pa.Table.from_batches(waiting, schema)

    @property
    def counters(self) -> dict[str, int]:
        """The counts of all steps: `spark_purgatory.schema.COUNTERS` up to ``operations_late``, and
        `spark_purgatory.schema.REJECTION_COUNTERS`. They are 0 before the first operation.
        """
        if self._now.state is None or self._now.plan is None:
            return dict.fromkeys(COUNTED, 0)
        counts = counts_of(restore(self._now.plan.spec, self._now.state, SHARDS).outcomes.tally)
        return {name: counts[name] for name in COUNTED}

    # --- the steps --------------------------------------------------------------------------------

    def _moved_to(self, watermark: datetime) -> int:
        if not isinstance(watermark, datetime) or watermark.tzinfo is None:
            raise ConfigError(f"watermark={watermark!r} must be a datetime with a time zone: datetime(..., tzinfo=UTC)")
        watermark_ms = (watermark - EPOCH) // timedelta(milliseconds=1)
        if watermark_ms <= 0:
            raise ConfigError(f"{watermark=!s} is not after 1970, where a watermark begins: give a later time")
        if watermark_ms < self._now.watermark_ms:
            raise ConfigError(
                f"{watermark=!s} is before {self.watermark}, and a watermark never goes back: give a later one"
                if self.watermark
                else f"{watermark=!s} is after finish(), which decides everything: make another PurgatoryTester"
            )
        return watermark_ms

    def _take(self, operations: Rows, completions: Rows, watermark_ms: int) -> list[dict[str, Any]]:
        schemas = self._operations.schema, self._completions.schema
        try:
            given = Given(self._operations.read(operations), self._completions.read(completions), watermark_ms)
            return self._run_step(given)
        except BaseException:
            self._operations.schema, self._completions.schema = schemas
            raise

    def _run_step(self, given: Given) -> list[dict[str, Any]]:
        before, now = self._now, self._after(given)
        self._now, self._last = now, (before, given)
        return [row for table in now.outcomes[len(before.outcomes) :] for row in _dicts(table)]

    def _after(self, given: Given) -> TesterState:
        """Return the state after a step. Until an operation has come, events are only kept."""
        now = self._now
        if self._operations.schema is None:
            if (kind := self.purgatory.orphans) != "none":
                raise ConfigError(f"orphans={kind!r} adds rows with the operations' columns: {MAKE} operations_schema=")
            return now._replace(watermark_ms=given.watermark_ms, given=(*now.given, given))
        plan = self._learn(self.purgatory)
        if now.plan is None or now.plan.spec != plan.spec:
            now = self._made_anew(plan)
        now = self._run(now, given)
        return now._replace(given=(*now.given, given) if self._completions.schema is None else ())

    def _made_anew(self, plan: Plan) -> TesterState:
        """Run the steps so far again, with more known columns."""
        now = TesterState(plan=plan, given=self._now.given)
        for given in now.given:
            now = self._run(now, given)
        if now.outcomes != self._now.outcomes:
            raise ConfigError(
                f"the type of completions.value changes outcomes already returned: {MAKE} completions_schema="
            )
        return now

    def _run(self, now: TesterState, given: Given) -> TesterState:
        assert now.plan is not None, "bug: the operations' columns are unknown"
        spec, operations, events = now.plan.spec, None, None
        engine = EventTimePurgatory(spec) if now.state is None else restore(spec, now.state, SHARDS)
        if given.operations is not None and len(given.operations):
            table = operations_table(given.operations, self.purgatory, spec, now.plan.several_keys)
            operations = read_operations(table, spec)
        if given.completions is not None and len(given.completions):
            table = events_table(given.completions, self.purgatory, spec)
            events = read_events(table, spec.criterion, spec.whole_operations)
        outcomes = self._outcome_table(now.plan, engine.step(operations, events, given.watermark_ms))
        found = (*now.outcomes, outcomes) if len(outcomes) else now.outcomes
        return now._replace(watermark_ms=given.watermark_ms, state=save(engine, SHARDS), outcomes=found)

    def _learn(self, options: PurgatoryOptions) -> Plan:
        """Return the plan for the known columns. Raises ConfigError like `Purgatory.resolve`."""
        schema, events = self._operations.schema, self._completions.schema
        assert schema is not None, "bug: the operations' columns are unknown"
        if events is None and options.evidence_columns:
            raise ConfigError(
                "completions.columns and evidence= give outcomes columns of the completions, whose types are unknown "
                f"before the first one: {MAKE} completions_schema=, a pyarrow schema or a DataFrame's schema"
            )
        type_of_event = None if events is None else partial(kind_of, events)
        return plan_for(
            options, partial(kind_of, schema), schema, type_of_event, [] if events is None else events.names
        )

    def _outcome_table(self, plan: Plan, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        """Return outcomes as a query gives them, without the columns that it leaves out."""
        schema, evidence = arrow_schema(plan.schema), evidence_fields(plan.spec)
        given = [outcome_columns(batch, schema, evidence, self.purgatory.orphans != "none") for batch in batches]
        tables = [pa.Table.from_arrays(columns, schema=schema) for columns in given]
        return pa.concat_tables([schema.empty_table(), *tables]).drop_columns(
            self.purgatory.operations.names_of("exclude")
        )


def _dicts(table: pa.Table) -> list[dict[str, Any]]:
    columns = [[_value(each) for each in column] for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _value(value: pa.Scalar) -> Any:
    """Return the value. A time outside the years 1 to 9999 is Arrow's number."""
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        return value.value
