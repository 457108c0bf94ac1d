"""Columns of the payload: matched by name, of types that do not depend on a session's settings.

A session's settings show in the Arrow type of a column: ``spark.sql.session.timeZone`` is the label of a timestamp,
``useLargeVarTypes`` gives texts 64-bit offsets, and ANSI mode decides whether a cast may give null. The values are the
same under all of them. `plain` gives the type that is sent and kept; `conform` gives a column another type of the same
values: labels, names, order of a struct's fields. Nothing but the offsets of large types is copied.

A checkpoint holds columns in the order of the query that wrote it, and the names in that order. `restored` finds each
column of the query of today by its name, at every depth. Worked example (a test asserts it)::

    checkpoint   city string, amount decimal(10,2)
    query        amount decimal(10,2), city string     the same columns: put into the query's order
    query        amount double, town string            refused: amount has another type, city is missing, town is new
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from spark_purgatory.errors import StateMismatchError

UTC = "UTC"
SPARK_TYPE = b"spark_type"
"""Metadata of a field whose Arrow type says less than Spark's: time(0) and time(6) are one type in Arrow."""
OPAQUE = (b"variant", b"geometry", b"geography")
"""Metadata by which Spark marks a field of a struct that stands for one value."""
MOST_DIFFERENCES = 5
"""Differences that an error lists: a query that reads another table differs in every column."""
INTEGERS = {"int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint", "bool": "boolean"}


def plain(kind: pa.DataType) -> pa.DataType:
    """The type without a session's time zone and large types; nulls may be null."""
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


