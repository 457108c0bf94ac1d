"""Stream, batch and oracle agree."""
