"""Reads of a query's checkpoint, and the check before its start."""
