"""FindCoordinator: the coordinator of a group or transactional id (KIP-699 for several at once)."""

from __future__ import annotations

from enum import IntEnum

from barnabas.protocol.ids import NO_BROKER
from barnabas.protocol.schema import (
    ApiKey,
    RequestOf,
    WireType,
    array,
    int8,
    int16,
    int32,
    message,
    request,
    string,
)


class CoordinatorType(IntEnum):
    """The kind of keys in a request."""

    GROUP = 0
    TRANSACTION = 1


@message
class Coordinator:
    """The coordinator of one key; ``node_id`` and ``port`` are -1 if there is an error."""

    key: str = string()
    node_id: int = int32(default=NO_BROKER)
    host: str = string(default="")
    port: int = int32(default=-1)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)


@message
class FindCoordinatorResponse:
    """``coordinators`` has one entry per key; the fields before it are the older versions' form, for one."""

    throttle_time_ms: int = int32(since=1, default=0)
    error_code: int = int16(until=3, default=0)
    error_message: str | None = string(since=1, until=3, nullable_since=1, default=None)
    node_id: int = int32(until=3, default=NO_BROKER)
    host: str = string(until=3, default="")
    port: int = int32(until=3, default=-1)
    coordinators: list[Coordinator] = array(Coordinator, since=4, default_factory=list)


@request(ApiKey.FIND_COORDINATOR, FindCoordinatorResponse, versions=(0, 4), flexible_since=3)
@message
class FindCoordinatorRequest(RequestOf[FindCoordinatorResponse]):
    """``key_type`` is a `CoordinatorType`. The native codec uses ``coordinator_keys`` alone, not ``key``."""

    key: str = string(until=3, default="")
    key_type: int = int8(since=1, default=CoordinatorType.GROUP.value, ignorable=False)
    coordinator_keys: list[str] = array(WireType.STRING, since=4, default_factory=list, ignorable=False)
