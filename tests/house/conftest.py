"""Tests of the site need the tools that `make test-pages` installs and `make test` does not."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("mkdocs") and find_spec("griffe") else ["test_built_site.py", "test_docs_site.py"]
