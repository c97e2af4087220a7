"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: the requests of a group's member.

Sources: KIP-62 (rebalance timeout), KIP-345 (static members), KIP-394 (member ids are requested), KIP-559
(protocol types and names in answers), KIP-800 (reasons), KIP-814 (a static leader that skips the assignment).
"""

from __future__ import annotations

from typing import Final

from barnabas.protocol import schema as s

NO_GENERATION: Final = -1
"""No generation: in answers with an error, and in commits from outside a group."""
NO_MEMBER: Final = ""
"""The member id before the coordinator has assigned one."""
NOT_GIVEN: Final = -1
"""As a rebalance timeout: use the session timeout."""


@s.message
class JoinGroupResponseMember:
    """A member for the leader, with its metadata for the chosen protocol."""

    member_id: str = s.string()
    group_instance_id: str | None = s.string(since=5, nullable_since=5, default=None)
    metadata: bytes = s.opaque()


@s.message
class JoinGroupResponse:
    """``members`` is empty for all but the leader.

    With MEMBER_ID_REQUIRED, ``member_id`` is the one to join with. ``skip_assignment`` means that a static
    leader that came back keeps the present assignment. ``protocol_name`` is None in errors from version 7 on,
    and empty before.
    """

    throttle_time_ms: int = s.int32(since=2, default=0)
    error_code: int = s.int16()
    generation_id: int = s.int32(default=NO_GENERATION)
    protocol_type: str | None = s.string(since=7, nullable_since=7, default=None)
    protocol_name: str | None = s.string(nullable_since=7, default="")
    leader: str = s.string(default=NO_MEMBER)
    skip_assignment: bool = s.boolean(since=9, default=False, ignorable=False)
    member_id: str = s.string(default=NO_MEMBER)
    members: list[JoinGroupResponseMember] = s.array(JoinGroupResponseMember, default_factory=list)


@s.message
class JoinGroupRequestProtocol:
    """An assignor of the member, and the member's metadata for it; opaque to brokers."""

    name: str = s.string()
    metadata: bytes = s.opaque()


@s.request(s.ApiKey.JOIN_GROUP, JoinGroupResponse, versions=(0, 9), flexible_since=6)
class JoinGroupRequest(s.RequestOf[JoinGroupResponse]):
    """``protocols`` are in the order of the member's preference."""

    group_id: str = s.string()
    session_timeout_ms: int = s.int32()
    rebalance_timeout_ms: int = s.int32(since=1, default=NOT_GIVEN)
    member_id: str = s.string(default=NO_MEMBER)
    group_instance_id: str | None = s.string(since=5, nullable_since=5, default=None, ignorable=False)
    protocol_type: str = s.string()
    protocols: list[JoinGroupRequestProtocol] = s.array(JoinGroupRequestProtocol)
    reason: str | None = s.string(since=8, nullable_since=8, default=None)


@s.message
class SyncGroupResponse:
    """``assignment`` is the member's from the leader; empty in errors and if the leader sent none."""

    throttle_time_ms: int = s.int32(since=1, default=0)
    error_code: int = s.int16()
    protocol_type: str | None = s.string(since=5, nullable_since=5, default=None)
    protocol_name: str | None = s.string(since=5, nullable_since=5, default=None)
    assignment: bytes = s.opaque(default=b"")


@s.message
class SyncGroupRequestAssignment:
    member_id: str = s.string()
    assignment: bytes = s.opaque()


@s.request(s.ApiKey.SYNC_GROUP, SyncGroupResponse, versions=(0, 5), flexible_since=4)
class SyncGroupRequest(s.RequestOf[SyncGroupResponse]):
    """``assignments`` is empty for all but the leader."""

    group_id: str = s.string()
    generation_id: int = s.int32()
    member_id: str = s.string()
    group_instance_id: str | None = s.string(since=3, nullable_since=3, default=None, ignorable=False)
    protocol_type: str | None = s.string(since=5, nullable_since=5, default=None)
    protocol_name: str | None = s.string(since=5, nullable_since=5, default=None)
    assignments: list[SyncGroupRequestAssignment] = s.array(SyncGroupRequestAssignment, default_factory=list)


@s.message
class HeartbeatResponse:
    throttle_time_ms: int = s.int32(since=1, default=0)
    error_code: int = s.int16()


@s.request(s.ApiKey.HEARTBEAT, HeartbeatResponse, versions=(0, 4), flexible_since=4)
class HeartbeatRequest(s.RequestOf[HeartbeatResponse]):
    group_id: str = s.string()
    generation_id: int = s.int32()
    member_id: str = s.string()
    group_instance_id: str | None = s.string(since=3, nullable_since=3, default=None, ignorable=False)


@s.message
class MemberResponse:
    member_id: str = s.string()
    group_instance_id: str | None = s.string(nullable_since=0)
    error_code: int = s.int16()


@s.message
class LeaveGroupResponse:
    """``members`` has one entry per member that was to leave; up to version 2 ``error_code`` says it all."""

    throttle_time_ms: int = s.int32(since=1, default=0)
    error_code: int = s.int16()
    members: list[MemberResponse] = s.array(MemberResponse, since=3, default_factory=list)


@s.message
class MemberIdentity:
    """A member by its id, or a static one by its instance id with an empty ``member_id``."""

    member_id: str = s.string()
    group_instance_id: str | None = s.string(nullable_since=0, default=None)
    reason: str | None = s.string(since=5, nullable_since=5, default=None)


@s.request(s.ApiKey.LEAVE_GROUP, LeaveGroupResponse, versions=(0, 5), flexible_since=4)
class LeaveGroupRequest(s.RequestOf[LeaveGroupResponse]):
    """The native codec uses ``members`` alone; ``member_id`` is the older versions' form."""

    group_id: str = s.string()
    member_id: str = s.string(until=2, default=NO_MEMBER)
    members: list[MemberIdentity] = s.array(MemberIdentity, since=3, default_factory=list, ignorable=False)
