"""The requests of group members, and of operators about groups.

The rules are in `coordinators.groups`; a handler turns a request into an event of a group. While groups are
loaded, a heartbeat succeeds and a SyncGroup gets REBALANCE_IN_PROGRESS, as in Kafka.

A JoinGroup or SyncGroup may wait for minutes, and is not cancelled with its connection: the member stays
until its session ends, as in Kafka. So a waiting request holds neither its frame nor its body.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from barnabas.broker.coordinators.groups.coordinator import GroupShard
from barnabas.broker.coordinators.groups.group import JoinOptions
from barnabas.broker.coordinators.groups.members import Client
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.authorization import authorized_operations
from barnabas.broker.handlers.known_errors import respond_code
from barnabas.broker.handlers.services import Services
from barnabas.broker.handlers.waiting import when_known
from barnabas.common.security.acl import ResourceType
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.messages import groups as wire

_MEMBER_ID_REQUIRED_SINCE: Final = 4
_NULL_PROTOCOL_SINCE: Final = 7
_SKIP_ASSIGNMENT_SINCE: Final = 9
_LEAVE_SEVERAL_SINCE: Final = 3
_DEAD: Final = "Dead"


def shard_of(services: Services, group_id: str) -> GroupShard:
    """Raises INVALID_GROUP_ID for the empty id, and as `TopicCoordinator.shard_of`."""
    if not group_id:
        raise api_error(ErrorCode.INVALID_GROUP_ID, "a group id may not be empty")
    return services.groups.shard_of(group_id)


# ---- members


def handle_join(services: Services, request: ApiRequest) -> None:
    body: wire.JoinGroupRequest = request.take_body()
    options = JoinOptions(
        request.is_since(_MEMBER_ID_REQUIRED_SINCE), request.is_since(_SKIP_ASSIGNMENT_SINCE)
    )
    client = Client(request.client_id, f"/{request.raw.peer.host}")

    def answer(response: wire.JoinGroupResponse) -> None:
        if response.protocol_name is None and not request.is_since(_NULL_PROTOCOL_SINCE):
            response.protocol_name = ""
        request.respond(response)

    try:
        shard = shard_of(services, body.group_id)
        shard.apply(body.group_id, lambda group, now: group.join(body, client, answer, now, options))
    except ApiError as error:
        answer(wire.JoinGroupResponse(error_code=error.code, protocol_name=None, member_id=body.member_id))


def handle_sync(services: Services, request: ApiRequest) -> None:
    body: wire.SyncGroupRequest = request.take_body()

    try:
        shard = shard_of(services, body.group_id)
        shard.apply(body.group_id, lambda group, now: group.sync(body, request.respond, now))
    except ApiError as error:
        respond_code(request, error.code)


def handle_heartbeat(services: Services, request: ApiRequest) -> None:
    body: wire.HeartbeatRequest = request.body
    code: ErrorCode | None
    try:
        shard = shard_of(services, body.group_id)
        code = shard.read(body.group_id, lambda group, now: group.heartbeat(body, now))
    except ApiError as error:
        code = error.code
    respond_code(request, ErrorCode.UNKNOWN_MEMBER_ID if code is None else code)


def handle_leave(services: Services, request: ApiRequest) -> None:
    body: wire.LeaveGroupRequest = request.body
    has_several = request.is_since(_LEAVE_SEVERAL_SINCE)
    leaving = body.members if has_several else [wire.MemberIdentity(member_id=body.member_id)]

    def answer(response: wire.LeaveGroupResponse) -> None:
        if not has_several and response.members:
            response.error_code = response.error_code or response.members[0].error_code
        request.respond(response)

    try:
        shard = shard_of(services, body.group_id)
        shard.apply(body.group_id, lambda group, now: group.leave(leaving, answer, now))
    except ApiError as error:
        respond_code(request, error.code)


# ---- operators


def handle_describe(services: Services, request: ApiRequest) -> None:
    topic, groups = services.groups.topic, request.body.groups
    when_known(services, request, topic, lambda: _answer_describe(services, request), loaded=groups)


def _answer_describe(services: Services, request: ApiRequest) -> None:
    body: wire.DescribeGroupsRequest = request.body
    # Each group once: a short request could ask for gigabytes otherwise.
    groups = [_describe(services, group_id) for group_id in dict.fromkeys(body.groups)]
    if body.include_authorized_operations:
        for group in groups:
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = authorized_operations(
                    services, request, ResourceType.GROUP, group.group_id
                )
    request.respond(wire.DescribeGroupsResponse(groups=groups))


def _describe(services: Services, group_id: str) -> wire.DescribedGroup:
    try:
        described = services.groups.shard_of(group_id).read(group_id, lambda group, now: group.describe())
    except ApiError as error:
        return wire.DescribedGroup(error_code=error.code, group_id=group_id)
    return described or wire.DescribedGroup(group_id=group_id, group_state=_DEAD)


def handle_list(services: Services, request: ApiRequest) -> None:
    body: wire.ListGroupsRequest = request.body
    states = {state.lower() for state in body.states_filter}
    types = {kind.lower() for kind in body.types_filter}
    groups, is_partial = services.groups.all_machines()
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_partial else ErrorCode.NONE
    fence = services.replicas.fence
    if fence.loss is not None or (fence.reason is not None and is_partial):
        # An empty list would pass for a broker without groups.
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    listed = [group.listed() for group in groups]
    request.respond(
        wire.ListGroupsResponse(
            error_code=code,
            groups=[
                group
                for group in listed
                if group.group_state != _DEAD
                and (not states or group.group_state.lower() in states)
                and (not types or group.group_type.lower() in types)
            ],
        )
    )


def handle_delete(services: Services, request: ApiRequest) -> None:
    """Answered when the tombstones of all groups that could be deleted are replicated, or have failed."""
    body: wire.DeleteGroupsRequest = request.body
    group_ids = dict.fromkeys(body.groups_names)
    lock = threading.Lock()
    codes: dict[str, ErrorCode] = {}

    def deleted(group_id: str, code: ErrorCode) -> None:
        with lock:
            codes[group_id] = code
            is_last = len(codes) == len(group_ids)
        if is_last:
            results = [wire.DeletableGroupResult(group_id=each, error_code=codes[each]) for each in group_ids]
            request.respond(wire.DeleteGroupsResponse(results=results))

    if not group_ids:
        request.respond(wire.DeleteGroupsResponse(results=[]))
    for group_id in group_ids:
        _delete(services, group_id, partial(deleted, group_id))


def _delete(services: Services, group_id: str, deleted: Callable[[ErrorCode], None]) -> None:
    try:
        shard = services.groups.shard_of(group_id)
        if not shard.apply(group_id, lambda group, now: group.delete(deleted, now), create=False):
            deleted(ErrorCode.GROUP_ID_NOT_FOUND)
    except ApiError as error:
        deleted(error.code)
