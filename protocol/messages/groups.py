"""DescribeGroups, ListGroups and DeleteGroups: groups as operators see them (KIP-222, KIP-518, KIP-848)."""

from __future__ import annotations

from typing import Final

from barnabas.protocol import schema as s

OPERATIONS_NOT_ASKED_FOR: Final = -(1 << 31)
"""As ``authorized_operations``: the request did not ask for them."""


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


@s.request(s.ApiKey.DESCRIBE_GROUPS, DescribeGroupsResponse, versions=(0, 5), flexible_since=5)
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


@s.request(s.ApiKey.LIST_GROUPS, ListGroupsResponse, versions=(0, 5), flexible_since=3)
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


@s.request(s.ApiKey.DELETE_GROUPS, DeleteGroupsResponse, versions=(0, 2), flexible_since=2)
class DeleteGroupsRequest(s.RequestOf[DeleteGroupsResponse]):
    groups_names: list[str] = s.array(s.WireType.STRING)
