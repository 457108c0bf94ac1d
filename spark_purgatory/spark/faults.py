"""What Spark raises, and what of it is the storage's fault.

Of a failed drain one line is told, and not what caused it: Delta's further lines hold the values of a row that its
table does not take.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from spark_purgatory.errors import StagingError

SPARK_FAULTS = (PySparkException, Py4JJavaError)
"""The second where a file system's own exception comes through."""
MAX_SAID = 300
_STORAGE = re.compile(r"\b(?:java\.nio\.file|java\.io|org\.apache\.hadoop)\.[\w.$]*(?:Exception|Error)\b[^\n]*")


def storage_fault(error: BaseException) -> str | None:
    """What a file system said, the innermost cause; None if it did not fail."""
    found = _STORAGE.findall(str(error))
    return found[-1][:MAX_SAID] if found else None


def said(error: BaseException) -> str:
    """In one line what went wrong."""
    first_line = str(error).strip().partition("\n")[0]
    return storage_fault(error) or f"{type(error).__name__}: {first_line[:MAX_SAID]}"


@contextmanager
def writing(what: str, folder: str) -> Iterator[None]:
    """Name what could not be written. It may be there or not: only a restart can tell."""
    try:
        yield
    except SPARK_FAULTS as error:
        raise StagingError(
            f"{what} could not be written below {folder}: {said(error)}. Nothing was lost, staged rows wait. Mend the "
            "storage of the checkpoint and start again"
        ) from error
