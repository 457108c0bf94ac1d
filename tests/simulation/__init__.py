"""The whole micro-batch without Spark: its driver, storage and the table in Python, and the product's code in them."""
