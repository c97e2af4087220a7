"""The operators' requests about consumer groups: members, committed offsets, and changes of both.

The base class of `Admin` alone, on its event loop. Requests follow the coordinator when it moves, and are
retried after retriable errors until the timeout.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from barnabas.client.cluster import Cluster
from barnabas.client.config import AdminConfig
from barnabas.client.consumer.committed_offsets import (
    CommittedOffsets,
    OffsetAndMetadata,
    OffsetToCommit,
    checked_offsets,
)
from barnabas.client.consumer.consumer_protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription
from barnabas.client.consumer.group_calls import GroupCalls
from barnabas.client.consumer.group_membership import Api, Membership, Reaction, Timing, reaction_to
from barnabas.client.errors import CommitFailed, GroupErrors
from barnabas.protocol.errors import ApiError, BarnabasError, ErrorCode, api_error, raise_for
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    ListedGroup,
    ListGroupsRequest,
)
from barnabas.protocol.messages.join_group import NO_MEMBER, LeaveGroupRequest, MemberIdentity
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
    """``protocol`` is that of the assignor in force, empty while the group is not Stable."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: BrokerId
    members: tuple[MemberDescription, ...]


class AdminGroups(ABC):
    """See the module."""

    config: AdminConfig

    @abstractmethod
    def _open(self) -> Cluster:
        """Raises ClientClosed."""

    @abstractmethod
    def _timeout(self, timeout_ms: int | None) -> int: ...

    async def list_groups(
        self, *, states: Iterable[str] = (), timeout_ms: int | None = None
    ) -> list[GroupListing]:
        """The groups of all live brokers, by name; only those in these states, if any are given.

        Raises the last error of a broker that did not answer before the timeout.
        """
        cluster, timeout_ms = self._open(), self._timeout(timeout_ms)
        await cluster.refresh()
        request = ListGroupsRequest(states_filter=list(states))
        deadline = time.monotonic() + timeout_ms / 1000
        listed = await for_each(
            cluster.nodes, lambda node_id: self._listed_by(cluster, node_id, request, deadline)
        )
        found = {group_id: group for groups in listed.values() for group_id, group in groups.items()}
        return [
            GroupListing(group.group_id, group.protocol_type, group.group_state)
            for _, group in sorted(found.items())
        ]

    async def _listed_by(
        self, cluster: Cluster, node_id: BrokerId, request: ListGroupsRequest, deadline: float
    ) -> dict[str, ListedGroup]:
        while True:
            try:
                answer = await cluster.request(node_id, request)
                raise_for(answer.error_code, f"broker {node_id} did not list its groups")
                return {group.group_id: group for group in answer.groups}
            except BarnabasError as error:
                if not error.retriable or time.monotonic() >= deadline:
                    raise
                if node_id not in cluster.nodes:
                    # Its groups have moved to brokers that are also asked.
                    return {}
            await cluster.refresh_before(deadline)

    async def describe_groups(
        self, group_ids: Iterable[str] | str, *, timeout_ms: int | None = None
    ) -> dict[str, GroupDescription]:
        """State, members and assignments. Raises GROUP_ID_NOT_FOUND for a group that does not exist."""
        wanted = [group_ids] if isinstance(group_ids, str) else list(group_ids)

        async def describe(group_id: str) -> GroupDescription:
            answer, coordinator = await self._ask(
                group_id,
                DescribeGroupsRequest(groups=[group_id]),
                lambda answer: [group.error_code for group in answer.groups],
                self._timeout(timeout_ms),
            )
            group = answer.groups[0]
            if group.group_state == _DEAD:
                raise api_error(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")
            return _description(group, coordinator)

        return await for_each(wanted, describe)

    async def delete_groups(self, group_ids: Iterable[str] | str, *, timeout_ms: int | None = None) -> None:
        """Delete groups and their offsets. If one cannot be deleted, the others are.

        Raises an ApiError such as NON_EMPTY_GROUP or GROUP_ID_NOT_FOUND for a single group, and GroupErrors
        if some of several groups failed.
        """
        wanted = [group_ids] if isinstance(group_ids, str) else list(group_ids)

        async def delete(group_id: str) -> BarnabasError | None:
            try:
                await self._ask(
                    group_id,
                    DeleteGroupsRequest(groups_names=[group_id]),
                    lambda answer: [result.error_code for result in answer.results],
                    self._timeout(timeout_ms),
                )
            except BarnabasError as error:
                return error
            return None

        outcomes = await for_each(wanted, delete)
        errors = {group_id: error for group_id, error in outcomes.items() if error is not None}
        if errors and len(outcomes) == 1:
            raise errors.popitem()[1]
        if errors:
            raise GroupErrors(errors, dict.fromkeys(outcomes.keys() - errors.keys()))

    async def remove_members(
        self, group_id: str, group_instance_ids: Iterable[str], *, timeout_ms: int | None = None
    ) -> None:
        """Remove static members that will not return. Raises UNKNOWN_MEMBER_ID."""
        members = [
            MemberIdentity(member_id=NO_MEMBER, group_instance_id=instance, reason="removed by an operator")
            for instance in group_instance_ids
        ]
        await self._ask(
            group_id,
            LeaveGroupRequest(group_id=group_id, members=members),
            lambda answer: [answer.error_code, *(member.error_code for member in answer.members)],
            self._timeout(timeout_ms),
        )

    async def group_offsets(
        self,
        group_id: str,
        partitions: Collection[TopicPartition] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Committed offsets of all partitions, or of these, where None means that there is none."""
        offsets = self._offsets_of(group_id)
        if partitions is None:
            return await offsets.fetch_all(self._timeout(timeout_ms))
        return await offsets.fetch(partitions, self._timeout(timeout_ms))

    async def alter_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetToCommit],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Set the committed offsets of a group. Raises NON_EMPTY_GROUP while it has members."""
        try:
            await self._offsets_of(group_id).commit(checked_offsets(offsets), self._timeout(timeout_ms))
        except CommitFailed as error:
            raise api_error(
                ErrorCode.NON_EMPTY_GROUP,
                f"group {group_id!r} has members, which commit offsets of their own: stop them first",
            ) from error

    async def delete_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], *, timeout_ms: int | None = None
    ) -> None:
        """Delete committed offsets. Raises GROUP_SUBSCRIBED_TO_TOPIC, GROUP_ID_NOT_FOUND and their kind."""
        topics: dict[str, list[OffsetDeleteRequestPartition]] = {}
        for topic, partition in partitions:
            asked = OffsetDeleteRequestPartition(partition_index=partition)
            topics.setdefault(topic, []).append(asked)
        request = OffsetDeleteRequest(
            group_id=group_id,
            topics=[OffsetDeleteRequestTopic(name=name, partitions=found) for name, found in topics.items()],
        )
        await self._ask(
            group_id,
            request,
            lambda answer: [
                answer.error_code,
                *(one.error_code for topic in answer.topics for one in topic.partitions),
            ],
            self._timeout(timeout_ms),
        )

    def _offsets_of(self, group_id: str) -> CommittedOffsets:
        member = Membership(_NO_TIMING)
        calls = GroupCalls(self._open(), group_id, member)
        return CommittedOffsets(calls, member, self.config.request_timeout_ms)

    async def _ask(
        self, group_id: str, request: RequestOf[R], codes: Callable[[R], list[int]], timeout_ms: int
    ) -> tuple[R, BrokerId]:
        """Ask brokers until the coordinator answers. Raises the first error in its answer."""
        member = Membership(_NO_TIMING)
        calls = GroupCalls(self._open(), group_id, member)
        backoff = calls.backoff()
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            left_ms = max(1, int((deadline - time.monotonic()) * 1000))
            try:
                asked_ms = min(left_ms, self.config.request_timeout_ms)
                coordinator = await calls.coordinator(asked_ms)
                answer = await calls.ask(request, timeout_ms=asked_ms)
                code = next((code for code in codes(answer) if code), 0)
                if not code:
                    return answer, coordinator
                error: BarnabasError = api_error(
                    code, _REFUSALS.get(code, "group {!r} was asked about").format(group_id)
                )
            except BarnabasError as failure:
                error = failure
            if isinstance(error, ApiError):
                reaction = reaction_to(Api.OFFSETS, error.code)
                member.react(Api.OFFSETS, reaction, str(error), member.identity)
                if reaction not in (Reaction.RETRY, Reaction.FIND_COORDINATOR):
                    raise error
            backoff.failed(time.monotonic())
            pause = backoff.remaining(time.monotonic())
            if not error.retriable or time.monotonic() + pause >= deadline:
                raise error
            await asyncio.sleep(pause)


def _description(group: DescribedGroup, coordinator: BrokerId) -> GroupDescription:
    is_of_consumers = group.protocol_type == PROTOCOL_TYPE
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
        assignment = tuple(sorted(decode_assignment(member.member_assignment).partitions))
    return MemberDescription(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        topics,
        assignment,
    )
