"""The JSON of znodes: reading bad data raises `MalformedZnode`, which names the path and the data. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from barnabas.protocol.errors import LocalError


class MalformedZnode(LocalError):
    """The data of a znode is not in Kafka's format; the text names the path and the data."""


def _object(data: bytes) -> dict[str, Any]:
    body = json.loads(data)
    if not isinstance(body, dict):
        raise ValueError("not a JSON object")
    return body


@contextmanager
def reading(path: str, data: bytes, parse: Callable[[bytes], Any] = _object) -> Iterator[Any]:
    """Parses the data with ``parse``; turns the exceptions of wrongly shaped data into `MalformedZnode`."""
    try:
        yield parse(data)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        # A node that was created without data has None instead of bytes.
        shown, reason = repr((data or b"")[:200]), f": {error}"
        if path.startswith(_WITH_SECRETS):
            shown, reason = "unreadable data", ""
        expected = next((text for prefix, text in _EXPECTED if path.startswith(prefix)), "")
        raise MalformedZnode(f"{path} holds {shown}{expected}: {type(error).__name__}{reason}") from None


_WITH_SECRETS: Final = "/config/users/"
"""The nodes whose data must not be in a log: SCRAM credentials."""
_EXPECTED: Final = tuple(
    (prefix, f", expected {text}")
    for prefix, text in (
        ("/brokers/ids/", 'JSON with "endpoints": ["NAME://host:port"] and "listener_security_protocol_map"'),
        ("/brokers/topics/", 'JSON with "partitions": {"0": [broker ids]}, of a state with "leader", "isr"'),
        ("/controller_epoch", "a number"),
        ("/controller", 'JSON with "brokerid"'),
        ("/cluster/id", 'JSON with "id"'),
        ("/config/changes/", 'JSON with "entity_path"'),
        ("/config/", 'JSON with "config": {"name": "value"}'),
        ("/feature", 'JSON with "version": 2, "status": 1, "features": {"name": {"max_version_level": 1}}'),
        ("/admin/preferred_replica_election", 'JSON with "partitions": [{"topic", "partition"}]'),
        ("/admin/reassign_partitions", 'JSON with "partitions": [{"topic", "partition", "replicas": [ids]}]'),
        ("/isr_change_notification/", 'JSON with "partitions": [{"topic", "partition"}]'),
        ("/log_dir_event_notification/", 'JSON with "broker"'),
        ("/kafka-acl-changes/", "ResourceType:ResourceName"),
        (
            "/kafka-acl-extended-changes/",
            'JSON with "version": 1, "resourceType", "name" and "patternType"',
        ),
        (
            "/kafka-acl",
            'JSON with "version": 1, "acls": [{"principal", "permissionType", "operation", "host"}]',
        ),
        ("/latest_producer_id_block", 'JSON with "block_start" and "block_end"'),
    )
)
"""The expected data by prefix of the path; the first match counts."""


def int32(value: Any, lowest: int = 0) -> int:
    """An int32 of at least `lowest`, as messages carry it. Raises TypeError or ValueError."""
    number = int(value)
    if not lowest <= number < 1 << 31:
        raise ValueError(f"{number} is not within {lowest} and {(1 << 31) - 1}")
    return number


def int16(value: Any, lowest: int = 0) -> int:
    number = int(value)
    if not lowest <= number < 1 << 15:
        raise ValueError(f"{number} is not within {lowest} and {(1 << 15) - 1}")
    return number


def int32s(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise TypeError(f"{values!r} is not a list")
    return tuple(int32(value) for value in values)


def dump(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
