"""Declarations of messages: typed dataclasses whose fields have a wire type and Kafka versions.

A declaration serves both codecs. The native codec sends every field, by position. The Kafka codec sends a
field in the versions ``since``..``until``, nullable from ``nullable_since`` on, or as a tagged field if it
has a ``tag``. A field with ``native_only`` exists only between our own clients and brokers.

Adding a field: at the end of its class and with a default, so that an older native peer, which sends a
shorter array, is still understood.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, ClassVar, Final, Generic, TypeVar, dataclass_transform

_WIRE: Final = "wire"
_MISSING: Final = dataclasses.MISSING


class ApiKey(IntEnum):
    """The declared APIs, by Kafka's numbers; those from 240 on are only ours."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    DESCRIBE_CLUSTER = 60
    DESCRIBE_REPLICAS = 240


class WireType(Enum):
    """The wire types; the value is the name in error texts."""

    BOOLEAN = "boolean"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    STRING = "string"
    BYTES = "bytes"
    UUID = "uuid"
    RECORDS = "records"
    STRUCT = "struct"


INTEGER_BITS: Final = {WireType.INT8: 8, WireType.INT16: 16, WireType.INT32: 32, WireType.INT64: 64}


@dataclass(frozen=True, slots=True)
class WireField:
    """The declaration of one field. ``struct`` is the element class of STRUCT fields.

    A field that is not ``ignorable`` may not be left out of a version that lacks it, unless its value is the
    default, because that would change the meaning of the request.
    """

    kind: WireType
    is_array: bool = False
    struct: type[Any] | None = None
    since: int = 0
    until: int | None = None
    nullable_since: int | None = None
    tag: int | None = None
    native_only: bool = False
    kafka_only: bool = False
    ignorable: bool = True


def _field(wire: WireField, default: Any, factory: Any = _MISSING) -> Any:
    if factory is not _MISSING:
        return dataclasses.field(default_factory=factory, metadata={_WIRE: wire})
    return dataclasses.field(default=default, metadata={_WIRE: wire})


def boolean(*, default: Any = _MISSING, **versions: Any) -> Any:
    return _field(WireField(WireType.BOOLEAN, **versions), default)


def int8(*, default: Any = _MISSING, **versions: Any) -> Any:
    return _field(WireField(WireType.INT8, **versions), default)


def int16(*, default: Any = _MISSING, **versions: Any) -> Any:
    return _field(WireField(WireType.INT16, **versions), default)


def int32(*, default: Any = _MISSING, **versions: Any) -> Any:
    return _field(WireField(WireType.INT32, **versions), default)


def int64(*, default: Any = _MISSING, **versions: Any) -> Any:
    return _field(WireField(WireType.INT64, **versions), default)


def string(*, default: Any = _MISSING, **versions: Any) -> Any:
    return _field(WireField(WireType.STRING, **versions), default)


def opaque(*, default: Any = _MISSING, **versions: Any) -> Any:
    """Bytes for the two ends only: sent from any buffer, received as a copy in ``bytes``."""
    return _field(WireField(WireType.BYTES, **versions), default)


def topic_uuid(*, default: Any = _MISSING, **versions: Any) -> Any:
    return _field(WireField(WireType.UUID, **versions), default)


def records(*, default: Any = _MISSING, **versions: Any) -> Any:
    """Record batches as raw bytes: sent from a buffer or several, received as a view of the frame."""
    return _field(WireField(WireType.RECORDS, **versions), default)


def struct(of: type[Any], *, default_factory: Any = _MISSING, **versions: Any) -> Any:
    return _field(WireField(WireType.STRUCT, struct=of, **versions), _MISSING, default_factory)


def array(
    of: type[Any] | WireType, *, default: Any = _MISSING, default_factory: Any = _MISSING, **versions: Any
) -> Any:
    """A list of structs (``of`` a message class) or of plain values (``of`` a wire type)."""
    if isinstance(of, WireType):
        wire = WireField(of, is_array=True, **versions)
    else:
        wire = WireField(WireType.STRUCT, is_array=True, struct=of, **versions)
    return _field(wire, default, default_factory)


T = TypeVar("T")
R = TypeVar("R")
Buffer = bytes | bytearray | memoryview
RecordsToSend = Buffer | list[Buffer] | list[memoryview] | tuple[Buffer, ...] | None


@dataclass_transform(
    kw_only_default=True,
    field_specifiers=(
        boolean,
        int8,
        int16,
        int32,
        int64,
        string,
        opaque,
        topic_uuid,
        records,
        struct,
        array,
    ),
)
def message(cls: type[T]) -> type[T]:
    """Declare a structure that is part of a request or response."""
    return dataclass(slots=True, kw_only=True)(cls)


class RequestOf(Generic[R]):
    """The base of all requests; ``R`` is the response, so that a channel's answer has a type."""

    __slots__ = ()
    api_key: ClassVar[ApiKey]
    response_type: ClassVar[type[Any]]


@dataclass(frozen=True, slots=True)
class Api:
    """One row of the registry: a request, its response and the Kafka versions that are declared."""

    key: ApiKey
    request: type[Any]
    response: type[Any]
    versions: tuple[int, int]
    flexible_since: int | None
    served_to: int
    """The last supported version; above the last offered one for tools that do not ask."""

    @property
    def is_native_only(self) -> bool:
        """Whether the API is unknown to Kafka's own clients (inter-broker and our own)."""
        return self.versions == NATIVE_ONLY


NATIVE_ONLY: Final = (0, -1)
"""The empty range of Kafka versions."""

APIS: Final[dict[int, Api]] = {}


Q = TypeVar("Q", bound=RequestOf[Any])


def request(
    key: ApiKey,
    response: type[Any],
    *,
    versions: tuple[int, int],
    flexible_since: int | None = None,
    served_to: int | None = None,
) -> Callable[[type[Q]], type[Q]]:
    """Make a declared `message` a request: name its response, and enter both into `APIS`."""

    def enter(cls: type[Q]) -> type[Q]:
        if key in APIS:
            raise ValueError(f"{key.name} is declared twice: {APIS[key].request.__name__} and {cls.__name__}")
        last = versions[1] if served_to is None else served_to
        APIS[key] = Api(key, cls, response, versions, flexible_since, last)
        cls.api_key = key
        cls.response_type = response
        return cls

    return enter


def wire_fields(cls: type[Any]) -> list[tuple[str, WireField, Any]]:
    """The fields of a declared class in order: name, wire type, and a maker of its default or None."""
    found: list[tuple[str, WireField, Any]] = []
    for declared in dataclasses.fields(cls):
        maker: Any = None
        if declared.default_factory is not _MISSING:
            maker = declared.default_factory
        elif declared.default is not _MISSING:
            maker = _constant(declared.default)
        found.append((declared.name, declared.metadata[_WIRE], maker))
    return found


def native_fields(cls: type[Any]) -> list[tuple[str, WireField, Any]]:
    """The fields of `wire_fields` that the native codec sends."""
    return [field for field in wire_fields(cls) if not field[1].kafka_only]


def _constant(value: Any) -> Any:
    return lambda: value
