"""DescribeGroups, ListGroups and DeleteGroups: groups as operators see them (KIP-222, KIP-518, KIP-848)."""

from __future__ import annotations

from typing import Final

from barnabas.protocol.schema import (
    ApiKey,
    RequestOf,
    WireType,
    array,
    boolean,
    int16,
    int32,
    message,
    opaque,
    request,
    string,
)

OPERATIONS_NOT_ASKED_FOR: Final = -(1 << 31)
"""As ``authorized_operations``: the request did not ask for them."""


@message
class DescribedGroupMember:
    """``member_metadata`` and ``member_assignment`` are empty unless the group is Stable."""

    member_id: str = string()
    group_instance_id: str | None = string(since=4, nullable_since=4, default=None)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = opaque(default=b"")
    member_assignment: bytes = opaque(default=b"")


@message
class DescribedGroup:
    """``group_state`` is the state's name, ``protocol_data`` the protocol in force while Stable."""

    error_code: int = int16(default=0)
    group_id: str = string()
    group_state: str = string(default="")
    protocol_type: str = string(default="")
    protocol_data: str = string(default="")
    members: list[DescribedGroupMember] = array(DescribedGroupMember, default_factory=list)
    authorized_operations: int = int32(since=3, default=OPERATIONS_NOT_ASKED_FOR)


@message
class DescribeGroupsResponse:
    throttle_time_ms: int = int32(since=1, default=0)
    groups: list[DescribedGroup] = array(DescribedGroup)


@request(ApiKey.DESCRIBE_GROUPS, DescribeGroupsResponse, versions=(0, 5), flexible_since=5)
@message
class DescribeGroupsRequest(RequestOf[DescribeGroupsResponse]):
    groups: list[str] = array(WireType.STRING)
    include_authorized_operations: bool = boolean(since=3, default=False, ignorable=False)


@message
class ListedGroup:
    """``group_type`` is "classic", the only supported type."""

    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(since=4, default="")
    group_type: str = string(since=5, default="")


@message
class ListGroupsResponse:
    throttle_time_ms: int = int32(since=1, default=0)
    error_code: int = int16(default=0)
    groups: list[ListedGroup] = array(ListedGroup, default_factory=list)


@request(ApiKey.LIST_GROUPS, ListGroupsResponse, versions=(0, 5), flexible_since=3)
@message
class ListGroupsRequest(RequestOf[ListGroupsResponse]):
    """An empty filter matches all; names of states and types are not case-sensitive."""

    states_filter: list[str] = array(WireType.STRING, since=4, default_factory=list, ignorable=False)
    types_filter: list[str] = array(WireType.STRING, since=5, default_factory=list, ignorable=False)


@message
class DeletableGroupResult:
    group_id: str = string()
    error_code: int = int16()


@message
class DeleteGroupsResponse:
    throttle_time_ms: int = int32(default=0)
    results: list[DeletableGroupResult] = array(DeletableGroupResult)


@request(ApiKey.DELETE_GROUPS, DeleteGroupsResponse, versions=(0, 2), flexible_since=2)
@message
class DeleteGroupsRequest(RequestOf[DeleteGroupsResponse]):
    groups_names: list[str] = array(WireType.STRING)
