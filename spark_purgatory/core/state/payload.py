"""Columns of the payload, matched by name, with types that do not depend on a session's settings.

A session's settings change the Arrow type of a column, but not its values: ``spark.sql.session.timeZone`` is the label
of a timestamp, ``useLargeVarTypes`` gives texts 64-bit offsets, and in ANSI mode a cast gives no null. `plain` is the
type that is sent and kept. `conform` gives a column another type of the same values: other labels, names, and order of
a struct's fields, or a wider type (`widens`). If only labels, names and order differ, only offsets of large types are
copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays.value_column import struct_array
from spark_purgatory.errors import StateMismatchError

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
    """Return a column as ``kind``, whose structs may have more, fewer, or reordered fields; a missing one is null."""
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
    columns = [conform(column, kind) for column, kind in zip(batch.columns, schema.types, strict=True)]
    return pa.RecordBatch.from_struct_array(struct_array(columns, list(schema), len(batch)))


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

    Names that differ only in case are one name if no other can be meant.
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


# --- a checkpoint's columns in a query with other columns ------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """The rules by which a checkpoint's columns are compared with a query's (docs/upgrading.md).

    They are matched by name, like the fields of structs at every depth. A column that is new in the query is null, and
    must be nullable. A column that the query lacks is dropped with its values. A type may become wider (`widens`).
    Other changes are refused, also one column less and one more of the same or a wider type, which looks like a rename:
    `Operations.removed_columns` names columns to drop. A column that `Operations` names keeps its type, or becomes a
    wider whole number, whose texts are the same. Worked example (a test asserts it)::

        checkpoint   city string, amount decimal(10,2)
        query        amount decimal(12,2), city string     put into the query's order, amounts cast
        query        amount double, town string            refused: double is not wider, town may be city renamed

    Each shard is matched by itself, because shards without rows since an earlier restart have the columns of that time.
    """

    case_sensitive: bool = False
    fixed: Mapping[str, str] = field(default_factory=dict)  # columns that `Operations` names: path to argument
    removed_columns: Sequence[str] = ()  # paths of columns that the query gives up, also if they look renamed
    drops_any: bool = False  # the query gives up every column that it lacks

    def of_columns(
        self, held: list[pa.Field], wanted: list[pa.Field], path: str = "", in_key: bool = False
    ) -> Iterator[str]:
        """Yield the changes of columns, or of a struct's fields, that are refused, each with its remedy."""
        order, gone = matched([each.name for each in held], [each.name for each in wanted], self.case_sensitive)
        added = [now for at, now in zip(order, wanted, strict=True) if at < 0]
        for at, now in zip(order, wanted, strict=True):
            if at >= 0:
                yield from self.of_column(held[at], now, path + now.name, in_key)
        for at in gone:
            if in_key:
                yield (
                    f"column '{path}{held[at].name}' is part of a map's key in the checkpoint and not in the query. "
                    "Without it keys may be equal: select it"
                )
            else:
                yield from self._of_gone(held[at], added, path)
        for now in added:
            yield from self._of_added(now, path + now.name)

    def of_column(self, held: pa.Field, wanted: pa.Field, path: str, in_key: bool = False) -> Iterator[str]:
        """Yield the changes of one column, or of a part of it, that are refused."""
        then, now = held.type, wanted.type
        if is_record(then) and is_record(now):
            yield from self.of_columns(list(then), list(now), f"{path}.", in_key)
        elif pa.types.is_map(then) and pa.types.is_map(now):
            yield from self.of_column(then.key_field, now.key_field, f"{path}.key", True)
            yield from self.of_column(then.item_field, now.item_field, f"{path}.value", in_key)
        elif is_list(then) and is_list(now):
            yield from self.of_column(then.value_field, now.value_field, f"{path}.element", in_key)
        elif plain(then) == plain(now) and says_the_same(held, wanted):
            return
        elif not pa.types.is_null(then) and not widens(then, now):
            yield (
                f"column '{path}' is {type_text(held)} in the checkpoint and {type_text(wanted)} in the query, which "
                f"does not hold every value of it: cast it to {type_text(held)}"
            )
        elif (role := self._role(path)) and not (pa.types.is_integer(then) and pa.types.is_integer(now)):
            yield (
                f"column '{path}' is {role}, and is {type_text(held)} in the checkpoint and {type_text(wanted)} in the "
                f"query: cast it to {type_text(held)}"
            )

    def _of_gone(self, held: pa.Field, added: list[pa.Field], path: str) -> Iterator[str]:
        """Yield why a column that the query lacks cannot be dropped."""
        at = path + held.name
        is_dropped = self.drops_any or self._known(at) in map(self._known, self.removed_columns)
        if is_dropped or pa.types.is_null(held.type):
            return
        alike = [each for each in added if not any(self.of_column(held, each, path + each.name))]
        if not alike:
            return
        names = " and ".join(f"'{path}{each.name}'" for each in alike)
        only_case = any(each.name.lower() == held.name.lower() for each in alike)
        case = " (spark.sql.caseSensitive is true)" if only_case else ""
        yield (
            f"column '{at}' is in the checkpoint and not in the query, and {names}{case} of the same type is in the "
            f"query and not in the checkpoint: if it is renamed, select it as '{at}' and rename it after resolve(); if "
            f"not, give its values up with Operations(removed_columns=['{at}'])"
        )

    def _of_added(self, wanted: pa.Field, path: str) -> Iterator[str]:
        """Yield why a column that the checkpoint lacks cannot be null."""
        if role := self._role(path):
            yield f"column '{path}' is {role} and is not in the checkpoint: take {role} from the column as before"
        elif not wanted.nullable and not pa.types.is_null(wanted.type):
            yield (
                f"column '{path}' is not in the checkpoint and never null in the query, but waiting operations have no "
                "value: select when(lit(True), value) in its place, which may be null, and fill it after resolve()"
            )

    def _role(self, path: str) -> str | None:
        """Return the argument of `Operations` that names the column, or a column that it is a part of."""
        inside = f"{self._known(path)}."
        return next((role for name, role in self.fixed.items() if inside.startswith(f"{self._known(name)}.")), None)

    def _known(self, path: str) -> str:
        return path if self.case_sensitive else path.lower()


