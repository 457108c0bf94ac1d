"""How folders of a storage are read through Spark: paths without wildcards, and what a query has committed."""
