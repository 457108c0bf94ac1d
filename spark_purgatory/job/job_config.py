"""The fields of the job's YAML file, made from the classes of options in `spark_purgatory.config`.

Unknown fields are refused. Options and Spark settings may hold passwords, so their values appear in no repr.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, Field, create_model, model_serializer, model_validator

from spark_purgatory.config import Completions, Operations, PurgatoryOptions, SinkOptions
from spark_purgatory.config.declared import MOST_COUNT, ColumnLike, Columns, Names, TimeOut, options_of
from spark_purgatory.config.options import NO_WATERMARK
from spark_purgatory.config.units import Duration, Size
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.codes import RULES
from spark_purgatory.job import config_types
from spark_purgatory.job.config_types import Model, Scalar, Text, Texts, Whole
from spark_purgatory.job.source_config import BROKERS, KafkaSource, Source, check_brokers


class InputSection(Model):
    """The fields of both inputs: the source of their rows and how they are shaped."""

    source: Source
    select: Texts = Field(default_factory=lambda: ["*"])
    where: Text | None = None

    def options(self) -> dict[str, Any]:
        """The arguments of `Operations` or `Completions` that the file gives."""
        return _given(self, but=InputSection.model_fields)

    def names(self, column: str) -> bool:
        return any(column in expression for expression in (*self.select, self.where or ""))


def _given(model: Model, but: Container[str] = ()) -> dict[str, Any]:
    named = (name for name in type(model).model_fields if name in model.model_fields_set and name not in but)
    return {name: getattr(model, name) for name in named}


def _watermark(given: str | None) -> str:
    if given is None:
        raise ValueError(NO_WATERMARK)
    return given


TYPES: dict[Any, Any] = {  # The file's types for options of these types; others are the same as in Python
    ColumnLike: config_types.OneColumn,
    TimeOut: config_types.TimeOutText,
    Columns: Texts,
    Names: Texts,
    Duration: config_types.Duration,
    Size: config_types.Size,
    int: Annotated[Whole, Field(ge=1, le=MOST_COUNT)],
}
M = TypeVar("M", bound=Model)


def with_options_of(declared: type, but: Container[str] = ()) -> Callable[[type[M]], type[M]]:
    """Add a field to a model for each option that a class of `spark_purgatory.config` declares."""

    def add(model: type[M]) -> type[M]:
        added: dict[str, Any] = {}
        for name, option in options_of(declared).items():
            kind = TYPES.get(option.kind, option.kind)
            kind = kind | None if option.is_optional else kind
            kind = Annotated[kind, AfterValidator(_watermark)] if name == "watermark" else kind
            default = ... if option.default is dataclasses.MISSING else option.default
            if name not in but:
                added[name] = (kind, Field(default, validate_default=name == "watermark"))
        return _with_fields(model, added)

    return add


def _with_fields(model: type[M], added: dict[str, Any]) -> type[M]:
    return create_model(model.__name__, __base__=model, __doc__=model.__doc__, __module__=__name__, **added)


def with_rules(model: type[M]) -> type[M]:
    """Add a field to a model for each rule, with its number if it needs one."""
    numbers = dict.fromkeys(criteria.NUMBERED, config_types.Number | None)
    return _with_fields(model, {rule: (numbers.get(rule), None) for rule in RULES})


@with_options_of(Operations)
class OperationsInput(InputSection):
    """Rows that wait; a field means what the argument of `Operations` of that name means."""

    def made(self) -> Operations:
        options = self.options()
        if len(options["keys"]) == 1:
            [options["keys"]] = options["keys"]
        return Operations(**options)


@with_options_of(Completions)
class CompletionsInput(InputSection):
    """Events; a field means what the argument of `Completions` of that name means."""

    def made(self) -> Completions:
        return Completions(**self.options())


class ByRowSection(Model):
    """Names of the columns from which each operation's own rule is read."""

    rule: Text = "rule"
    need: Text | None = None
    levels: Text | None = None


@with_rules
class CriterionSection(Model):
    """A rule and the number that it needs, if it needs one; or ``by_row``, with the columns of each row's own rule."""

    by_row: ByRowSection | None = None

    @model_validator(mode="before")
    @classmethod
    def _long_form(cls, given: Any) -> Any:
        """Return ``any_key`` as a field without a value."""
        return {given: None} if isinstance(given, str) else given

    @model_serializer
    def _short_form(self) -> Any:
        [(rule, need)] = _given(self).items()
        return rule if need is None else {rule: need}

    def made(self) -> criteria.Criterion | criteria.ByRow:
        """Return ``any_key()``, ``quorum(2)``; a need in quotes is an exact decimal."""
        if len(given := _given(self)) != 1:
            raise ValueError(f"give one rule for all operations, or by_row; got {' and '.join(given) or 'none'}")
        [(rule, need)] = given.items()
        if rule == "by_row":
            return criteria.by_row(**(need or ByRowSection()).model_dump())
        if need is None and rule in criteria.NUMBERED:
            raise ValueError(f"{rule} needs a number: {{{rule}: 2}}")
        if need is None:
            return criteria.Criterion(rule)
        try:
            return criteria.Criterion(rule, Decimal(need) if isinstance(need, str) else need)
        except InvalidOperation:
            raise ValueError(f"need={need!r} is not a number") from None


