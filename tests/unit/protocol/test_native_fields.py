"""The native protocol across versions: during an upgrade, brokers of both versions run.

``native_fields.txt`` has the fields of each message as the last released version sends them. A shorter array
gets defaults for added fields; an older version ignores the surplus of a longer one. Add new fields to the
file with each release, and never remove one.
"""

from pathlib import Path
from typing import Final

from barnabas.protocol.codec_msgpack import decode_request
from barnabas.protocol.ids import NO_TOPIC_ID
from barnabas.protocol.schema import ApiKey, WireField, wire_fields
from tests.support.cases import each

from .test_codec_msgpack import request_bytes
from .test_schema import ALL_CLASSES

_RELEASED: Final = dict(
    line.split(" ", 1) if " " in line else (line, "")
    for line in (Path(__file__).parent / "native_fields.txt").read_text().splitlines()
)

_MESSAGES: Final = {cls.__name__: cls for cls in ALL_CLASSES}


def _kind(wire: WireField) -> str:
    kind = wire.kind.value if wire.struct is None else wire.struct.__name__
    return f"[{kind}]" if wire.is_array else kind


@each(sorted(_RELEASED))
def test_a_message_begins_with_the_fields_that_were_released(name: str) -> None:
    fields = wire_fields(_MESSAGES[name])
    released = _RELEASED[name].split()
    assert [f"{field}:{_kind(wire)}" for field, wire, _ in fields[: len(released)]] == released
    assert [field for field, _, default in fields[len(released) :] if default is None] == []


def test_control_requests_of_the_released_version_have_neither_sequence_nor_topic_id() -> None:
    stop = decode_request(
        request_bytes([ApiKey.STOP_REPLICA, 1, "c", [1, 5, 77, [["t", [[0, -2, True]]]]]])
    ).body
    assert (stop.sequence, stop.topic_states[0].topic_id) == (-1, NO_TOPIC_ID)
    lead = decode_request(request_bytes([ApiKey.LEADER_AND_ISR, 1, "c", [1, 5, 77, True, [], []]])).body
    assert (lead.sequence, lead.is_full) == (-1, True)
    update = decode_request(request_bytes([ApiKey.UPDATE_METADATA, 1, "c", [1, 5, 77, [], [], True]])).body
    assert (update.sequence, update.is_full) == (-1, True)