@dataclass(frozen=True)
class StoredPayload:
    held: pa.StructArray
    names: Sequence[str]  # of the columns in the checkpoint
    columns: pa.Schema
    comparison: Comparison = field(default_factory=Comparison)

    @property
    def order(self) -> list[int]:
        """The checkpoint's position of each of the query's columns, -1 for new ones."""
        return matched(self.names, self.columns.names, self.comparison.case_sensitive)[0]

    @property
    def is_same(self) -> bool:
        """True if the columns are those of the query in its order, as in all micro-batches but the first."""
        same_types = pa.schema(list(self.held.type)).equals(pa.schema(sent(self.columns)), check_metadata=True)
        return same_types and list(self.names) == self.columns.names

    def differences(self) -> list[str]:
        held = zip(self.held.type, self.names, strict=True)
        named = [each.with_name(name) for each, name in held]
        found = [] if self.is_same else list(self.comparison.of_columns(named, list(self.columns)))
        return found or list(dict.fromkeys(self._in_values()))

    def evolved(self) -> pa.StructArray:
        if self.is_same:
            return self.held
        fields, any_case, nothing = sent(self.columns), self.comparison.case_sensitive, pa.nulls(len(self.held))
        held = [self.held.field(at) if at >= 0 else nothing for at in self.order]
        columns = [conform(column, field.type, any_case) for column, field in zip(held, fields, strict=True)]
        return struct_array(columns, fields, len(self.held))

    def _in_values(self) -> Iterator[str]:
        """Yield the changes that are refused because of a null."""
        for at, now in zip(self.order, self.columns, strict=True):
            if at >= 0:
                yield from self._in_column(self.held.field(at), now, now.name)

    def _in_column(self, column: pa.Array, now: pa.Field, path: str) -> Iterator[str]:
        kind = now.type
        if not now.nullable and column.null_count:
            # Spark would read an arbitrary value in its place.
            yield f"column '{path}' is null in operations of the checkpoint and never null in the query: coalesce it"
        if pa.types.is_null(column.type) or column.type.equals(kind) or not pa.types.is_nested(kind):
            return
        if column.null_count:
            column = column.drop_null()
        yield from self._in_parts(column, kind, path)

    def _in_parts(self, column: pa.Array, kind: pa.DataType, path: str) -> Iterator[str]:
        if pa.types.is_struct(kind):
            held, wanted = ([part.name for part in each] for each in (column.type, kind))
            order, _ = matched(held, wanted, self.comparison.case_sensitive)
            for at, part in zip(order, kind, strict=True):
                if at >= 0:
                    yield from self._in_column(column.field(at), part, f"{path}.{part.name}")
            return
        # No list is null, so all values are between the first offset and the last.
        first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
        if pa.types.is_map(kind):
            yield from self._in_column(column.keys[first:last], kind.key_field, f"{path}.key")
            yield from self._in_column(column.items[first:last], kind.item_field, f"{path}.value")
        else:
            yield from self._in_column(column.values[first:last], kind.value_field, f"{path}.element")


def merged(held: Sequence[Sequence[pa.Field]], path: str = "") -> list[pa.Field]:
    """Merge sequences of columns, or fields, in the widest of their types.

    Shards differ if only some had rows since a restart with other columns. Raises StateMismatchError if no type of a
    name is wider than the others.
    """
    whole: list[pa.Field] = []
    for fields in held:
        order, _ = matched([each.name for each in whole], [each.name for each in fields])
        for at, each in zip(order, fields, strict=True):
            if at < 0:
                whole.append(each)
            else:
                whole[at] = _widest(whole[at], each, path + each.name)
    return whole


def _widest(one: pa.Field, other: pa.Field, path: str) -> pa.Field:
    kind, another = one.type, other.type
    nullable = one.nullable or other.nullable
    if is_record(kind) and is_record(another):
        return one.with_type(pa.struct(merged([list(kind), list(another)], f"{path}."))).with_nullable(nullable)
    if pa.types.is_map(kind) and pa.types.is_map(another):
        key = _widest(kind.key_field, another.key_field, f"{path}.key")
        item = _widest(kind.item_field, another.item_field, f"{path}.value")
        return one.with_type(pa.map_(key.with_nullable(False), item)).with_nullable(nullable)
    if is_list(kind) and is_list(another):
        element = _widest(kind.value_field, another.value_field, f"{path}.element")
        return one.with_type(pa.list_(element)).with_nullable(nullable)
    if pa.types.is_null(kind) or widens(kind, another):
        return other.with_nullable(nullable)
    if pa.types.is_null(another) or widens(another, kind) or plain(kind) == plain(another):
        return one.with_nullable(nullable)
    raise StateMismatchError(
        f"column '{path}' is {type_text(one)} in some shards and {type_text(other)} in others. It was dropped and "
        "later added with another type, and some shards had no rows in between"
    )
