"""Columns of the payload, matched by name, with types that do not depend on a session's settings.

A session's settings change the Arrow type of a column, but not its values: ``spark.sql.session.timeZone`` is the label
of a timestamp, ``useLargeVarTypes`` gives texts 64-bit offsets, and in ANSI mode a cast gives no null. `plain` is the
type that is sent and kept. `conform` gives a column another type of the same values: other labels, names, and order of
a struct's fields, or a wider type (`widens`). If only labels, names and order differ, only offsets of large types are
copied.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

UTC = "UTC"
SPARK_TYPE = b"spark_type"  # metadata with Spark's type if Arrow's is less exact: time(0) and time(6) are one type
OPAQUE = (b"variant", b"geometry", b"geography")  # metadata of fields of a struct that stands for one value
NUMBERS = {"int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint", "bool": "boolean"}
NAMES = (
    (pa.types.is_date, "date"),
    (pa.types.is_duration, "interval day to second"),
    (pa.types.is_time, "time"),
    (pa.types.is_null, "void"),
)


def plain(kind: pa.DataType) -> pa.DataType:
    """Return the type without a session's time zone and large types; a null type is nullable."""
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, UTC)
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    return pa.struct([_plain_field(field) for field in kind]) if pa.types.is_struct(kind) else kind


def _plain_field(field: pa.Field) -> pa.Field:
    nullable = field.nullable or pa.types.is_null(field.type)
    return pa.field(field.name, plain(field.type), nullable, field.metadata)


def check_layout(batch: pa.RecordBatch) -> None:
    """Raise ArrowInvalid for offsets beyond the values, which would end the process. A text may have any bytes."""
    for column in batch.columns:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            column.view(_with_bytes(column.type)).validate(full=True)


def _with_bytes(kind: pa.DataType) -> pa.DataType:
    """Return a type of `plain` with bytes in place of texts, and nulls allowed, at every depth."""
    if pa.types.is_map(kind):
        return pa.map_(_with_bytes(kind.key_type), _with_bytes(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_with_bytes(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _with_bytes(field.type)) for field in kind])
    return pa.binary() if pa.types.is_string(kind) else kind


def conform(column: pa.Array, kind: pa.DataType, case_sensitive: bool = False) -> pa.Array:
    """Return a column's values as ``kind``, whose structs may have more fields, fewer, or another order of them.

    A field that the column lacks is null.
    """
    held = column.type
    if held.equals(kind, check_metadata=True):
        return column
    if not len(column):
        return pa.array([], kind)
    if pa.types.is_null(held):
        return pa.nulls(len(column), kind)
    if pa.types.is_struct(held):
        order, _ = matched([field.name for field in held], [field.name for field in kind], case_sensitive)
        fields = [column.field(at) if at >= 0 else pa.nulls(len(column)) for at in order]
        children = [conform(field, part.type, case_sensitive) for field, part in zip(fields, kind, strict=True)]
        return _nested(column, kind, [], children)
    if pa.types.is_map(held):
        entries = pa.struct([kind.key_field, kind.item_field])
        pairs = ((column.keys, kind.key_type), (column.items, kind.item_type))
        parts = [conform(part, part_kind, case_sensitive) for part, part_kind in pairs]
        whole = pa.Array.from_buffers(entries, len(parts[0]), [None], children=parts)
        return _nested(column, kind, [_offsets(column)], [whole])
    if is_list(held):
        return _nested(column, kind, [_offsets(column)], [conform(column.values, kind.value_type, case_sensitive)])
    if pa.types.is_large_string(held) or pa.types.is_large_binary(held) or widens(held, kind):
        return column.cast(kind)
    return column.view(kind)


