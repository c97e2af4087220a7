"""Declarations of messages: typed classes whose fields have a wire type and Kafka versions.

A declaration serves both codecs; its class is a `msgspec.Struct`. The native codec sends every field, by
position. The Kafka codec sends a field in the versions ``since``..``until``, nullable from ``nullable_since``
on, or as a tagged field if it has a ``tag``. A field with ``native_only`` is not in Kafka's protocol.

Add a field at the end of its class and with a default, because an older native peer sends a shorter array.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    NamedTuple,
    Optional,
    TypeVar,
    cast,
    dataclass_transform,
    get_args,
)

import msgspec
import msgspec.structs

_MISSING: Final = msgspec.NODEFAULT


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
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    DESCRIBE_REPLICAS = 240
    PREPARE_TXN = 241
    ALTER_FAULT_RULES = 242
    DESCRIBE_FAULT_RULES = 243
    FETCH_PROGRESS = 244


class WireType(Enum):
    """The wire types; the value is the name in error texts."""

    BOOLEAN = "boolean"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT64 = "float64"
    STRING = "string"
    BYTES = "bytes"
    UUID = "uuid"
    RECORDS = "records"
    STRUCT = "struct"


INTEGER_BITS: Final = {WireType.INT8: 8, WireType.INT16: 16, WireType.INT32: 32, WireType.INT64: 64}

MAX_STRING_BYTES: Final = 0x7FFF
"""The maximum size of a string in Kafka's protocol, even where the format has room for more, and in native
requests that Kafka has too."""
MAX_ARRAY_LENGTH: Final = 1 << 17
"""The maximum length of an array in a message."""
MAX_HEAD_BYTES: Final = 8 * 1024 * 1024
"""The maximum size of a message without its records; room for some 200,000 partitions."""
MAX_INNER_ELEMENTS: Final = 1 << 18
"""The maximum sum of elements of all arrays within arrays of a request.

