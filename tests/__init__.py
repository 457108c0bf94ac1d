"""Tests; a package, so that `python -m tests.conformance` finds ours and no other."""
