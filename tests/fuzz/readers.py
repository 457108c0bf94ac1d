"""The readers of bytes that are fuzzed, each with inputs that it can read.

A mutated input gets a right checksum first. A checksum finds every accident on the way, so what is read here is what
only a fault of another release, or of the memory of the machine that wrote it, could have written.

Arrow's own metadata is left as Arrow wrote it: pyarrow ends the process (std::bad_alloc) for some that was changed.
"""

from __future__ import annotations

import json
import struct
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state import blob, frame, shard_head, step_log
from spark_purgatory.core.state.blob import decode, encode
from spark_purgatory.core.state.engine_snapshot import differences, inspect, restore
from spark_purgatory.core.state.step_log import ShardState, Step
from spark_purgatory.errors import StateError, StateMismatchError
from spark_purgatory.job.config_file import load_config
from spark_purgatory.job.kafka_values import schemas_of, with_mark
from spark_purgatory.job.source_config import AvroValues, KafkaSource
from spark_purgatory.spark.sink.staging import staging_folder
from spark_purgatory.spark.sink.staging.ledger import replay
from tests.fuzz.fuzzer import Reader
from tests.support.engine_driver import Shards
from tests.support.golden_states import GOLDEN

DATA = Path(__file__).resolve().parents[1] / "data"
JOB = Path(__file__).resolve().parents[2] / "conf" / "orders.yaml"


SPECS = (
    EngineSpec(criteria.any_key(), identity_width=2),
    EngineSpec(criteria.level(2), final=True, operation_ids=True, event_ids=True, orphans="all"),
    EngineSpec(criteria.sum_at_least(3), lookback_us=5_000, number="decimal(18,2)"),
)


def _states() -> list[bytes]:
    """Small states of several queries, and the golden one."""
    found = [GOLDEN.read_bytes()]
    for number, spec in enumerate(SPECS):
        shards = Shards(spec, several=number > 0)
        rows = [
            {
                "id": f"o{i}",
                "keys": list("abc"[i % 3 :]),
                "created": 10_000,
                "deadline": 20_000 + 7_000 * i,
                "row": None,
            }
            for i in range(6)
        ]
        happened = [{"key": key, "time": 12_000, "value": 2.0, "kind": "complete"} for key in ("b", "x")]
        if spec.operation_ids:
            happened.append({"key": "c", "time": 11_000, "value": None, "kind": "fail", "operation_id": "o9"})
        shards.step(rows, happened, 0)
        shards.step([], [], 14)
        state = shards.blobs[0]
        assert state is not None
        found.append(state)
    return found


def _body(state: bytes) -> bytes:
    return decode(np.frombuffer(state[frame.HEADER_BYTES :], np.uint8)).tobytes()


def _state(body: bytes) -> bytes:
    """A state whose body is this one, with right checksums."""
    coded = encode(np.frombuffer(body + bytes(blob.CODED), np.uint8))
    return frame.write_frame(blob.MAGIC, blob.VERSION, coded.tobytes())


def _contents(state: bytes) -> bytes:
    """Names and places of the arrays as JSON after its length, then the bytes of the arrays, uncompressed."""
    body = _body(state)
    with pa.ipc.open_stream(pa.py_buffer(body[8 : 8 + int.from_bytes(body[:8], "little")])) as reader:
        meta, arrays = (column[0].as_py() for column in reader.read_next_batch().columns)
    return struct.pack("<I", len(meta)) + meta + arrays


def _state_of(contents: bytes) -> bytes:
    size = int.from_bytes(contents[:4], "little") % (len(contents) + 1)
    columns = [pa.array([part], pa.large_binary()) for part in (contents[4 : 4 + size], contents[4 + size :])]
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays(columns, names=["meta", "arrays"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue().to_pybytes()
    return _state(struct.pack("<Q", len(stream)) + stream)


WITHOUT_QUERY = (blob.read_metadata, partial(differences, SPECS[0], shards=1), inspect)


def _read_state(state: bytes) -> None:
    """Everything that reads a state, as the query that wrote it, as another, and without a query."""
    refused: StateError | None = None
    for read in (*(partial(restore, spec, shards=1) for spec in SPECS), *WITHOUT_QUERY):
        try:
            read(blob=state)
        except StateMismatchError:
            continue
        except StateError as error:
            refused = error
    if refused is not None:
        raise refused


def _read_coded(coded: bytes) -> None:
    step_log.read_entry(frame.write_frame(step_log.MAGIC, step_log.VERSION, coded))


def _read_head(fields: bytes) -> None:
    data = frame.write_frame(shard_head.MAGIC, shard_head.VERSION, fields)
    head = shard_head.read_head(data)
    assert ShardState(None, data).size >= 0 or head.snapshot_bytes < 0
    head.wants_snapshot(1)
    ShardState(None, data).metadata()


def _sealed(entry: dict[str, Any], body: str) -> str:
    return json.dumps({**entry, "crc32": zlib.crc32(body.encode()), "body": body})


def _replay_lines(lines: bytes) -> None:
    """A whole log; a body is behind its name and a tab, a line that has none is taken as it is."""
    entries = []
    for number, line in enumerate(lines.decode("utf-8", "replace").splitlines()):
        name, tab, body = line.partition("\t")
        text = _sealed({"format": staging_folder.FORMAT, "entry": name}, body) if tab else line
        path = f"/c/staging/log/generation=0/epoch=0/{number}"
        entries.append(staging_folder._parse(path, text, "/c/staging"))
    ledger = replay(entries, "/c/staging")
    assert ledger.next_drain >= 0 or ledger.intent is not None
    ledger.idle_folders()


def _logs() -> list[bytes]:
    lines = [json.loads(line) for line in (DATA / "staging_log_v1.jsonl").read_text(encoding="utf-8").splitlines()]
    opened = [f"{line['entry']}\t{line['body']}" for line in lines]
    return ["\n".join(opened).encode(), "\n".join(map(json.dumps, lines)).encode()]


def _read_job(folder: Path, text: bytes) -> None:
    file = folder / "job.yaml"
    file.write_bytes(text)
    load_config(file)


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": ["null", "long"], "default": None}],
}


def _source(**avro: Any) -> KafkaSource:
    given = AvroValues.model_validate(avro)
    return KafkaSource(format="kafka", topic=["orders"], avro=given, options={"kafka.bootstrap.servers": "h:1"})


def _read_schema(folder: Path, text: bytes) -> None:
    file = folder / "order.avsc"
    file.write_bytes(text)
    with_mark(schemas_of(_source(schema_file=str(file)), "operations").reader)


def readers(folder: Path) -> list[Reader]:
    """All of them; some read a file in the folder."""
    states = _states()
    coded = [bytes(frame.read_frame(step_log.MAGIC, 1, step_log.write_entry(Step(5, [b"a" * 90])), "an entry"))]
    head = (DATA / "shard_head_v1.bin").read_bytes()
    heads = [bytes(frame.read_frame(shard_head.MAGIC, shard_head.VERSION, head, "a head"))]
    schema = json.dumps(AVRO).encode()
    return [
        Reader("contents of a state", lambda data: _read_state(_state_of(data)), [*map(_contents, states)]),
        Reader("compressed entry", _read_coded, coded),
        Reader("head of a shard", _read_head, heads),
        Reader("staging log", _replay_lines, _logs()),
        Reader("job file", partial(_read_job, folder), [JOB.read_bytes()]),
        Reader("Avro schema", partial(_read_schema, folder), [schema]),
    ]