A byte or two of a request may become an object of hundreds of bytes in its handler. Numbers, such as
partitions, count like structures, but not in the controller's requests: they list the replicas of every
partition."""
_MAX_LENGTH: Final = msgspec.Meta(max_length=MAX_ARRAY_LENGTH)


def _integer(bits: int) -> Any:
    limit = 1 << (bits - 1)
    return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]


_NATIVE_TYPES: Final[dict[WireType, Any]] = {
    WireType.BOOLEAN: bool,
    WireType.FLOAT64: float,
    WireType.STRING: str,
    WireType.BYTES: bytes,
    WireType.UUID: uuid.UUID,
    # The length: the records themselves follow the head.
    WireType.RECORDS: Annotated[int, msgspec.Meta(ge=0)],
    **{kind: _integer(bits) for kind, bits in INTEGER_BITS.items()},
}
"""The type that msgspec checks a field of each wire type against."""


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
    ignorable: bool = True

    @property
    def element_type(self) -> Any:
        """The type that msgspec checks this field against, or its elements if it is an array."""
        return _NATIVE_TYPES[self.kind] if self.struct is None else self.struct

    @property
    def native_type(self) -> Any:
        """The type that msgspec checks this field against."""
        element: Any = self.element_type
        accepted = Annotated[list[element], _MAX_LENGTH] if self.is_array else element
        return accepted if self.nullable_since is None else Optional[accepted]  # noqa: UP045 - at run time


class _Declared(NamedTuple):
    wire: WireField
    struct_field: Any
    make_default: Callable[[], Any] | None


def _field(wire: WireField, default: Any, default_factory: Any = _MISSING) -> Any:
    if default_factory is not _MISSING:
        return _Declared(wire, msgspec.field(default_factory=default_factory), default_factory)
    if default is not _MISSING:
        return _Declared(wire, msgspec.field(default=default), lambda: default)
    return _Declared(wire, msgspec.field(), None)


def _scalar(kind: WireType) -> Callable[..., Any]:
    def declare(*, default: Any = _MISSING, **versions: Any) -> Any:
        return _field(WireField(kind, **versions), default)

    return declare


boolean = _scalar(WireType.BOOLEAN)
int8 = _scalar(WireType.INT8)
int16 = _scalar(WireType.INT16)
int32 = _scalar(WireType.INT32)
int64 = _scalar(WireType.INT64)
float64 = _scalar(WireType.FLOAT64)
string = _scalar(WireType.STRING)
opaque = _scalar(WireType.BYTES)
"""Bytes for the two ends only: sent from any buffer, received as a copy in ``bytes``."""
topic_uuid = _scalar(WireType.UUID)
records = _scalar(WireType.RECORDS)
"""Record batches as raw bytes: sent from a buffer or several, received as a view of the frame."""


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
Fields = list[tuple[str, WireField, Any]]
"""(name, wire type, maker of the default or None) of each field."""

_FIELDS: Final[dict[type[Any], Fields]] = {}

RecordsToSend = Buffer | list[Buffer] | list[memoryview] | tuple[Buffer, ...] | None


@dataclass_transform(
    kw_only_default=True,
    field_specifiers=(
        boolean,
        int8,
        int16,
        int32,
        int64,
        float64,
        string,
        opaque,
        topic_uuid,
        records,
        struct,
        array,
    ),
)
def message(cls: type[T]) -> type[T]:
    """Declare a response, or a structure that is part of a request or response."""
    declared = {name: value for name, value in vars(cls).items() if isinstance(value, _Declared)}
    struct = msgspec.defstruct(
        cls.__name__,
        [(name, field.wire.native_type, field.struct_field) for name, field in declared.items()],
        bases=(*(base for base in cls.__bases__ if base is not object), msgspec.Struct),
        namespace={"__doc__": cls.__doc__, "__qualname__": cls.__qualname__},
        module=cls.__module__,
        array_like=True,
        kw_only=True,
    )
    _FIELDS[struct] = [(name, field.wire, field.make_default) for name, field in declared.items()]
    return cast(type[T], struct)


def replace(message: T, **changes: Any) -> T:
    """A shallow copy of a message with other values of these fields."""
    return cast(T, msgspec.structs.replace(cast(msgspec.Struct, message), **changes))


class RequestOf(Generic[R]):
    """The base of all requests; ``R`` is the response, so that a channel's answer has a type."""

    __slots__ = ()
    api_key: ClassVar[ApiKey]
    response_type: ClassVar[type[Any]]


class RequestHead(NamedTuple):
    """A decoded request: ``body`` is an instance of the class that the API key declares."""

    api_key: ApiKey
    api_version: int | None
    """None for a native request."""
    correlation_id: int
    client_id: str | None
    body: Any


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


@dataclass_transform(
    kw_only_default=True,
    field_specifiers=(
        boolean,
        int8,
        int16,
        int32,
        int64,
        float64,
        string,
        opaque,
        topic_uuid,
        records,
        struct,
        array,
    ),
)
def request(
    key: ApiKey,
    *,
    versions: tuple[int, int],
    flexible_since: int | None = None,
    served_to: int | None = None,
) -> Callable[[type[Q]], type[Q]]:
    """Declare a request, a subclass of `RequestOf` its response, and enter both into `APIS`."""

    def declare(cls: type[Q]) -> type[Q]:
        if key in APIS:
            raise ValueError(f"{key.name} is declared twice: {APIS[key].request.__name__} and {cls.__name__}")
        (response,) = get_args(vars(cls)["__orig_bases__"][0])
        declared = message(cls)
        last = versions[1] if served_to is None else served_to
        APIS[key] = Api(key, declared, response, versions, flexible_since, last)
        declared.api_key = key
        declared.response_type = response
        return declared

    return declare


def wire_fields(cls: type[Any]) -> Fields:
    """The fields of a declared class, in order."""
    return _FIELDS[cls]
