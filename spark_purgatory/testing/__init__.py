"""What a test of the purgatory needs: the reference oracle, random worlds, random splits into batches."""

from spark_purgatory.testing.oracle import decide, why_event_rejected, why_operation_rejected
from spark_purgatory.testing.worlds import Batch, World, random_world, splits, watermark_us_after

__all__ = [
    "Batch",
    "World",
    "decide",
    "random_world",
    "splits",
    "watermark_us_after",
    "why_event_rejected",
    "why_operation_rejected",
]
