"""What a job says where Kafka fails: Spark's words name neither the topic nor the field of the file."""

from __future__ import annotations

from spark_purgatory.job.job_config import JobConfig
from spark_purgatory.job.source_config import BROKERS, KafkaSource

NO_TOPIC = "UnknownTopicOrPartitionException"
NO_BROKER = (
    "Timed out waiting for a node assignment",
    "Failed to create new KafkaAdminClient",
    "The node does not support METADATA",
    "Timeout expired while fetching topic metadata",
)


def kafka_fault(said: str, config: JobConfig) -> str | None:
    """What is wrong with the job's topics or brokers, by what Spark says; None where it speaks of something else."""
    sources = {"operations": config.operations.source, "completions": config.completions.source}
    read = {name: source for name, source in sources.items() if isinstance(source, KafkaSource)}
    if NO_TOPIC in said:
        topics = [f"{name}.source.topic ({', '.join(source.topic)})" for name, source in read.items() if source.topic]
        if config.output.topic:
            topics.append(f"output.topic ({config.output.topic})")
        return (
            f"the brokers have no topic of one of these names: {' or '.join(topics)}. Make the topic, or correct the "
            "name, and start the job again; the checkpoint may stay"
        )
    if any(text in said for text in NO_BROKER):
        options = [f"{name}.source.options" for name in read] + ["output.options"] * bool(config.output.topic)
        return (
            f"no Kafka broker answers at {BROKERS} of {' or '.join(options)}: is the address right, is it a broker's "
            "and not a controller's, and do the options on security fit it? Nothing was lost: start the job again when "
            "it answers"
        )
    return None
