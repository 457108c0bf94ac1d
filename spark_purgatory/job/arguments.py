"""Arguments that several commands share: settings of the session, a log file, consent. It works without Spark."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from spark_purgatory.errors import ConfigError
from spark_purgatory.terminal import say


def settings_from(texts: Sequence[str]) -> dict[str, str]:
    """Return settings of the session, from NAME=VALUE each. ConfigError shows none of them: one may be a password."""
    settings = {}
    for number, text in enumerate(texts, 1):
        name, equals, value = text.partition("=")
        if not (name and equals):
            fault = f"number {number} of {len(texts)} is not"
            raise ConfigError(f"--conf must be NAME=VALUE, for example spark.master=local[4]; {fault}")
        settings[name] = value
    return settings


@contextmanager
def writing_to(option: str, path: Path) -> Iterator[None]:
    """Raise ConfigError where the file or folder that an option names cannot be written."""
    try:
        yield
    except OSError as error:
        fault = f"{option} {str(path)!r} cannot be written ({error.strerror})"
        raise ConfigError(f"{fault}: give a place that exists or can be made, and that you may write to") from None


def log_file() -> Path:
    return Path(tempfile.mkdtemp(prefix="spark_purgatory_")) / "spark.log"


class Consent(NamedTuple):
    """Consent to a command that writes: ``--dry-run`` only shows, ``--yes`` agrees, else a person is asked."""

    dry_run: bool
    yes: bool

    def check(self) -> None:
        """Raise ConfigError where nobody could answer: before Spark is started."""
        if self.dry_run and self.yes:
            raise ConfigError("--dry-run and --yes exclude each other: give one of them")
        if not (self.dry_run or self.yes or sys.stdin.isatty()):
            raise ConfigError(
                "standard input is not a terminal, so it cannot be asked for a yes: look first with --dry-run added to "
                "this command, then run it with --yes"
            )

    def given(self, console: Console, question: str) -> bool:
        agreed = self.yes or (not self.dry_run and console.input(f"{question} [y/N] ").strip().lower() in ("y", "yes"))
        if not agreed:
            say(console, "Nothing was changed")
        return agreed
