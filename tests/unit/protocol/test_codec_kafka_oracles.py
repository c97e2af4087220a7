"""The Kafka codec against two others, byte for byte: kio, which is generated from Kafka's own definitions,
and kafka-python. Every API and version that is declared, with random content, both ways.

Both oracles order a structure's fields as Kafka's definitions do, so that ours are matched with theirs by
place. What the oracles have and we leave out on purpose keeps its default.
"""

import dataclasses
import datetime
import importlib
import io
import warnings
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st
from kio.index import UnknownEntity, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_writer

from barnabas.protocol import codec_kafka
from barnabas.protocol.codec_kafka_source import is_carried
from barnabas.protocol.messages.fetch import FetchRequest
from barnabas.protocol.schema import WireField, WireType, wire_fields
from tests.support.cases import each
from tests.support.kafka_messages import CASES, Case, messages
from tests.support.soak import searched

NOT_OURS = {"snapshot_id", "zk_migration_ready", "replica_directory_id"}
"""Tagged fields of KRaft's."""

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def is_declared(cls: type[Any], name: str) -> bool:
    return name not in NOT_OURS or name in {field[0] for field in wire_fields(cls)}


def carried_fields(cls: type[Any], version: int) -> list[tuple[str, WireField, Any]]:
    """The fields of a version, in Kafka's order."""
    fields = wire_fields(cls)
    if cls is FetchRequest:
        # Kafka's declaration begins with the tagged fields; ours ends with the newer one of them.
        fields = sorted(fields, key=lambda field: field[1].tag is None)
    return [field for field in fields if is_carried(field[1], version)]


def carried(body: Any, version: int) -> list[tuple[Any, Any, Any]]:
    return [(getattr(body, name), wire, maker) for name, wire, maker in carried_fields(type(body), version)]


# ---- kio


def kio_class(case: Case, side: str) -> Any:
    load = load_request_schema if side == "request" else load_response_schema
    try:
        return load(int(case.api.key), case.version)
    except UnknownEntity:
        return None


def to_kio(body: Any, cls: Any, version: int) -> Any:
    fields = [field for field in dataclasses.fields(cls) if is_declared(type(body), field.name)]
    hints = get_type_hints(cls)
    made = {
        field.name: _kio_value(value, field.metadata.get("kafka_type"), hints[field.name], version)
        for field, (value, _, _) in zip(fields, carried(body, version), strict=True)
    }
    return cls(**made)


def _kio_value(value: Any, kind: str | None, hint: Any, version: int) -> Any:
    if value is None:
        return None
    if isinstance(value, list):
        return tuple(_kio_value(element, kind, _struct_in(hint), version) for element in value)
    if isinstance(value, msgspec.Struct):
        return to_kio(value, _struct_in(hint), version)
    if kind == "error_code":
        return KioErrorCode(value)
    if kind in ("timedelta_i32", "timedelta_i64"):
        return datetime.timedelta(milliseconds=value)
    if kind == "datetime_i64":
        return EPOCH + datetime.timedelta(milliseconds=value)
    return value


def _struct_in(hint: Any) -> Any:
    """The class that a type such as ``tuple[X, ...] | None`` holds."""
    while get_origin(hint) is not None:
        hint = next(part for part in get_args(hint) if part not in (type(None), ...))
    return hint


def kio_request(case: Case, correlation_id: int, client_id: str, body: Any) -> bytes:
    cls = kio_class(case, "request")
    header = cls.__header_schema__(
        request_api_key=int(case.api.key),
        request_api_version=case.version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    return _kio_frame(header, to_kio(body, cls, case.version))


def kio_response(case: Case, correlation_id: int, body: Any) -> bytes:
    cls = kio_class(case, "response")
    return _kio_frame(cls.__header_schema__(correlation_id=correlation_id), to_kio(body, cls, case.version))


def _kio_frame(header: Any, body: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(header))(out, header)
    entity_writer(type(body))(out, body)
    return len(out.getvalue()).to_bytes(4, "big") + out.getvalue()


# ---- kafka-python

with warnings.catch_warnings():
    # It loads its definitions in a way that only Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    _MODULES = [
        importlib.import_module(f"kafka.protocol.{name}")
        for name in ("admin", "consumer", "metadata", "producer")
    ]

    from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse


def _with_kip_1242(_: Any, definition: dict[str, Any]) -> dict[str, Any]:
    """Kafka 4.4's definition of ApiVersions; both oracles end at version 4. The response has no new field."""
    definition["validVersions"] = "0-5"
    if definition["type"] == "request":
        cluster_id = {"name": "ClusterId", "type": "string", "versions": "5+", "nullableVersions": "5+"}
        node_id = {"name": "NodeId", "type": "int32", "versions": "5+", "default": "-1"}
        definition["fields"] += [{**cluster_id, "default": "null"}, node_id]
    return definition


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    _NEWER = {
        cls.__name__: type(cls)(cls.__name__, (cls,), {"json_patch": classmethod(_with_kip_1242)})
        for cls in (ApiVersionsRequest, ApiVersionsResponse)
    }


