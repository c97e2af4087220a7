"""The rules that every declaration keeps. `test_codec_kafka_oracles` compares them with Kafka's."""

import ast
import functools
import inspect
import sys
from typing import Any

import pytest

from barnabas.protocol.schema import (
    APIS,
    NATIVE_ONLY,
    Api,
    ApiKey,
    RequestOf,
    WireType,
    array,
    int32,
    message,
    request,
    string,
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


@pytest.mark.parametrize(
    ("key", "number"),
    [
        (ApiKey.LEADER_AND_ISR, 4),
        (ApiKey.STOP_REPLICA, 5),
        (ApiKey.UPDATE_METADATA, 6),
        (ApiKey.CONTROLLED_SHUTDOWN, 7),
    ],
)
def test_apis_between_brokers_have_kafkas_numbers_but_no_kafka_versions(key: ApiKey, number: int) -> None:
    assert key == number
    assert APIS[key].is_native_only
    assert APIS[key].versions == NATIVE_ONLY


def test_our_own_apis_are_out_of_kafkas_way_and_fit_one_byte() -> None:
    for key, api in APIS.items():
        assert key in KAFKA or key in range(4, 8) or (240 <= key <= 255 and api.is_native_only)


def test_every_api_key_is_declared() -> None:
    assert set(APIS) == set(ApiKey)


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

        @request(ApiKey.FETCH, object, versions=NATIVE_ONLY)
        class Second(RequestOf[object]):
            number: int = int32()

    assert APIS[ApiKey.FETCH].request.__name__ == "FetchRequest"


def test_a_declaration_gives_its_fields_in_order_with_makers_of_defaults() -> None:
    @message
    class Inner:
        number: int = int32()

    @message
    class Outer:
        inner: list[Inner] = array(Inner, default_factory=list, since=2)
        name: str | None = string(nullable_since=1, default=None)
        numbers: list[int] = array(WireType.INT32)

    (inner, inner_wire, no_inner), (name, name_wire, no_name), (numbers, _, required) = wire_fields(Outer)
    assert (inner, name, numbers) == ("inner", "name", "numbers")
    assert (inner_wire.struct, inner_wire.is_array, inner_wire.since) == (Inner, True, 2)
    assert (name_wire.kind, name_wire.nullable_since) == (WireType.STRING, 1)
    assert no_inner() == []
    assert no_inner() is not no_inner()
    assert no_name() is None
    assert required is None
