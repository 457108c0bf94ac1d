"""Makers of pages and files that the code declares: docs/configuration.md, the dashboard, the alerts."""
