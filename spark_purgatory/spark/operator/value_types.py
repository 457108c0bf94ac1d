"""The number type of a query, and columns of values and needs in this type.

Values of decimals and bigints are compared and added up unchanged. A need is rounded up to their digits, which changes
no answer (`core.numbers`). A need that is a float or double then means the decimal that Spark writes for it: 0.8 is
0.8. No row raises an error under ANSI mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.core.arrays.numbers import DOUBLE, LARGEST_SCALE, scale_of
from spark_purgatory.core.spec.criteria import ByRow, Criterion
from spark_purgatory.errors import ConfigError

SMALL_TYPES = (T.ByteType, T.ShortType, T.IntegerType)  # Types whose values and sums are exact as doubles.
DOUBLE_TYPES = (T.FloatType, T.DoubleType)
Typed = tuple[Column, T.DataType]


def number_type(criterion: Criterion | ByRow, value: T.DataType, needs: Mapping[str, T.DataType]) -> str:
    """Return the type in which values and needs are compared; ``needs``: types of the columns of needs, by field.

    It is double if both are exact as doubles: ints of up to 32 bits. Raises ConfigError naming field and remedy.
    """
    if not criterion.reads_values or not isinstance(value, T.NumericType) or isinstance(value, DOUBLE_TYPES):
        return DOUBLE
    kinds = {field: level_type(kind) for field, kind in needs.items()}
    if isinstance(value, SMALL_TYPES) and _double_will_do(criterion, kinds):
        return DOUBLE
    number = value.simpleString() if isinstance(value, T.DecimalType) else "bigint"
    for field, kind in kinds.items():
        if not isinstance(kind, (T.NumericType, T.NullType)):
            raise ConfigError(
                f"{field} is {kind.simpleString()}, not a number, but is compared with completions.value: "
                f"cast {field} to a number"
            )
        if isinstance(kind, DOUBLE_TYPES) and scale_of(number) == LARGEST_SCALE:
            raise ConfigError(
                f"{field} is {kind.simpleString()}, and completions.value {value.simpleString()}: a double cannot be "
                f"rounded up to 38 digits. Cast {field} to a decimal"
            )
    return number


def level_type(kind: T.DataType) -> T.DataType:
    """Return the type of a need, or of the levels in a map."""
    return kind.valueType if isinstance(kind, T.MapType) else kind


def _double_will_do(criterion: Criterion | ByRow, kinds: Mapping[str, T.DataType]) -> bool:
    if not isinstance(criterion, Criterion):
        return not any(isinstance(kind, (T.LongType, T.DecimalType)) for kind in kinds.values())
    if Fraction(criterion.need) != Fraction(float(criterion.need)):
        return False
    try:
        criterion.check_double()
    except ConfigError:
        return False
    return True


def value_column(value: Column, kind: T.DataType, number: str, is_added: bool) -> Column:
    """Return values as the engine takes them. Without ``is_added`` they are only the seconds of extensions."""
    exact = number != DOUBLE or not is_added
    if exact and isinstance(kind, T.DecimalType):
        return value
    return value.cast("bigint" if exact and isinstance(kind, T.IntegralType) else "double")


def need_columns(
    needs: Mapping[str, Typed], keys: Column | list[Column], several: bool, number: str
) -> dict[str, Column]:
    """Return each operation's need, and its level at each of its ``keys``: columns, or one that may have several."""
    need, levels = _converted(needs, keys, several, lambda need, _: need.try_cast("double"))
    if number == DOUBLE:
        return {"need": need, "levels": levels}
    up, levels_up = _converted(needs, keys, several, lambda need, kind: _rounded_up(need, kind, number))
    return {"need": need, "levels": levels, "need_up": up, "levels_up": levels_up}


def _converted(
    needs: Mapping[str, Typed],
    keys: Column | list[Column],
    several: bool,
    convert: Callable[[Column, T.DataType], Column],
) -> tuple[Column, Column]:
    need = convert(*needs.get("criterion.need", (F.lit(None).cast("double"), T.DoubleType())))

    def level_at(key: Column) -> Column:
        if "criterion.levels" not in needs:
            return need
        levels, kind = needs["criterion.levels"]
        return F.when(levels.isNull(), need).otherwise(convert(F.try_element_at(levels, key), level_type(kind)))

    if isinstance(keys, list):
        return need, F.array(*map(level_at, keys))
    return need, F.transform(keys, level_at) if several else level_at(keys)


def _rounded_up(need: Column, kind: T.DataType, number: str) -> Column:
    """Round a need up to the digits of the number type; null if it is null or does not fit such a decimal."""
    scale = scale_of(number)
    assert scale is not None, "bug: doubles are not rounded"
    if isinstance(kind, T.DecimalType) and kind.scale > scale:
        need = F.ceil(need, F.lit(scale))
    elif isinstance(kind, DOUBLE_TYPES):
        return _double_rounded_up(need.cast("double"), scale)
    return need.try_cast(f"decimal({LARGEST_SCALE},{scale})")


def _double_rounded_up(need: Column, scale: int) -> Column:
    """Round a double up. It is written in 17 digits, so if one of them is cut off, there is room for a carry."""
    nearest = need.try_cast(f"decimal({LARGEST_SCALE},{scale})")
    room = f"decimal({LARGEST_SCALE - 1},{scale})"
    next_up = F.try_add(nearest.try_cast(room), F.lit(f"{Decimal(1).scaleb(-scale):f}").cast(room))
    return F.when(nearest.cast("double") < need, next_up).otherwise(nearest)
