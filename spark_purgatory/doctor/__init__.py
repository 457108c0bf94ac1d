"""``spark-purgatory doctor``: findings about what a query needs, with a remedy for each fault."""
