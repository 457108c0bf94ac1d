"""Engines as tables that people can read and edit, and engines from such tables."""
