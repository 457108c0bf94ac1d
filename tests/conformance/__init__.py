"""Replays traces recorded from Apache Kafka's own classes against the engine.

A trace is one JSON object: ``kind``, ``format``, ``config`` and ``steps``. Each step holds an operation, its
inputs and what Kafka answered. A replayer carries out the inputs on our engine; every answer must be Kafka's,
except the diagnostics ``evals``, ``polled`` and ``order``, which depend on ties in a heap or on a second look
that exists for other threads' sake.

    python -m tests.conformance DIR...           replay every trace below the folders, one step at a time
    python -m tests.conformance --batched DIR... steps that may share one call of the engine do
    python -m tests.conformance --pack DIR OUT   store the traces below DIR as OUT/<kind>.jsonl.xz, one a line

The folder ``traces`` holds 40 of each kind, packed so, recorded from Kafka 4.3.0.
"""
