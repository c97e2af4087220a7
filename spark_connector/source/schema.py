"""The columns of the source: those of Spark's Kafka source, in its order. A user's schema selects some."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from barnabas.common.suggestions import suggestion
from barnabas.protocol.errors import InvalidConfiguration

_HEADERS: Final = "headers"
_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_COLUMNS: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    _HEADERS: ArrayType(_HEADER),
}


def source_schema(*, include_headers: bool) -> StructType:
    """All columns; `headers` only if requested."""
    return StructType(
        [StructField(name, kind) for name, kind in _COLUMNS.items() if include_headers or name != _HEADERS]
    )


def check_schema(schema: StructType) -> None:
    """Check a schema that may come from the user.

    Raises InvalidConfiguration when it is empty, names a column twice or one that does not exist, or gives
    one another type.
    """
    if not schema.fields:
        raise InvalidConfiguration(f"the schema is empty; expected some of {', '.join(_COLUMNS)}")
    seen: set[str] = set()
    for field in schema.fields:
        expected = _COLUMNS.get(field.name)
        if expected is None:
            hint = suggestion(field.name, _COLUMNS)
            raise InvalidConfiguration(f"the schema has a column {field.name!r} that does not exist{hint}")
        if field.name in seen:
            raise InvalidConfiguration(f"the schema has the column {field.name!r} twice")
        seen.add(field.name)
        if field.dataType.simpleString() != expected.simpleString():
            raise InvalidConfiguration(
                f"column {field.name!r} is {expected.simpleString()}, the schema says "
                f"{field.dataType.simpleString()}; read it as it is and cast it"
            )
