"""Engines as tables that people can read and edit, and engines of such tables."""