def kafka_python_class(case: Case, side: str) -> Any:
    name = f"{case.name}{side.capitalize()}"
    return _NEWER.get(name) or next(
        (getattr(module, name) for module in _MODULES if hasattr(module, name)), None
    )


def to_kafka_python(body: Any, cls: Any, version: int) -> Any:
    fields = [
        field
        for field in cls._struct.fields.values()
        if field.for_version_q(version) and is_declared(type(body), field.name)
    ]
    made = {}
    for field, (value, wire, maker) in zip(fields, carried(body, version), strict=True):
        if wire.tag is None or value != maker():
            made[field.name] = _kafka_python_value(value, field, version)
    return cls(version=version, **made)


def _kafka_python_value(value: Any, field: Any, version: int) -> Any:
    if isinstance(value, list) and field.is_struct_array():
        return [to_kafka_python(element, field.data_class, version) for element in value]
    if isinstance(value, msgspec.Struct):
        return to_kafka_python(value, field.data_class, version)
    if field.name.endswith("authorized_operations") and not isinstance(value, bool):
        return {bit for bit in range(32) if value >> bit & 1}
    return value


def kafka_python_frame(case: Case, side: str, correlation_id: int, client_id: str, body: Any) -> bytes:
    made = to_kafka_python(body, kafka_python_class(case, side), case.version)
    if side == "request":
        made.with_header(correlation_id=correlation_id, client_id=client_id)
    else:
        made.with_header(correlation_id=correlation_id)
    return bytes(made.encode(header=True, framed=True))


# ---- the tests

CORRELATION_IDS = st.integers(-(2**31), 2**31 - 1)


def decoded_request(data: bytes) -> Any:
    return codec_kafka.decode_request(memoryview(data)[4:])


def oracles_of(case: Case, side: str) -> list[str]:
    found = []
    if kio_class(case, side) is not None:
        found.append("kio")
    if kafka_python_class(case, side) is not None:
        found.append("kafka-python")
    return found


@each(CASES)
def test_every_declared_version_has_an_oracle(case: Case) -> None:
    assert oracles_of(case, "request")
    assert oracles_of(case, "response")


def check_names_and_defaults(cls: Any, oracle: Any, version: int) -> None:
    hints = get_type_hints(oracle)
    fields = [field for field in dataclasses.fields(oracle) if is_declared(cls, field.name)]
    for field, (name, wire, maker) in zip(fields, carried_fields(cls, version), strict=True):
        assert name in (field.name, f"{field.name}_ms")
        if wire.struct is not None:
            check_names_and_defaults(wire.struct, _struct_in(hints[field.name]), version)
        elif field.default not in (dataclasses.MISSING, ()) and wire.kind is not WireType.UUID:
            assert maker is not None, name
            kind = field.metadata.get("kafka_type")
            # A date of -1 is None to kio, an empty array the default of every array.
            default = None if kind == "datetime_i64" else _kio_value(maker(), kind, None, version)
            assert default == field.default, name


@each(CASES)
def test_names_and_defaults_are_kafkas(case: Case) -> None:
    for cls, oracle in (
        (case.api.request, kio_class(case, "request")),
        (case.api.response, kio_class(case, "response")),
    ):
        if oracle is not None:
            assert (oracle.__api_key__, oracle.__flexible__) == (case.api.key, case.is_flexible)
            assert cls.__name__ == oracle.__name__
            check_names_and_defaults(cls, oracle, case.version)


@each(CASES, examples=searched(8, usual=4))
def test_a_request_is_the_oracles_byte_for_byte(case: Case, data: st.DataObject) -> None:
    body = data.draw(messages(case.api.request, case.version))
    correlation_id, client_id = data.draw(CORRELATION_IDS), data.draw(st.text(max_size=9))
    ours = b"".join(codec_kafka.encode_request(case.version, correlation_id, client_id, body))
    for oracle in oracles_of(case, "request"):
        if oracle == "kio":
            theirs = kio_request(case, correlation_id, client_id, body)
        else:
            theirs = kafka_python_frame(case, "request", correlation_id, client_id, body)
        assert ours.hex() == theirs.hex(), oracle
        head = decoded_request(theirs)
        assert head == (case.api.key, case.version, correlation_id, client_id, body), oracle


@each(CASES, examples=searched(8, usual=4))
def test_a_response_is_the_oracles_byte_for_byte(case: Case, data: st.DataObject) -> None:
    body = data.draw(messages(case.api.response, case.version))
    correlation_id = data.draw(CORRELATION_IDS)
    key, request = case.api.key, case.api.request
    ours = b"".join(codec_kafka.encode_response(key, case.version, correlation_id, body))
    for oracle in oracles_of(case, "response"):
        if oracle == "kio":
            theirs = kio_response(case, correlation_id, body)
        else:
            theirs = kafka_python_frame(case, "response", correlation_id, "", body)
        assert ours.hex() == theirs.hex(), oracle
        found = codec_kafka.decode_response(request, case.version, memoryview(theirs)[4:])
        assert found == (correlation_id, body), oracle
