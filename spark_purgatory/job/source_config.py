"""The sources of the job's file. Options may hold passwords, so their values appear in no repr and in no error."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from spark_purgatory.config.declared import near
from spark_purgatory.job.config_types import Model, Scalar, Text, Texts

# ``select`` and ``where`` can name them next to the fields of a record's value; ``*`` leaves them out
KAFKA_COLUMNS = ("kafka_key", "kafka_headers", "kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp")
READ_OPTIONS = tuple(  # Spark's own options of a Kafka stream; it ignores names that it does not know
    "startingOffsets startingTimestamp startingOffsetsByTimestamp startingOffsetsByTimestampStrategy "
    "failOnDataLoss maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay minPartitions "
    "maxRecordsPerPartition kafkaConsumer.pollTimeoutMs fetchOffset.numRetries fetchOffset.retryIntervalMs "
    "groupIdPrefix".split()
)
WHOLE_NUMBERS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "minPartitions", "maxRecordsPerPartition")
VALUES = {  # Patterns of values that Spark would refuse when the job runs, and their words
    **dict.fromkeys(WHOLE_NUMBERS, ("0*[1-9][0-9]*", "a whole number of at least 1")),
    "failOnDataLoss": ("true|false", "true or false"),
    "startingOffsets": (r"earliest|latest|\{.*\}", 'earliest, latest, or JSON such as {"orders": {"0": 23}}'),
}
BROKERS = "kafka.bootstrap.servers"
BROKER = re.compile(r"(?:[\w+.-]+://)?\[?[\w.%:-]+\]?:(\d+)", re.ASCII)  # As Kafka reads an address


NEVER_TOO_OLD = {"maxFileAge": "36500d"}
"""Without it Spark leaves out, in silence, files that are seven days older than the newest one that it has read.
With it the driver never forgets a file."""


class FolderSource(Model):
    """Files that land in a folder; each is read once."""

    format: Literal["parquet", "json", "csv"]
    path: Text
    schema_ddl: Annotated[str, Field(alias="schema", min_length=1)]
    options: dict[str, Scalar] = Field(default_factory=dict)


class DeltaSource(Model):
    """Rows appended to a Delta table."""

    format: Literal["delta"]
    path: Text | None = None
    table: Text | None = None
    options: dict[str, Scalar] = Field(default_factory=dict)
    one_of: ClassVar[tuple[str, ...]] = ("path", "table")

    @property
    def sql_place(self) -> str:
        return self.table or f"delta.`{str(self.path).replace('`', '``')}`"


class Registry(Model):
    """A schema registry with the interface of Confluent's."""

    url: Text
    subject: Text | None = None  # None: the topic's name and ``-value``
    user_info: SecretStr | None = None  # ``user:password``

    @field_validator("url")
    @classmethod
    def _is_address(cls, value: str) -> str:
        if not re.fullmatch(r"https?://[^@/\s]+(/[^@\s]*)?", value):
            raise ValueError("must be http://host or https://host, with user and password in user_info")
        return value


class AvroValues(Model):
    """Avro in the values of records, and the source of its schema."""

    schema_file: Text | None = None  # A record's schema in JSON: the input's columns. None: the registry's latest
    registry: Registry | None = None
    confluent_header: bool = False  # Five bytes before a value name a registry's schema; always so with ``registry``
    unknown_id: Literal["stop", "reject"] = "stop"  # For a schema that the subject did not have when the job started

    @model_validator(mode="after")
    def _has_a_schema(self) -> AvroValues:
        if self.schema_file is None and self.registry is None:
            raise ValueError("give schema_file, registry, or both")
        return self

    @property
    def has_header(self) -> bool:
        """True if values begin with the five bytes."""
        return self.confluent_header or self.registry is not None


class KafkaSource(Model):
    """Records of Kafka topics, whose values are JSON or Avro."""

    format: Literal["kafka"]
    topic: Texts | None = None
    topic_pattern: Text | None = None
    schema_ddl: Annotated[str | None, Field(alias="schema", min_length=1)] = None
    avro: AvroValues | None = None
    options: dict[str, Scalar]
    one_of: ClassVar[tuple[str, ...]] = ("topic", "topic_pattern")

    @field_validator("options")
    @classmethod
    def _are_sparks(cls, options: dict[str, str]) -> dict[str, str]:
        check_brokers(options)
        for name, value in options.items():
            if not name.startswith("kafka."):
                _check_option(name, value)
        return options

    @model_validator(mode="after")
    def _one_of_each(self) -> KafkaSource:
        if (self.schema_ddl is None) == (self.avro is None):
            raise ValueError("give schema for values in JSON, or avro for values in Avro")
        if self.avro and self.avro.registry and not (self.avro.registry.subject or len(self.topic or ()) == 1):
            raise ValueError("avro.registry.subject is required where there are several topics")
        return self

    @property
    def subscription(self) -> tuple[str, str]:
        if self.topic is not None:
            return "subscribe", ",".join(self.topic)
        assert self.topic_pattern is not None, "bug: a source without topics was accepted"
        return "subscribePattern", self.topic_pattern


Source = Annotated[FolderSource | DeltaSource | KafkaSource, Field(discriminator="format")]


def check_brokers(options: dict[str, str]) -> None:
    """Raise ValueError unless the options name Kafka's brokers."""
    if BROKERS not in options:
        raise ValueError(f"options needs {BROKERS}, as host:port{near(BROKERS, options)}")
    found = [BROKER.fullmatch(broker.strip()) for broker in str(options[BROKERS]).split(",")]
    if not all(broker and 0 < int(broker[1]) < 1 << 16 for broker in found):
        raise ValueError(f"{BROKERS} must be host:port, or several with commas, with ports from 1 to 65535")


def _check_option(name: str, value: str) -> None:
    """Raise ValueError for an option that Spark does not have or a value that it would refuse when the job runs."""
    option = {each.lower(): each for each in READ_OPTIONS}.get(name.lower())
    if option is None:
        allowed = f"Allowed: kafka.* (the consumer's own) and {', '.join(READ_OPTIONS)}"
        raise ValueError(f"{name} is not an option of a Kafka stream{near(name, READ_OPTIONS) or '.'} {allowed}")
    pattern, words = VALUES.get(option, (".*", ""))
    if not re.fullmatch(pattern, value, re.IGNORECASE | re.DOTALL):
        raise ValueError(f"{option} must be {words}")
