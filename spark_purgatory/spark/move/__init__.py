"""A checkpoint moved to other shards, another host, other settings; what waits as tables, and back."""
