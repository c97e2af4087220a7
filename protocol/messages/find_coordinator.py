"""FindCoordinator: the coordinator of a group or transactional id (KIP-699 for several at once)."""

from __future__ import annotations

from enum import IntEnum

from barnabas.protocol import schema as s
from barnabas.protocol.ids import NO_BROKER


class CoordinatorType(IntEnum):
    """The kind of keys in a request."""

    GROUP = 0
    TRANSACTION = 1


@s.message
class Coordinator:
    """The coordinator of one key; ``node_id`` and ``port`` are -1 if there is an error."""

    key: str = s.string()
    node_id: int = s.int32(default=NO_BROKER)
    host: str = s.string(default="")
    port: int = s.int32(default=-1)
    error_code: int = s.int16(default=0)
    error_message: str | None = s.string(nullable_since=0, default=None)


@s.message
class FindCoordinatorResponse:
    """``coordinators`` has one entry per key; the fields before it are the older versions' form, for one."""

    throttle_time_ms: int = s.int32(since=1, default=0)
    error_code: int = s.int16(until=3, default=0)
    error_message: str | None = s.string(since=1, until=3, nullable_since=1, default=None)
    node_id: int = s.int32(until=3, default=NO_BROKER)
    host: str = s.string(until=3, default="")
    port: int = s.int32(until=3, default=-1)
    coordinators: list[Coordinator] = s.array(Coordinator, since=4, default_factory=list)


@s.request(s.ApiKey.FIND_COORDINATOR, versions=(0, 6), flexible_since=3)
class FindCoordinatorRequest(s.RequestOf[FindCoordinatorResponse]):
    """``key_type`` is a `CoordinatorType`. The native codec uses ``coordinator_keys`` alone, not ``key``."""

    key: str = s.string(until=3, default="")
    key_type: int = s.int8(since=1, default=CoordinatorType.GROUP.value, ignorable=False)
    coordinator_keys: list[str] = s.array(s.WireType.STRING, since=4, default_factory=list, ignorable=False)
