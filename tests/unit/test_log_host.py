"""The head that the log host writes for a shard."""

from __future__ import annotations

import random
from dataclasses import replace

from spark_purgatory.core.spec.criteria import any_key
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.shard_head import read_head
from tests.simulation.tasks import Executor, Query, Rows, States, arrived, log_task
from tests.support.operations import op


def test_a_restart_with_another_kind_of_deadline_is_noted_in_the_head() -> None:
    """A log is replayed with the kind under which it was written."""
    states, spec = States(), EngineSpec(any_key(), operation_ids=True, identity_width=2)
    for number, is_sum in enumerate((False, True, True, False)):
        query = Query(replace(spec, deadline_is_sum=is_sum), "log", 1, False, 1)
        rows = Rows([op(str(number), row="r")], [], 1, str(number))
        worker = Executor().worker(random.Random(0))
        log_task(query, states, arrived(query, rows, 0), 1, worker, lambda point: None)
        assert read_head(states[0].values["head"]).deadline_is_sum == is_sum
