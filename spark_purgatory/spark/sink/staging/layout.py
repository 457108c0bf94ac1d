"""Where things lie in a staging folder (`staging_folder` says why)."""

from __future__ import annotations

EPOCHS_A_GENERATION = 16
GENERATIONS = 4


def generation(epoch: int) -> int:
    """The generation of an epoch."""
    return epoch // EPOCHS_A_GENERATION % GENERATIONS


def epoch_path(epoch: int) -> str:
    """Folder of an epoch's rows, below the staging folder."""
    return f"rows/generation={generation(epoch)}/epoch={epoch}"


def log_path(epoch: int) -> str:
    """Folder of an epoch's log, below the staging folder."""
    return f"log/generation={generation(epoch)}/epoch={epoch}"
