"""The rules that every declaration keeps. `test_codec_kafka_oracles` compares them with Kafka's."""

import ast
import functools
import inspect
import sys
from typing import Any

import msgspec
import pytest

from barnabas.protocol import schema
from barnabas.protocol.schema import (
    APIS,
    NATIVE_ONLY,
    Api,
    ApiKey,
    RequestOf,
    WireField,
    WireType,
    array,
    int32,
    message,
    replace,
    request,
    string,
    struct,
    wire_fields,
)
from tests.support.cases import class_name, each

KAFKA = [key for key, api in APIS.items() if not api.is_native_only]


def classes_of(api: Api) -> list[type[Any]]:
    """Request, response, and all structures below them."""
    found: list[type[Any]] = []
    to_visit = [api.request, api.response]
    while to_visit:
        cls = to_visit.pop()
        found.append(cls)
        to_visit += [wire.struct for _, wire, _ in wire_fields(cls) if wire.struct is not None]
    return found


ALL_CLASSES = sorted({cls for api in APIS.values() for cls in classes_of(api)}, key=lambda cls: cls.__name__)


def test_every_api_key_is_declared_and_our_own_are_out_of_kafkas_way_and_fit_one_byte() -> None:
    assert set(APIS) == set(ApiKey)
    between_brokers = [
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
    ]
    assert between_brokers == [4, 5, 6, 7]
    for key, api in APIS.items():
        assert api.is_native_only == (key in between_brokers or 240 <= key <= 255) == (key not in KAFKA)
        assert api.is_native_only == (api.versions == NATIVE_ONLY)


@each(sorted(KAFKA), lambda key: APIS[key].key.name)
def test_a_field_that_some_version_lacks_has_a_default(key: int) -> None:
    for cls in classes_of(APIS[key]):
        spans = [(wire.since, wire.until) for _, wire, _ in wire_fields(cls)]
        widest = (min(since for since, _ in spans), None)
        for (name, wire, maker), span in zip(wire_fields(cls), spans, strict=True):
            if span != widest or wire.native_only or wire.tag is not None:
                assert maker is not None, f"{cls.__name__}.{name}"


@functools.cache
def class_bodies(module: str) -> dict[str, list[ast.stmt]]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}


@each(ALL_CLASSES, class_name)
def test_annotations_agree_with_wire_types(cls: type[Any]) -> None:
    python_types = {
        WireType.BOOLEAN: "bool",
        WireType.FLOAT64: "float",
        WireType.STRING: "str",
        WireType.BYTES: "bytes",
        WireType.UUID: "uuid.UUID",
        WireType.RECORDS: "RecordsToSend",
    }
    body = class_bodies(cls.__module__)[cls.__name__]
    annotations = [ast.unparse(line.annotation) for line in body if isinstance(line, ast.AnnAssign)]
    for annotation, (name, wire, _) in zip(annotations, wire_fields(cls), strict=True):
        expected = wire.struct.__name__ if wire.struct is not None else python_types.get(wire.kind, "int")
        if wire.is_array:
            expected = f"list[{expected}]"
        if wire.nullable_since is not None and wire.kind is not WireType.RECORDS:
            expected += " | None"
        assert annotation == expected, name


@each(ALL_CLASSES, class_name)
def test_messages_have_slots_and_take_keywords_alone(cls: type[Any]) -> None:
    made = cls(**{name: None for name, _, _ in wire_fields(cls)})
    with pytest.raises(AttributeError):
        made.no_such_field = 1
    with pytest.raises(TypeError):
        cls(1)


def test_an_api_key_cannot_be_declared_twice() -> None:
    with pytest.raises(ValueError, match="FETCH is declared twice: FetchRequest and Second"):

        @request(ApiKey.FETCH, versions=NATIVE_ONLY)
        class Second(RequestOf[object]):
            number: int = int32()

    assert APIS[ApiKey.FETCH].request.__name__ == "FetchRequest"


@pytest.mark.parametrize("served_to", [None, 9])
def test_a_declared_request_is_found_by_its_key(
    monkeypatch: pytest.MonkeyPatch, served_to: int | None
) -> None:
    monkeypatch.delitem(APIS, ApiKey.FETCH)

    @request(ApiKey.FETCH, versions=(1, 7), flexible_since=5, served_to=served_to)
    class Only(RequestOf[object]):
        number: int = int32()

    assert APIS[ApiKey.FETCH] == Api(ApiKey.FETCH, Only, object, (1, 7), 5, served_to or 7)
    assert (Only.api_key, Only.response_type) == (ApiKey.FETCH, object)
    assert replace(Only(number=1), number=2) == Only(number=2)


@pytest.mark.parametrize("kind", [kind for kind in WireType if kind is not WireType.STRUCT])
def test_a_field_of_each_wire_type_is_declared_by_its_own_function(kind: WireType) -> None:
    declare = {WireType.BYTES: schema.opaque, WireType.UUID: schema.topic_uuid}.get(kind)
    declared = (declare or getattr(schema, kind.value))(since=3, default=None)
    assert declared.wire == WireField(kind, since=3)
    assert declared.make_default() is None


def test_a_declaration_gives_its_fields_in_order_with_makers_of_defaults() -> None:
    @message
    class Inner:
        number: int = int32()

    @message
    class Outer:
        inner: list[Inner] = array(Inner, default_factory=list, since=2)
        name: str | None = string(nullable_since=1, default=None)
        numbers: list[int] = array(WireType.INT32)
        one: Inner = struct(Inner, default_factory=dict)

    first, second, third, fourth = wire_fields(Outer)
    (inner, inner_wire, no_inner), (name, name_wire, no_name) = first, second
    assert third == ("numbers", WireField(WireType.INT32, is_array=True), None)
    assert fourth == ("one", WireField(WireType.STRUCT, struct=Inner), dict)
    assert (inner, name) == ("inner", "name")
    assert (inner_wire.struct, inner_wire.is_array, inner_wire.since) == (Inner, True, 2)
    assert (name_wire.kind, name_wire.nullable_since) == (WireType.STRING, 1)
    assert no_inner() == []
    assert no_inner() is not no_inner()
    assert no_name() is None
    assert msgspec.msgpack.encode(Inner(number=1)) == b"\x91\x01"
    with pytest.raises(TypeError):
        Inner(1)
    for wrong in ([None, None, [1], [0]], [[[1]], 5, [1], [0]], [[], None, [2**31], [0]], [[], None, 1, [0]]):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, Outer)
    assert msgspec.convert([[[1]], None, [2], [0]], Outer).inner == [Inner(number=1)]
