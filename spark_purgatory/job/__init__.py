"""The job behind ``spark-purgatory run``: a YAML file, a Spark session, progress in a terminal, a summary."""