@with_options_of(PurgatoryOptions, but=("operations", "completions", "criterion"))
class RulesSection(Model):
    """The rules; a field means what the argument of `Purgatory` of that name means."""

    criterion: CriterionSection

    def options(self) -> dict[str, Any]:
        return _given(self, but=("criterion",))


TOPIC_FIELDS = ("topic", "options")


@with_options_of(SinkOptions)
class Output(Model):
    """The output: a table, by the arguments of `RecordAccumulator`; or a Kafka topic."""

    topic: Text | None = None
    options: dict[str, Scalar] = Field(default_factory=dict)  # The topic's producer: ``kafka.bootstrap.servers``, ...

    @model_validator(mode="after")
    def _can_be_made(self) -> Output:
        if self.topic is None:
            if self.options:
                raise ValueError("options belong to a Kafka topic: name it, as topic: outcomes")
            self.made()
            return self
        if others := sorted(set(_given(self, but=TOPIC_FIELDS))):
            raise ValueError(f"a Kafka topic does not have {', '.join(others)}: leave out what belongs to a table")
        check_brokers(self.options)
        if wrong := [name for name in self.options if not name.startswith("kafka.")]:
            raise ValueError(f"{', '.join(wrong)}: only options of Kafka's producer, kafka.*, are allowed")
        return self

    def made(self) -> SinkOptions:
        return SinkOptions(**_given(self, but=TOPIC_FIELDS))


class Trigger(Model):
    """The start of micro-batches: by the clock, or one after the other until all is read."""

    processingTime: config_types.Duration | None = None
    availableNow: Literal[True] | None = None
    one_of: ClassVar[tuple[str, ...]] = ("processingTime", "availableNow")


class DeadLetters(Model):
    """The table of rows that cannot be read, and the checkpoint of the query that writes it."""

    path: Text | None = None
    table: Text | None = None
    format: Literal["delta", "iceberg"] | None = None
    checkpoint: Text | None = None

    def made(self) -> SinkOptions:
        return SinkOptions(path=self.path, table=self.table, format=self.format)


class MetricsOutput(Model):
    """The reporters of the job's metrics (docs/metrics.md)."""

    prometheus_port: Annotated[Whole, Field(ge=1, le=65535)] | None = None
    opentelemetry: bool = False
    gauges_every: config_types.Duration = "1 minute"  # The interval between reads of the state's metrics


class CompleteUntil(Model):
    """The times up to which the inputs have brought all rows, for this run (`Purgatory.resolve`)."""

    operations: Text | None = None
    completions: Text | None = None


def letters_checkpoint(checkpoint: str) -> str:
    return checkpoint.rstrip("/") + "_dead_letters"


class JobConfig(Model):
    """The whole file."""

    name: Text = "await_completion"
    operations: OperationsInput
    completions: CompletionsInput
    purgatory: RulesSection
    output: Output
    dead_letters: DeadLetters | None = None
    checkpoint: Text
    trigger: Trigger = Trigger(processingTime="10 seconds")
    state_store: Literal["hdfs", "rocksdb"] = "rocksdb"
    packages: Texts = Field(default_factory=list)
    spark: dict[config_types.Setting, Scalar] = Field(default_factory=dict)
    summary: bool = True
    heartbeats: bool = True  # With ``idle_after``; false while a backlog is read, see `Purgatory.resolve`
    complete_until: CompleteUntil = CompleteUntil()
    metrics: MetricsOutput | None = None

    def options(self) -> PurgatoryOptions:
        return PurgatoryOptions(
            operations=self.operations.made(),
            completions=self.completions.made(),
            criterion=self.purgatory.criterion.made(),
            **self.purgatory.options(),
        )

    @property
    def dead_letters_checkpoint(self) -> str:
        given = None if self.dead_letters is None else self.dead_letters.checkpoint
        return given or letters_checkpoint(self.checkpoint)

    @model_validator(mode="after")
    def _parts_fit(self) -> JobConfig:
        self.options()
        sources = {"operations": self.operations.source, "completions": self.completions.source}
        for name, source in sources.items():
            is_read = isinstance(source, KafkaSource) and self.output.topic in (source.topic or ())
            if is_read and source.options[BROKERS] == self.output.options.get(BROKERS):
                raise ValueError(f"output.topic {self.output.topic!r} is read by {name}: it needs a topic of its own")
        formats = [source.format for source in sources.values()]
        if self.dead_letters is not None and not {"json", "csv", "kafka"} & {*formats}:
            raise ValueError(
                f"dead_letters: the sources are {formats[0]} and {formats[1]}, whose rows always fit their types; "
                "only json, csv and kafka have rows that cannot be read: leave dead_letters out"
            )
        return self
