"""`python -m tests.support.measured [--beside "OTHER ..."] COMMAND ...`: run it, and print wall and CPU seconds of all.

CPU seconds tell what a change costs, for they hardly depend on what else the machine does.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence

ADOPT_ORPHANS = 36
"""Linux's PR_SET_CHILD_SUBREAPER: a JVM outlives the Python that started it, and its seconds count as well."""
PATIENCE_SECONDS = 20


def measured(command: Sequence[str], beside: Sequence[str] = ()) -> tuple[int, str]:
    """Run a command, and another one next to it; returns the exit code, not 0 if one failed, and what they took."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(ADOPT_ORPHANS, 1, 0, 0, 0)
    began, cpu_began = time.monotonic(), cpu_of_children()
    other = subprocess.Popen(beside) if beside else None
    codes = [subprocess.call(command), other.wait() if other else 0]
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    _wait_for_orphans()
    return max(codes, key=abs), f"{minutes} min {seconds} s, {cpu_of_children() - cpu_began:.0f} CPU seconds"


def cpu_of_children() -> float:
    """CPU seconds of all processes that this one has waited for, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _wait_for_orphans() -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.1)
        except ChildProcessError:
            return


if __name__ == "__main__":
    beside, command = ([], sys.argv[1:]) if sys.argv[1] != "--beside" else (shlex.split(sys.argv[2]), sys.argv[3:])
    exit_code, took = measured(command, beside)
    print(f"{' '.join(command)}: {took}", flush=True)
    sys.exit(exit_code)
