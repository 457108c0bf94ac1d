"""A checkpoint's payload columns in a query with other columns (docs/upgrading.md), and the changes that are refused.

A checkpoint has columns in the order of the query that wrote it. They are matched by name with those of the query, like
the fields of structs at every depth. A column that is new in the query is null, and must be nullable. A column that the
query lacks is dropped with its values. A type may become wider (`widens`). Other changes are refused, also one column
less and one more of the same or a wider type, which looks like a rename: `Operations.removed_columns` names columns to
drop. A column that `Operations` names keeps its type, or becomes a wider whole number, whose texts are the same. Worked
example (a test asserts it)::

    checkpoint   city string, amount decimal(10,2)
    query        amount decimal(12,2), city string     put into the query's order, amounts cast
    query        amount double, town string            refused: double is not wider, town may be city under a new name

Each shard is matched by itself, because shards without rows since an earlier restart have the columns of that time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from spark_purgatory.core.state import payload_schema
from spark_purgatory.core.state.payload_schema import conform, is_list, is_record, matched, plain, type_text, widens
from spark_purgatory.errors import StateMismatchError

LAST_DAY = 106_751_990  # Days from 1970 that a timestamp without a zone can hold, in both directions


@dataclass(frozen=True)
class Comparison:
    """The rules by which columns are compared."""

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
        elif plain(then) == plain(now) and payload_schema.says_the_same(held, wanted):
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
    """The payload of a checkpoint, matched with the columns of a query."""

    batches: list[pa.RecordBatch]
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
        same_types = self.batches[0].schema.equals(pa.schema(payload_schema.sent(self.columns)), check_metadata=True)
        return same_types and list(self.names) == self.columns.names

    def differences(self) -> list[str]:
        """Return the changes that are refused, each with its remedy."""
        held = zip(self.batches[0].schema, self.names, strict=True)
        named = [each.with_name(name) for each, name in held]
        found = [] if self.is_same else list(self.comparison.of_columns(named, list(self.columns)))
        return found or list(dict.fromkeys(text for batch in self.batches for text in self._in_values(batch)))

    def evolved(self) -> list[pa.RecordBatch]:
        if self.is_same:
            return self.batches
        schema, any_case = pa.schema(payload_schema.sent(self.columns)), self.comparison.case_sensitive
        places, evolved = list(zip(self.order, schema.types, strict=True)), []
        for batch in self.batches:
            nothing = pa.nulls(len(batch))
            columns = [conform(batch.column(at) if at >= 0 else nothing, kind, any_case) for at, kind in places]
            evolved.append(payload_schema.batch_of(columns, schema, len(batch)))
        return evolved

    def _in_values(self, batch: pa.RecordBatch) -> Iterator[str]:
        """Yield the changes that are refused because of a value: a null, or a date that no timestamp can hold."""
        for at, now in zip(self.order, self.columns, strict=True):
            if at >= 0:
                yield from self._in_column(batch.column(at), now, now.name)

    def _in_column(self, column: pa.Array, now: pa.Field, path: str) -> Iterator[str]:
        kind = now.type
        if not now.nullable and column.null_count:
            # Spark would read an arbitrary value in its place.
            yield f"column '{path}' is null in operations of the checkpoint and never null in the query: coalesce it"
        if pa.types.is_null(column.type) or column.type.equals(kind):
            return
        if pa.types.is_date(column.type) and pa.types.is_timestamp(kind) and _exceeds(column):
            yield f"column '{path}' has dates that no timestamp_ntz can hold: cast it to date"
        if not pa.types.is_nested(kind):
            return
        if column.null_count:
            column = column.drop_null()
        yield from self._in_parts(column, kind, path)

    def _in_parts(self, column: pa.Array, kind: pa.DataType, path: str) -> Iterator[str]:
        """Check the parts of a nested column without nulls."""
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
    mine, theirs = one.type, other.type
    nullable = one.nullable or other.nullable
    if is_record(mine) and is_record(theirs):
        return one.with_type(pa.struct(merged([list(mine), list(theirs)], f"{path}."))).with_nullable(nullable)
    if pa.types.is_map(mine) and pa.types.is_map(theirs):
        key = _widest(mine.key_field, theirs.key_field, f"{path}.key")
        item = _widest(mine.item_field, theirs.item_field, f"{path}.value")
        return one.with_type(pa.map_(key.with_nullable(False), item)).with_nullable(nullable)
    if is_list(mine) and is_list(theirs):
        element = _widest(mine.value_field, theirs.value_field, f"{path}.element")
        return one.with_type(pa.list_(element)).with_nullable(nullable)
    if pa.types.is_null(mine) or widens(mine, theirs):
        return other.with_nullable(nullable)
    if pa.types.is_null(theirs) or widens(theirs, mine) or plain(mine) == plain(theirs):
        return one.with_nullable(nullable)
    raise StateMismatchError(
        f"column '{path}' is {type_text(one)} in some shards and {type_text(other)} in others. It was dropped and "
        "later added with another type, and some shards had no rows in between"
    )


def _exceeds(dates: pa.Array) -> bool:
    bounds = pc.min_max(dates.view(pa.int32()))
    lowest, highest = bounds["min"].as_py(), bounds["max"].as_py()
    return lowest is not None and (lowest < -LAST_DAY or highest > LAST_DAY)
