"""The version of the package, and the address of its documentation."""

__version__ = "0.1.0"
DOCUMENTATION = "https://github.com/spark-purgatory/spark-purgatory/tree/main/docs"
LOOKS_WRONG = f"{DOCUMENTATION}/looks_wrong.md"
