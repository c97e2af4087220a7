"""The requests of a group's members, and groups as operators see them.

Sources: KIP-62 (rebalance timeout), KIP-345 (static members), KIP-394 (member ids are requested), KIP-559
(protocol types and names in answers), KIP-800 (reasons), KIP-814 (a static leader that skips the assignment);
KIP-222, KIP-518 and KIP-848 (describe, list and delete).
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
OPERATIONS_NOT_ASKED_FOR: Final = -(1 << 31)
"""As ``authorized_operations``: the request did not ask for them."""


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


@s.request(s.ApiKey.JOIN_GROUP, versions=(0, 9), flexible_since=6)
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


@s.request(s.ApiKey.SYNC_GROUP, versions=(0, 5), flexible_since=4)
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


@s.request(s.ApiKey.HEARTBEAT, versions=(0, 4), flexible_since=4)
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


@s.request(s.ApiKey.LEAVE_GROUP, versions=(0, 5), flexible_since=4)
class LeaveGroupRequest(s.RequestOf[LeaveGroupResponse]):
    """The native codec uses ``members`` alone; ``member_id`` is the older versions' form."""

    group_id: str = s.string()
    member_id: str = s.string(until=2, default=NO_MEMBER)
    members: list[MemberIdentity] = s.array(MemberIdentity, since=3, default_factory=list, ignorable=False)


@s.message
class DescribedGroupMember:
    """``member_metadata`` and ``member_assignment`` are empty unless the group is Stable."""

    member_id: str = s.string()
    group_instance_id: str | None = s.string(since=4, nullable_since=4, default=None)
    client_id: str = s.string()
    client_host: str = s.string()
    member_metadata: bytes = s.opaque(default=b"")
    member_assignment: bytes = s.opaque(default=b"")


@s.message
class DescribedGroup:
    """``group_state`` is the state's name, ``protocol_data`` the protocol in force while Stable."""

    error_code: int = s.int16(default=0)
    group_id: str = s.string()
    group_state: str = s.string(default="")
    protocol_type: str = s.string(default="")
    protocol_data: str = s.string(default="")
    members: list[DescribedGroupMember] = s.array(DescribedGroupMember, default_factory=list)
    authorized_operations: int = s.int32(since=3, default=OPERATIONS_NOT_ASKED_FOR)


@s.message
class DescribeGroupsResponse:
    throttle_time_ms: int = s.int32(since=1, default=0)
    groups: list[DescribedGroup] = s.array(DescribedGroup)


@s.request(s.ApiKey.DESCRIBE_GROUPS, versions=(0, 5), flexible_since=5)
class DescribeGroupsRequest(s.RequestOf[DescribeGroupsResponse]):
    groups: list[str] = s.array(s.WireType.STRING)
    include_authorized_operations: bool = s.boolean(since=3, default=False, ignorable=False)


@s.message
class ListedGroup:
    """``group_type`` is "classic", the only supported type."""

    group_id: str = s.string()
    protocol_type: str = s.string()
    group_state: str = s.string(since=4, default="")
    group_type: str = s.string(since=5, default="")


@s.message
class ListGroupsResponse:
    throttle_time_ms: int = s.int32(since=1, default=0)
    error_code: int = s.int16(default=0)
    groups: list[ListedGroup] = s.array(ListedGroup, default_factory=list)


@s.request(s.ApiKey.LIST_GROUPS, versions=(0, 5), flexible_since=3)
class ListGroupsRequest(s.RequestOf[ListGroupsResponse]):
    """An empty filter matches all; names of states and types are not case-sensitive."""

    states_filter: list[str] = s.array(s.WireType.STRING, since=4, default_factory=list, ignorable=False)
    types_filter: list[str] = s.array(s.WireType.STRING, since=5, default_factory=list, ignorable=False)


@s.message
class DeletableGroupResult:
    group_id: str = s.string()
    error_code: int = s.int16()


@s.message
class DeleteGroupsResponse:
    throttle_time_ms: int = s.int32(default=0)
    results: list[DeletableGroupResult] = s.array(DeletableGroupResult)


@s.request(s.ApiKey.DELETE_GROUPS, versions=(0, 2), flexible_since=2)
class DeleteGroupsRequest(s.RequestOf[DeleteGroupsResponse]):
    groups_names: list[str] = s.array(s.WireType.STRING)
