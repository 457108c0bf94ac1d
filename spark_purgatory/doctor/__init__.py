"""``spark-purgatory doctor``: what a query needs, looked at before or beside it, each with a remedy if it is wrong."""
