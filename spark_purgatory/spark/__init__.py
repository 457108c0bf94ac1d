"""The Spark host: the only place that imports pyspark. DataFrames only, so that it runs under Spark Connect too."""
