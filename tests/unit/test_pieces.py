"""The folders of a staging folder that a drain may remove."""

from __future__ import annotations

from spark_purgatory.spark.sink.staging.ledger import EPOCHS_A_GENERATION, GENERATIONS, idle_paths


def test_a_generation_that_an_epoch_still_waits_in_stays() -> None:
    drain = (GENERATIONS - 1) * EPOCHS_A_GENERATION
    free = ["rows/generation=0", "log/generation=0"]
    assert [path for path in idle_paths(drain, set(), set()) if path in free] == free
    assert [path for path in idle_paths(drain, set(), {EPOCHS_A_GENERATION - 1}) if path in free] == []
    assert [path for path in idle_paths(drain + 1, set(), set()) if path in free] == []


def test_idle_epochs_go_and_the_log_of_a_micro_batch_that_waits_for_room_stays() -> None:
    assert idle_paths(7, {3, 2}, {4}) == [
        "log/generation=0/epoch=5", "rows/generation=0/epoch=2", "rows/generation=0/epoch=3",
    ]  # fmt: skip
    assert idle_paths(7, set(), set(), waiting=5) == []
