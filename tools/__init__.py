"""Makers of pages and files: what the code declares (docs/configuration.md, the alerts), what the notebooks show."""
