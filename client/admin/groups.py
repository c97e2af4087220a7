"""Descriptions of consumer groups for operators, and the requests about groups.

Requests follow the coordinator when it moves, and are retried after retriable errors until the timeout.
Belongs to the event loop of the cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from barnabas.client.cluster import Cluster
from barnabas.client.consumer.group_calls import GroupCalls
from barnabas.client.consumer.group_membership import Api, Membership, Reaction, Timing, reaction_to
from barnabas.client.consumer.group_offsets import CommittedOffsets
from barnabas.client.errors import GroupErrors
from barnabas.common.backoff import Retries
from barnabas.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE, decode_assignment, decode_subscription
from barnabas.protocol.errors import ApiError, BarnabasError, ErrorCode, api_error, raise_for
from barnabas.protocol.ids import BrokerId, TopicPartition, by_topic
from barnabas.protocol.messages.groups import (
    NO_MEMBER,
    DeleteGroupsRequest,
    DescribedGroupMember,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberIdentity,
)
from barnabas.protocol.messages.offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from barnabas.protocol.schema import RequestOf

K = TypeVar("K")
R = TypeVar("R")

_AT_ONCE: Final = 32
"""The number of parallel requests; enough to hide the round trips."""

_DEAD: Final = "Dead"
_REFUSALS: Final[dict[int, str]] = {
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no group {!r}",
    ErrorCode.NON_EMPTY_GROUP: "group {!r} has members: stop them first",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "members of group {!r} are subscribed to the topic: stop them first",
    ErrorCode.UNKNOWN_MEMBER_ID: "group {!r} has no such member",
}
_NO_TIMING: Final = Timing(float("inf"), float("inf"), float("inf"))


async def for_each(keys: Iterable[K], work: Callable[[K], Coroutine[Any, Any, R]]) -> dict[K, R]:
    """Do the work for all keys in parallel; returns the results in their order. Raises the first failure."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def in_turn(key: K) -> R:
        async with turns:
            return await work(key)

    tasks = {key: asyncio.create_task(in_turn(key)) for key in dict.fromkeys(keys)}
    try:
        return dict(zip(tasks, await asyncio.gather(*tasks.values()), strict=True))
    finally:
        for task in tasks.values():
            task.cancel()


@dataclass(frozen=True, slots=True)
class GroupListing:
    """``state`` is the state's name as Kafka writes it, for example Stable or Empty."""

    group_id: str
    protocol_type: str
    state: str


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """``topics`` and ``assignment`` are empty unless the group is Stable and has consumers."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """``protocol`` names the assignor in force; it is empty unless the group is Stable."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: BrokerId
    members: tuple[MemberDescription, ...]


async def ask_broker(
    cluster: Cluster,
    node_id: BrokerId,
    request: RequestOf[R],
    code: Callable[[R], int],
    what: str,
    retries: Retries,
) -> R | None:
    """Ask one of all brokers for a list, such as that of its groups.

    None if it is not alive any more: then what it coordinated has moved to brokers that are also asked.
    """
    while True:
        try:
            answer = await cluster.request(node_id, request)
            raise_for(code(answer), f"broker {node_id} did not list {what}")
            return answer
        except BarnabasError as error:
            is_alive = node_id in cluster.nodes
            if error.retriable and not is_alive and not retries.is_over:
                return None
            await cluster.refresh_after(error, retries)


def offsets_of_group(cluster: Cluster, group_id: str) -> CommittedOffsets:
    """The committed offsets of a group that the caller is no member of."""
    member = Membership(_NO_TIMING)
    calls = GroupCalls(cluster, group_id, member)
    return CommittedOffsets(cluster, calls, member)


async def ask_coordinator(
    cluster: Cluster,
    group_id: str,
    request: RequestOf[R],
    codes: Callable[[R], list[int]],
    timeout_ms: int,
) -> tuple[R, BrokerId]:
    """Ask brokers until the coordinator answers. Raises the first error in its answer."""
    member = Membership(_NO_TIMING)
    calls = GroupCalls(cluster, group_id, member)
    retries = calls.make_retries(timeout_ms / 1000)
    while True:
        try:
            limit_ms = retries.left_ms(cluster.config.request_timeout_ms)
            coordinator = await calls.coordinator(limit_ms)
            answer = await calls.ask(request, timeout_ms=limit_ms)
            code = next((code for code in codes(answer) if code), ErrorCode.NONE)
            raise_for(code, _REFUSALS.get(code, "the request about group {!r} failed").format(group_id))
            return answer, coordinator
        except BarnabasError as error:
            if isinstance(error, ApiError):
                reaction = reaction_to(Api.OFFSETS, error.code)
                member.react(Api.OFFSETS, reaction, str(error), member.identity)
                if reaction not in (Reaction.RETRY, Reaction.FIND_COORDINATOR):
                    raise
            await retries.wait_after(error)


