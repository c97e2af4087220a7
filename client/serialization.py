"""Keys and values of any type: the serializers of producers, the deserializers of consumers, their types.

A null key or value passes without a call. Ready serializers are in `barnabas.client.serializers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from barnabas.client.arguments import as_bytes
from barnabas.client.consumer_record import AnyRecord, record_of
from barnabas.client.errors import RecordDeserializationError, SerializationError
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.record_batch import TimestampType
from barnabas.protocol.records import RecordFields
from barnabas.protocol.schema import Buffer

if TYPE_CHECKING:
    # As in `consumer_record`.
    from typing_extensions import TypeVar

    K_contra = TypeVar("K_contra", contravariant=True, default=Buffer)
    V_contra = TypeVar("V_contra", contravariant=True, default=Buffer)
else:
    from typing import TypeVar

    K_contra = TypeVar("K_contra", contravariant=True)
    V_contra = TypeVar("V_contra", contravariant=True)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)


class TopicSerializer(Protocol[T_contra]):
    """A serializer that gets the topic too."""

    def serialize(self, topic: str, value: T_contra, /) -> Buffer | None: ...


class TopicDeserializer(Protocol[T_co]):
    """A deserializer that gets the topic too."""

    def deserialize(self, topic: str, data: bytes, /) -> T_co: ...


Serializer = Callable[[T], Buffer | None] | TopicSerializer[T]
Deserializer = Callable[[bytes], T] | TopicDeserializer[T]

_Call = Callable[[str, Any], Any]
"""A serializer or a deserializer, called with the topic and the content."""


def _call_of(name: str, given: object, method: str) -> _Call | None:
    """The call of a user's callable, or of the ``method`` of an object that wants the topic."""
    if given is None:
        return None
    with_topic: _Call | None = getattr(given, method, None)
    if with_topic is not None:
        return with_topic
    if not callable(given):
        raise TypeError(f"{name}={given!r}: expected a callable, or an object with {method}(topic, …)")
    convert: Callable[[Any], Any] = given
    return lambda topic, content: convert(content)


class Serializers:
    """The serializers of a producer; one of them may be missing."""

    def __init__(self, serialize_key: _Call | None, serialize_value: _Call | None) -> None:
        self._serialize_key = serialize_key
        self._serialize_value = serialize_value

    def bytes_of(self, topic: str, key: Any, value: Any) -> tuple[Any, Any]:
        """The key and the value, serialized if there is a serializer. Raises SerializationError."""
        return (
            _serialized("key", self._serialize_key, topic, key),
            _serialized("value", self._serialize_value, topic, value),
        )


def serializers_of(key_serializer: object, value_serializer: object) -> Serializers | None:
    """None without any. Raises TypeError for an object that is no serializer."""
    serialize_key = _call_of("key_serializer", key_serializer, "serialize")
    serialize_value = _call_of("value_serializer", value_serializer, "serialize")
    if serialize_key is None and serialize_value is None:
        return None
    return Serializers(serialize_key, serialize_value)


def _serialized(origin: str, serialize: _Call | None, topic: str, content: Any) -> Any:
    if serialize is None or content is None:
        return content
    try:
        serialized = serialize(topic, content)
        return None if serialized is None else as_bytes("the result", serialized)
    except Exception as error:
        text = f"the {origin} for topic {topic!r} cannot be serialized: {type(error).__name__}: {error}"
        raise SerializationError(text, topic, origin) from error


class Deserializers:
    """The deserializers of a consumer; one of them may be missing."""

    def __init__(self, deserialize_key: _Call | None, deserialize_value: _Call | None) -> None:
        self._deserialize_key = deserialize_key
        self._deserialize_value = deserialize_value

    def records(
        self,
        tp: TopicPartition,
        fields: list[RecordFields],
        timestamp_type: TimestampType,
    ) -> list[AnyRecord]:
        """The records before the first one that fails; RecordDeserializationError if there are none."""
        topic, partition = tp
        deserialize_key, deserialize_value = self._deserialize_key, self._deserialize_value
        records: list[AnyRecord] = []
        for offset, timestamp_ms, key_bytes, value_bytes, headers in fields:
            key: Any = key_bytes
            value: Any = value_bytes
            origin = "key"
            try:
                if key is not None and deserialize_key is not None:
                    key = deserialize_key(topic, key)
                origin = "value"
                if value is not None and deserialize_value is not None:
                    value = deserialize_value(topic, value)
            except Exception as error:
                if records:
                    break
                raw = (*tp, offset, timestamp_ms, key_bytes, value_bytes, headers, timestamp_type)
                text = f"the {origin} of {tp} at offset {offset} cannot be deserialized: "
                text += f"{type(error).__name__}: {error}"
                raise RecordDeserializationError(text, record_of(raw), origin) from error
            content = (topic, partition, offset, timestamp_ms, key, value, headers, timestamp_type)
            records.append(record_of(content))
        return records


def deserializers_of(key_deserializer: object, value_deserializer: object) -> Deserializers | None:
    """None without any. Raises TypeError for an object that is no deserializer."""
    deserialize_key = _call_of("key_deserializer", key_deserializer, "deserialize")
    deserialize_value = _call_of("value_deserializer", value_deserializer, "deserialize")
    if deserialize_key is None and deserialize_value is None:
        return None
    return Deserializers(deserialize_key, deserialize_value)