def conform(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values as ``kind``, whose structs have the same fields in any order."""
    held = column.type
    if held.equals(kind, check_metadata=True):
        return column
    if not len(column):
        return pa.array([], kind)
    if pa.types.is_struct(held):
        order, _ = matched([field.name for field in held], [field.name for field in kind])
        children = [conform(column.field(at), field.type) for at, field in zip(order, kind, strict=True)]
        return _nested(column, kind, [], children)
    if pa.types.is_map(held):
        entries = pa.struct([kind.key_field, kind.item_field])
        parts = [conform(column.keys, kind.key_type), conform(column.items, kind.item_type)]
        whole = pa.Array.from_buffers(entries, len(parts[0]), [None], children=parts)
        return _nested(column, kind, [_offsets(column)], [whole])
    if pa.types.is_list(held) or pa.types.is_large_list(held):
        return _nested(column, kind, [_offsets(column)], [conform(column.values, kind.value_type)])
    if pa.types.is_large_string(held) or pa.types.is_large_binary(held):
        return column.cast(kind)
    return column.view(kind)


def conform_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same columns, by position, under another schema."""
    columns = [conform(column, kind) for column, kind in zip(batch.columns, schema.types, strict=True)]
    if not columns:
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with plain types only."""
    kinds = [plain(kind) for kind in batch.schema.types]
    if kinds == batch.schema.types:
        return batch
    fields = [field.with_type(kind) for field, kind in zip(batch.schema, kinds, strict=True)]
    return conform_batch(batch, pa.schema(fields))


def _nested(column: pa.Array, kind: pa.DataType, buffers: list[pa.Buffer], children: list[pa.Array]) -> pa.Array:
    valid = None
    if column.null_count:
        valid = column.buffers()[0]
        if column.offset:
            valid = pa.py_buffer(np.packbits(column.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))
    return pa.Array.from_buffers(kind, len(column), [valid, *buffers], column.null_count, 0, children)


def _offsets(column: pa.Array) -> pa.Buffer:
    """Where each list begins in the whole of the values, (n + 1,) int32."""
    return pa.py_buffer(np.ascontiguousarray(column.offsets.to_numpy(), np.int32))


def matched(held: Sequence[str], wanted: Sequence[str], case_sensitive: bool = False) -> tuple[list[int], list[int]]:
    """(position in ``held`` of each name wanted, -1 where there is none; positions that no name has asked for).

    Names that differ in case alone are one name, as in Spark, where no other name can be meant.
    """
    if list(held) == list(wanted):
        return list(range(len(held))), []
    at = {name: i for i, name in enumerate(held)}
    order = [at.pop(name, -1) for name in wanted]
    if not case_sensitive:
        left: dict[str, list[int]] = {}
        for name, i in at.items():
            left.setdefault(name.casefold(), []).append(i)
        asked = [name.casefold() for name, i in zip(wanted, order, strict=True) if i < 0]
        for i, name in enumerate(wanted):
            found = left.get(name.casefold(), [])
            if order[i] < 0 and len(found) == 1 and asked.count(name.casefold()) == 1:
                order[i] = found[0]
    return order, sorted(set(range(len(held))) - set(order))


# --- what a checkpoint holds ----------------------------------------------------------------------


def sent(columns: pa.Schema) -> list[pa.Field]:
    """The payload's fields as they are sent and kept: ``p0``, ``p1``, ...; each may be null, as in ORPHANs' rows."""
    return [field.with_name(f"p{i}").with_nullable(True) for i, field in enumerate(columns)]


def restored(
    batches: list[pa.RecordBatch], names: Sequence[str] | None, columns: pa.Schema, case_sensitive: bool
) -> tuple[list[pa.RecordBatch], list[int]]:
    """(chunks of a checkpoint's payload in the query's order, where each of the query's columns was).

    ``names``: the columns' in the checkpoint, None where it remembers none: then they are the query's by position.
    Raises StateMismatchError where the query's columns are others.
    """
    schema = pa.schema(sent(columns))
    held, order, differences = batches[0].schema, list(range(len(columns))), list[str]()
    as_they_are = held.equals(schema, check_metadata=True)
    if names is None:
        differences = _differences_by_position(held, columns, case_sensitive)
    elif not as_they_are or names != columns.names:
        order, gone = matched(names, columns.names, case_sensitive)
        named = [field.with_name(name) for field, name in zip(held, names, strict=True)]
        differences = list(_differences(named, list(columns), order, gone, "", case_sensitive))
    if not differences:
        if order != list(range(len(columns))):
            batches = [batch.select(order) for batch in batches]
        differences = [text for batch in batches for text in _nulls_in(batch, columns)]
    if differences:
        more = len(differences) - MOST_DIFFERENCES
        listed = differences[:MOST_DIFFERENCES] + ([f"{more} more"] if more > 0 else [])
        raise StateMismatchError(
            f"operations: {'; '.join(listed)}: select the columns of the checkpoint under their names, in any order, "
            "and cast them to their types, or start a new checkpoint"
        )
    if as_they_are and names == columns.names:
        return batches, order
    return [conform_batch(batch, schema) for batch in batches], order


def _differences_by_position(held: pa.Schema, columns: pa.Schema, case_sensitive: bool) -> list[str]:
    if len(held) != len(columns):
        return [
            f"the checkpoint, written before columns were remembered by name, has {len(held)} columns of types "
            f"{', '.join(type_text(field) for field in held)}, and the query has {len(columns)}"
        ]
    pairs = zip(held, columns, strict=True)
    return [text for then, now in pairs for text in _differences_of(then, now, now.name, case_sensitive)]


def _differences(
    held: list[pa.Field], wanted: list[pa.Field], order: list[int], gone: list[int], path: str, case_sensitive: bool
) -> Iterator[str]:
    for at, field in zip(order, wanted, strict=True):
        if at >= 0:
            yield from _differences_of(held[at], field, path + field.name, case_sensitive)
    for at in gone:
        yield f"column '{path}{held[at].name}' is in the checkpoint and not in the query"
    names = {held[at].name.casefold(): held[at].name for at in gone}
    for at, field in zip(order, wanted, strict=True):
        if at < 0:
            other = names.get(field.name.casefold()) if case_sensitive else None
            hint = f" (which has '{path}{other}': spark.sql.caseSensitive is true)" if other else ""
            yield f"column '{path}{field.name}' is in the query and not in the checkpoint{hint}"


def _differences_of(held: pa.Field, wanted: pa.Field, path: str, case_sensitive: bool) -> Iterator[str]:
    """How one column, or a part of it, differs."""
    then, now = held.type, wanted.type
    if _is_record(then) and _is_record(now):
        order, gone = matched([field.name for field in then], [field.name for field in now], case_sensitive)
        yield from _differences(list(then), list(now), order, gone, f"{path}.", case_sensitive)
    elif pa.types.is_map(then) and pa.types.is_map(now):
        yield from _differences_of(then.key_field, now.key_field, f"{path}.key", case_sensitive)
        yield from _differences_of(then.item_field, now.item_field, f"{path}.value", case_sensitive)
    elif _is_list(then) and _is_list(now):
        yield from _differences_of(then.value_field, now.value_field, f"{path}.element", case_sensitive)
    elif plain(then) != plain(now) or not _says_the_same(held, wanted):
        yield f"column '{path}' is {type_text(held)} in the checkpoint and {type_text(wanted)} in the query"


def _says_the_same(held: pa.Field, wanted: pa.Field) -> bool:
    """Whether two fields of one Arrow type are of one Spark type, as far as is known: states once noted none."""
    then, now = (field.metadata or {} for field in (held, wanted))
    return _opaque(held.type) == _opaque(wanted.type) and then.get(SPARK_TYPE) in (None, now.get(SPARK_TYPE))


def _opaque(kind: pa.DataType) -> str:
    """The Spark type that a struct stands for, empty if it is one."""
    marks = {} if not pa.types.is_struct(kind) else {k: v for field in kind for k, v in (field.metadata or {}).items()}
    name = next((mark.decode() for mark in OPAQUE if marks.get(mark) == b"true"), "")
    return f"{name}({marks[b'srid'].decode()})" if b"srid" in marks and name else name


def _is_record(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and not _opaque(kind)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _nulls_in(batch: pa.RecordBatch, columns: pa.Schema) -> Iterator[str]:
    """Columns that the query says are never null, and that hold a null: Spark would read any value in its place."""
    for column, field in zip(batch.columns, columns, strict=True):
        if field.nullable and not pa.types.is_nested(field.type):
            continue
        for path in _null_parts(column, field, field.name):
            yield f"column '{path}' is null in operations of the checkpoint and never null in the query (coalesce it)"


def _null_parts(column: pa.Array, field: pa.Field, path: str) -> Iterator[str]:
    kind = field.type
    if not field.nullable and column.null_count:
        yield path
    if column.type.equals(kind) or not pa.types.is_nested(kind):
        return
    if column.null_count:
        column = column.drop_null()
    if pa.types.is_struct(kind):
        order, _ = matched([part.name for part in column.type], [part.name for part in kind])
        for at, part in zip(order, kind, strict=True):
            yield from _null_parts(column.field(at), part, f"{path}.{part.name}")
    else:
        # No list is null any more, so that what they hold lies between the first offset and the last.
        first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
        if pa.types.is_map(kind):
            yield from _null_parts(column.keys[first:last], kind.key_field, f"{path}.key")
            yield from _null_parts(column.items[first:last], kind.item_field, f"{path}.value")
        else:
            yield from _null_parts(column.values[first:last], kind.value_field, f"{path}.element")


def type_text(field: pa.Field) -> str:
    """A field's type in Spark's words."""
    kind, note = field.type, (field.metadata or {}).get(SPARK_TYPE)
    if note is not None:
        return note.decode()
    if pa.types.is_struct(kind):
        return _opaque(kind) or f"struct<{','.join(f'{part.name}:{type_text(part)}' for part in kind)}>"
    if pa.types.is_map(kind):
        return f"map<{type_text(kind.key_field)},{type_text(kind.item_field)}>"
    if _is_list(kind):
        return f"array<{type_text(kind.value_field)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    for check, name in (
        (pa.types.is_date, "date"),
        (pa.types.is_duration, "interval day to second"),
        (pa.types.is_time, "time"),
        (pa.types.is_null, "void"),
    ):
        if check(kind):
            return name
    return INTEGERS.get(str(kind), str(plain(kind)))