async def delete_groups(cluster: Cluster, group_ids: Iterable[str], timeout_ms: int) -> None:
    async def delete(group_id: str) -> BarnabasError | None:
        try:
            await ask_coordinator(
                cluster,
                group_id,
                DeleteGroupsRequest(groups_names=[group_id]),
                lambda answer: [result.error_code for result in answer.results],
                timeout_ms,
            )
        except BarnabasError as error:
            return error
        return None

    outcomes = await for_each(group_ids, delete)
    errors = {group_id: error for group_id, error in outcomes.items() if error is not None}
    if errors and len(outcomes) == 1:
        raise errors.popitem()[1]
    if errors:
        raise GroupErrors(errors, dict.fromkeys(outcomes.keys() - errors.keys()))


async def list_groups(cluster: Cluster, states: Iterable[str], timeout_ms: int) -> list[GroupListing]:
    await cluster.refresh()
    request = ListGroupsRequest(states_filter=list(states))
    retries = cluster.config.make_retries(timeout_ms)

    async def ask(node_id: BrokerId) -> ListGroupsResponse | None:
        return await ask_broker(
            cluster, node_id, request, lambda answer: answer.error_code, "its groups", retries
        )

    answers = (await for_each(cluster.nodes, ask)).values()
    by_id = {group.group_id: group for answer in answers if answer for group in answer.groups}
    return [
        GroupListing(group.group_id, group.protocol_type, group.group_state)
        for _, group in sorted(by_id.items())
    ]


async def remove_members(
    cluster: Cluster, group_id: str, group_instance_ids: Iterable[str], timeout_ms: int
) -> None:
    members = [
        MemberIdentity(member_id=NO_MEMBER, group_instance_id=instance, reason="removed by an operator")
        for instance in group_instance_ids
    ]
    await ask_coordinator(
        cluster,
        group_id,
        LeaveGroupRequest(group_id=group_id, members=members),
        lambda answer: [answer.error_code, *(member.error_code for member in answer.members)],
        timeout_ms,
    )


async def delete_group_offsets(
    cluster: Cluster, group_id: str, partitions: Iterable[TopicPartition], timeout_ms: int
) -> None:
    topics = by_topic((tp, OffsetDeleteRequestPartition(partition_index=tp.partition)) for tp in partitions)
    request = OffsetDeleteRequest(
        group_id=group_id,
        topics=[OffsetDeleteRequestTopic(name=name, partitions=entries) for name, entries in topics.items()],
    )
    await ask_coordinator(
        cluster,
        group_id,
        request,
        lambda answer: [
            answer.error_code,
            *(deleted.error_code for topic in answer.topics for deleted in topic.partitions),
        ],
        timeout_ms,
    )


async def describe_group(cluster: Cluster, group_id: str, timeout_ms: int) -> GroupDescription:
    answer, coordinator = await ask_coordinator(
        cluster,
        group_id,
        DescribeGroupsRequest(groups=[group_id]),
        lambda answer: [group.error_code for group in answer.groups],
        timeout_ms,
    )
    group = answer.groups[0]
    if group.group_state == _DEAD:
        raise api_error(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")
    is_of_consumers = group.protocol_type == CONSUMER_PROTOCOL_TYPE
    return GroupDescription(
        group.group_id,
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        coordinator,
        tuple(_member(member, is_of_consumers) for member in group.members),
    )


def _member(member: DescribedGroupMember, is_of_consumers: bool) -> MemberDescription:
    topics: tuple[str, ...] = ()
    assignment: tuple[TopicPartition, ...] = ()
    if is_of_consumers and member.member_metadata:
        topics = decode_subscription(member.member_metadata).topics
        assignment = tuple(sorted(decode_assignment(member.member_assignment)))
    return MemberDescription(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        topics,
        assignment,
    )
