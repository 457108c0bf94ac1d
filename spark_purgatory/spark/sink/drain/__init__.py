"""What a micro-batch does: it stages its rows, and drains what is ready into the table exactly once."""
