"""Access to a storage through Spark: paths, settings, errors, and Spark's own files of a checkpoint."""