def conform_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a batch, by position, under another schema."""
    columns = [conform(column, kind) for column, kind in zip(batch.columns, schema.types, strict=True)]
    return batch_of(columns, schema, len(batch))


def batch_of(columns: list[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _nested(column: pa.Array, kind: pa.DataType, buffers: list[pa.Buffer], children: list[pa.Array]) -> pa.Array:
    valid = None
    if column.null_count:
        valid = column.buffers()[0]
        if column.offset:
            valid = pa.py_buffer(np.packbits(column.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))
    return pa.Array.from_buffers(kind, len(column), [valid, *buffers], column.null_count, 0, children)


def _offsets(column: pa.Array) -> pa.Buffer:
    """Return the offsets of lists in all values, (n + 1,) int32."""
    return pa.py_buffer(np.ascontiguousarray(column.offsets.to_numpy(), np.int32))


def matched(held: Sequence[str], wanted: Sequence[str], case_sensitive: bool = False) -> tuple[list[int], list[int]]:
    """Return the position in ``held`` of each name wanted, -1 if there is none, and the positions that are left.

    Names that differ only in case are one name, as in Spark, if no other name can be meant.
    """
    if list(held) == list(wanted):
        return list(range(len(held))), []
    at = {name: i for i, name in enumerate(held)}
    order = [at.pop(name, -1) for name in wanted]
    if not case_sensitive:
        left: dict[str, list[int]] = {}
        for name, i in at.items():
            left.setdefault(name.lower(), []).append(i)
        asked = [name.lower() for name, i in zip(wanted, order, strict=True) if i < 0]
        for i, name in enumerate(wanted):
            found = left.get(name.lower(), [])
            if order[i] < 0 and len(found) == 1 and asked.count(name.lower()) == 1:
                order[i] = found[0]
    return order, sorted(set(range(len(held))) - set(order))


def sent(columns: pa.Schema) -> list[pa.Field]:
    """Return the payload's fields as they are sent and kept, ``p0``, ``p1``, ...; each is nullable for ORPHAN rows."""
    return [field.with_name(f"p{i}").with_nullable(True) for i, field in enumerate(columns)]


# --- types that differ ----------------------------------------------------------------------------

# Types that hold every value of another exactly, like Delta's type widening; `widens` adds decimals.
WIDER: dict[pa.DataType, tuple[pa.DataType, ...]] = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64(), pa.float64()),
    pa.int16(): (pa.int32(), pa.int64(), pa.float64()),
    pa.int32(): (pa.int64(), pa.float64()),
    pa.float32(): (pa.float64(),),
    pa.date32(): (pa.timestamp("us"),),
}
DIGITS = {pa.int8(): 10, pa.int16(): 10, pa.int32(): 10, pa.int64(): 20}  # before the point, by Delta's rule


def widens(then: pa.DataType, now: pa.DataType) -> bool:
    """Return True if ``now`` is a wider type than ``then`` and holds every value exactly."""
    if pa.types.is_decimal(now):
        whole = now.precision - now.scale
        if pa.types.is_decimal(then):
            return then != now and now.scale >= then.scale and whole >= then.precision - then.scale
        return then in DIGITS and whole >= DIGITS[then]
    return now in WIDER.get(then, ())


def says_the_same(held: pa.Field, wanted: pa.Field) -> bool:
    """Return True if fields of one Arrow type have one Spark type, as far as both note it (the tester does not)."""
    then, now = (field.metadata or {} for field in (held, wanted))
    return _opaque(held.type) == _opaque(wanted.type) and then.get(SPARK_TYPE) in (None, now.get(SPARK_TYPE))


def _opaque(kind: pa.DataType) -> str:
    """Return the Spark type that a struct stands for; empty if it is a struct."""
    marks = {} if not pa.types.is_struct(kind) else {k: v for field in kind for k, v in (field.metadata or {}).items()}
    name = next((mark.decode() for mark in OPAQUE if marks.get(mark) == b"true"), "")
    return f"{name}({marks[b'srid'].decode()})" if b"srid" in marks and name else name


def is_record(kind: pa.DataType) -> bool:
    """Return True if a type is a struct of fields, and not one value that Spark keeps as a struct."""
    return pa.types.is_struct(kind) and not _opaque(kind)


def is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def type_text(field: pa.Field) -> str:
    """Return a field's type in Spark's words."""
    kind, note = field.type, (field.metadata or {}).get(SPARK_TYPE)
    if note is not None:
        return note.decode()
    if pa.types.is_struct(kind):
        return _opaque(kind) or f"struct<{','.join(f'{part.name}:{type_text(part)}' for part in kind)}>"
    if pa.types.is_map(kind):
        return f"map<{type_text(kind.key_field)},{type_text(kind.item_field)}>"
    if is_list(kind):
        return f"array<{type_text(kind.value_field)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    return next((name for check, name in NAMES if check(kind)), NUMBERS.get(str(kind), str(plain(kind))))
