"""What may stand in the job's YAML file.

The models are frozen and forbid unknown fields, so that a misspelt name is an error, never a silent default.
Options and Spark settings may hold passwords: their values appear in no repr. Better still, keep them out
of the
file: ``${KAFKA_PASSWORD}`` is replaced from the environment (`spark_purgatory.job.config_file`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from spark_purgatory.config import SinkOptions, not_a_duration, parse_size

FREE_FORM = ("options", "spark")
"""Mappings whose keys hold dots and whose values may be secret."""


def _as_text(value: object) -> object:
    """YAML's 4 and true, as Spark's settings want them: "4" and "true"."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else value


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _is_duration(text: str) -> str:
    wrong = not_a_duration(text)
    if wrong is not None:
        raise ValueError(f"a duration is allowed; {wrong}")
    return text


def _is_size(text: str) -> str:
    parse_size(text, "size")
    return text


def _is_setting(name: str) -> str:
    if not name.startswith("spark."):
        raise ValueError("a setting whose name starts with 'spark.' is allowed")
    return name


Text = Annotated[str, Field(min_length=1)]
Scalar = Annotated[str, BeforeValidator(_as_text)]
Texts = Annotated[list[Text], BeforeValidator(_as_list)]
Duration = Annotated[str, AfterValidator(_is_duration)]
Size = Annotated[str, AfterValidator(_is_size)]
Setting = Annotated[str, AfterValidator(_is_setting)]


class Model(BaseModel):
    """Frozen, no unknown fields, and no option's value in a repr."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, dict.fromkeys(value, "***") if name in FREE_FORM else value


def _exactly_one(model: BaseModel, *names: str) -> None:
    given = [name for name in names if getattr(model, name) is not None]
    if len(given) != 1:
        raise ValueError(f"give exactly one of {', '.join(names)}; got {' and '.join(given) or 'none'}")


class FolderSource(Model):
    """Files that land in a folder; each is read once."""

    format: Literal["parquet", "json", "csv"]
    path: Text
    schema_ddl: Annotated[str, Field(alias="schema", min_length=1)]
    options: dict[str, Scalar] = {}


class DeltaSource(Model):
    """Rows appended to a Delta table."""

    format: Literal["delta"]
    path: Text | None = None
    table: Text | None = None
    options: dict[str, Scalar] = {}

    @model_validator(mode="after")
    def _one_place(self) -> DeltaSource:
        _exactly_one(self, "path", "table")
        return self


class KafkaSource(Model):
    """JSON records of a Kafka topic."""

    format: Literal["kafka"]
    topic: Text
    schema_ddl: Annotated[str, Field(alias="schema", min_length=1)]
    options: dict[str, Scalar]

    @model_validator(mode="after")
    def _brokers(self) -> KafkaSource:
        if "kafka.bootstrap.servers" not in self.options:
            raise ValueError("options needs kafka.bootstrap.servers, as host:port")
        return self


Source = Annotated[FolderSource | DeltaSource | KafkaSource, Field(discriminator="format")]


class Side(Model):
    """What both sides have: where rows come from and how they are shaped before they are used."""

    source: Source
    select: Texts = ["*"]
    where: Text | None = None
    watermark: Duration = "0 seconds"


class OperationsSide(Side):
    """Rows that wait; a field means what the argument of `spark_purgatory.Operations` of that name means."""

    id: Text
    keys: Texts
    created: Text
    timeout: Text | None = None
    timeout_ms: Text | Annotated[int, Field(ge=0)] | None = None
    deadline: Text | None = None

    @model_validator(mode="after")
    def _one_end(self) -> OperationsSide:
        _exactly_one(self, "timeout", "timeout_ms", "deadline")
        return self


class CompletionsSide(Side):
    """Events that complete them; a field means what the argument of `spark_purgatory.Completions` means."""

    key: Text
    time: Text
    value: Text | None = None


class Criterion(Model):
    """A rule and the number that it needs, if it needs one."""

    rule: Literal["any_key", "all_keys", "quorum", "count", "sum_at_least", "level"]
    need: int | float | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, given: object) -> object:
        """``any_key`` and ``{quorum: 2}``, the forms that people write."""
        if isinstance(given, str):
            return {"rule": given}
        if isinstance(given, dict) and len(given) == 1 and "rule" not in given:
            [(rule, need)] = given.items()
            return {"rule": rule, "need": need}
        return given

    @model_validator(mode="after")
    def _need_where_needed(self) -> Criterion:
        if self.rule in ("any_key", "all_keys"):
            if self.need is not None:
                raise ValueError(f"{self.rule} takes no number")
        elif self.need is None:
            raise ValueError(f"{self.rule} needs a number: {{{self.rule}: 2}}")
        return self


class Rules(Model):
    """How operations are decided; a field means what the argument of `spark_purgatory.Purgatory` means."""

    criterion: Criterion = Criterion(rule="any_key")
    emit: Literal["early", "final"] = "early"
    shards: Annotated[int, Field(ge=1)] | None = 8
    lookback: Duration = "0 seconds"
    max_future: Duration = "1 day"
    outcome_prefix: str = ""


class Output(Model):
    """The Delta table of outcomes; a field means what the argument of `RecordAccumulator` of that name means."""

    path: Text | None = None
    table: Text | None = None
    partition_by: Texts = []
    batch_size: Size = "128 MiB"
    linger: Duration = "5 minutes"
    buffer_memory: Size = "16 GiB"
    max_block: Duration = "1 minute"
    retry_backoff: Duration = "1 second"
    delivery_timeout: Duration = "30 minutes"
    max_request_size: Size = "4 GiB"

    @model_validator(mode="after")
    def _one_place(self) -> Output:
        _exactly_one(self, "path", "table")
        SinkOptions(**self.model_dump())
        return self


class Trigger(Model):
    """When a micro-batch starts: by the clock, or one after the other until all there is was read."""

    processingTime: Duration | None = None
    availableNow: Literal[True] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Trigger:
        _exactly_one(self, "processingTime", "availableNow")
        return self


class JobConfig(Model):
    """The whole file."""

    name: Text = "await_completion"
    operations: OperationsSide
    completions: CompletionsSide
    purgatory: Rules = Rules()
    output: Output
    checkpoint: Text
    trigger: Trigger = Trigger(processingTime="10 seconds")
    state_store: Literal["hdfs", "rocksdb"] = "hdfs"
    packages: Texts = []
    spark: dict[Setting, Scalar] = {}
    summary: bool = True

    @model_validator(mode="after")
    def _places_differ(self) -> JobConfig:
        if self.checkpoint == self.output.path:
            raise ValueError(f"checkpoint and output.path are both {self.checkpoint!r}: each needs a folder of its own")
        return self
