"""The version of the package and where its documentation is, here alone."""

__version__ = "0.1.0"
DOCUMENTATION = "https://github.com/spark-purgatory/spark-purgatory/tree/main/docs"
LOOKS_WRONG = f"{DOCUMENTATION}/looks_wrong.md"
"""What to do when outcomes look wrong; doctor and report send there."""
