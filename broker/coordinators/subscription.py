"""The topics that a consumer says it subscribes to, read from the metadata that it joined with.

Metadata is opaque to a coordinator, but of groups of the protocol type "consumer" it reads this much: whether
a topic is still read decides over OffsetDelete and over the expiry of offsets. The first version of the
format begins every later one. Plain functions, for any thread.

Source: Kafka's ConsumerProtocolSubscription (version 0: int16 version, array of strings).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from barnabas.protocol.errors import MalformedFrame

CONSUMER_PROTOCOL_TYPE = "consumer"

_START = struct.Struct(">hi")
_INT16 = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> frozenset[str]:
    """The topics that one member names. Raises MalformedFrame when the bytes are no subscription."""
    try:
        version, count = _START.unpack_from(metadata)
        if version < 0 or not 0 <= count <= len(metadata):
            raise MalformedFrame(f"a subscription of version {version} claims {count} topics")
        found = set()
        position = _START.size
        for _ in range(count):
            (length,) = _INT16.unpack_from(metadata, position)
            position += _INT16.size
            if not 0 <= length <= len(metadata) - position:
                raise MalformedFrame(f"a subscription claims a topic of {length} bytes at byte {position}")
            found.add(metadata[position : position + length].decode())
            position += length
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedFrame(f"{len(metadata)} bytes are no subscription: {error}") from None
    return frozenset(found)


def topics_of_all(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The topics that some members name together; None when one of them cannot be understood."""
    try:
        return frozenset().union(*(subscribed_topics(one) for one in metadata))
    except MalformedFrame:
        return None
