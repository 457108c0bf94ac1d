"""The steps of a micro-batch: it stages its rows, and drains files that are ready into the table exactly once."""
