"""Consumer groups: descriptions for operators, changes of their offsets and members.

Requests follow the coordinator when it moves, and are retried after retriable errors until the timeout.
Belongs to the event loop of the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from barnabas.client.admin.base import AdminBase, raise_errors
from barnabas.client.arguments import check_text, several
from barnabas.client.ask import Answered, ToCoordinator, ask_all, ask_brokers, for_each
from barnabas.client.consumer.group_membership import Membership
from barnabas.client.consumer.group_offsets import CommittedOffsets, committed_in
from barnabas.client.coordinators import CoordinatorLink
from barnabas.client.errors import CommitFailed, GroupErrors
from barnabas.client.offsets import (
    OffsetAndMetadata,
    OffsetsToCommit,
    Partition,
    checked_offsets,
    partitions_in,
)
from barnabas.client.reactions import Api
from barnabas.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE, decode_assignment, decode_subscription
from barnabas.protocol.errors import BarnabasError, ErrorCode, api_error
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages import groups as wire
from barnabas.protocol.messages.find_coordinator import CoordinatorType
from barnabas.protocol.messages.offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from barnabas.protocol.partition_entries import in_topics
from barnabas.protocol.schema import RequestOf

R = TypeVar("R")

_DEAD: Final = "Dead"
_SURVEYED_AT_ONCE: Final = 200
_REFUSALS: Final[dict[int, str]] = {
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no group {!r}",
    ErrorCode.NON_EMPTY_GROUP: "group {!r} has members: stop them first",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "members of group {!r} are subscribed to the topic: stop them first",
    ErrorCode.UNKNOWN_MEMBER_ID: "group {!r} has no such member",
}


@dataclass(frozen=True, slots=True)
class GroupListing:
    """``state`` is the state's name as Kafka writes it, for example Stable or Empty."""

    group_id: str
    protocol_type: str
    state: str
    coordinator: BrokerId


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


class SurveyedGroup(NamedTuple):
    """``committed`` has the partitions with a committed offset."""

    description: GroupDescription
    committed: dict[TopicPartition, OffsetAndMetadata]


class GroupAdmin(AdminBase):
    """The methods of `Admin` for consumer groups."""

    async def list_groups(
        self, *, states: Iterable[str] | str = (), timeout_ms: int | None = None
    ) -> list[GroupListing]:
        """The groups of all live brokers, by name; only those in these states, if any are given.

        Raises the last error of a broker that did not answer before the timeout.
        """
        request = wire.ListGroupsRequest(states_filter=several("states", states, str))
        cluster = self._open()
        await cluster.refresh()
        answers = await ask_all(cluster, request, "its groups", self._timeout(timeout_ms))
        by_id = {
            group.group_id: GroupListing(group.group_id, group.protocol_type, group.group_state, node_id)
            for node_id, answer in answers.items()
            for group in answer.groups
        }
        return [listing for _, listing in sorted(by_id.items())]

    async def describe_groups(
        self, group_ids: Iterable[str] | str, *, timeout_ms: int | None = None
    ) -> dict[str, GroupDescription]:
        """State, members and assignments. Raises GROUP_ID_NOT_FOUND for a group that does not exist."""

        async def describe(group_id: str) -> GroupDescription:
            request = wire.DescribeGroupsRequest(groups=[group_id])
            answered = await self._ask_about_group(group_id, request, timeout_ms)
            group = answered.response.groups[0]
            if group.group_state == _DEAD:
                raise self._missing(group_id)
            return _description(group, answered.node_id)

        return await for_each(several("group_ids", group_ids, str), describe)

    async def survey_groups(
        self, listings: Iterable[GroupListing], *, timeout_ms: int | None = None
    ) -> dict[str, SurveyedGroup | BarnabasError]:
        """Listed groups with their committed offsets, by two requests for hundreds of groups.

        A group has an error if it has moved or ended since it was listed; the caller lists again.
        """
        by_coordinator: dict[BrokerId, list[str]] = {}
        for listing in several("listings", listings, GroupListing):
            by_coordinator.setdefault(listing.coordinator, []).append(listing.group_id)
        return await ask_brokers(by_coordinator, self._survey, self._timeout(timeout_ms), _SURVEYED_AT_ONCE)

    async def _survey(
        self, node_id: BrokerId, group_ids: Sequence[str], limit_ms: int
    ) -> dict[str, SurveyedGroup | BarnabasError]:
        cluster = self._open()
        fetch = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name) for name in group_ids])
        described, fetched = await asyncio.gather(
            cluster.request(node_id, wire.DescribeGroupsRequest(groups=list(group_ids)), timeout_ms=limit_ms),
            cluster.request(node_id, fetch, timeout_ms=limit_ms),
        )
        offsets = {group.group_id: group for group in fetched.groups}
        descriptions = {group.group_id: group for group in described.groups}
        surveyed: dict[str, SurveyedGroup | BarnabasError] = {}
        for name in group_ids:
            group, of_group = descriptions.get(name), offsets.get(name)
            if group is None or of_group is None:
                text = f"broker {node_id} did not answer for group {name!r}"
                surveyed[name] = api_error(ErrorCode.UNKNOWN_SERVER_ERROR, text)
                continue
            code = group.error_code or of_group.error_code
            if not code and group.group_state == _DEAD:
                surveyed[name] = self._missing(name)
            elif code:
                surveyed[name] = api_error(code, _refusal(name, code))
            else:
                surveyed[name] = SurveyedGroup(_description(group, node_id), committed_in(of_group))
        return surveyed

    def _missing(self, group_id: str) -> BarnabasError:
        # Apache Kafka answers so for a group of the protocol of KIP-848 too, which it lists.
        kind = " of the classic group protocol" if self.is_kafka else ""
        return api_error(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}{kind}")

    async def delete_groups(self, group_ids: Iterable[str] | str, *, timeout_ms: int | None = None) -> None:
        """Delete groups and their offsets. If one cannot be deleted, the others are.

        Raises an ApiError such as NON_EMPTY_GROUP or GROUP_ID_NOT_FOUND for a single group, and GroupErrors
        if some of several groups failed.
        """

        async def delete(group_id: str) -> BarnabasError | None:
            request = wire.DeleteGroupsRequest(groups_names=[group_id])
            try:
                await self._ask_about_group(group_id, request, timeout_ms)
            except BarnabasError as error:
                return error
            return None

        outcomes = await for_each(several("group_ids", group_ids, str), delete)
        raise_errors(outcomes, len(outcomes), GroupErrors)

    async def remove_members(
        self, group_id: str, group_instance_ids: Iterable[str] | str, *, timeout_ms: int | None = None
    ) -> None:
        """Remove static members that will not return. Raises UNKNOWN_MEMBER_ID."""
        check_text("group_id", group_id)
        members = [
            wire.MemberIdentity(
                member_id=wire.NO_MEMBER, group_instance_id=instance, reason="removed by an operator"
            )
            for instance in several("group_instance_ids", group_instance_ids, str)
        ]
        request = wire.LeaveGroupRequest(group_id=group_id, members=members)
        await self._ask_about_group(group_id, request, timeout_ms)

    async def group_offsets(
        self,
        group_id: str,
        partitions: Collection[Partition] | None = None,
        *,
        require_stable: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Committed offsets of all partitions, or of these; None for a partition without one.

        With ``require_stable`` it waits for the end of transactions that commit offsets of the group.
        """
        check_text("group_id", group_id)
        chosen = None if partitions is None else partitions_in(partitions)
        offsets = self._offsets_of(group_id)
        return await offsets.fetch(chosen, self._timeout(timeout_ms), require_stable=require_stable)

    async def alter_group_offsets(
        self,
        group_id: str,
        offsets: OffsetsToCommit,
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Set the committed offsets of a group. Raises NON_EMPTY_GROUP while it has members."""
        check_text("group_id", group_id)
        chosen = checked_offsets(offsets)
        try:
            await self._offsets_of(group_id).commit(chosen, self._timeout(timeout_ms))
        except CommitFailed as error:
            raise api_error(
                ErrorCode.NON_EMPTY_GROUP,
                f"group {group_id!r} has members, which commit offsets of their own: stop them first",
            ) from error

    async def delete_group_offsets(
        self, group_id: str, partitions: Iterable[Partition], *, timeout_ms: int | None = None
    ) -> None:
        """Delete committed offsets. Raises GROUP_SUBSCRIBED_TO_TOPIC, GROUP_ID_NOT_FOUND and their kind."""
        check_text("group_id", group_id)
        deleted = (
            (tp, OffsetDeleteRequestPartition(partition_index=tp.partition))
            for tp in partitions_in(partitions)
        )
        topics = in_topics(OffsetDeleteRequestTopic, deleted)
        request = OffsetDeleteRequest(group_id=group_id, topics=topics)
        await self._ask_about_group(group_id, request, timeout_ms)

    def _offsets_of(self, group_id: str) -> CommittedOffsets:
        """The committed offsets of a group that the caller is no member of."""
        member = Membership()
        return CommittedOffsets(
            CoordinatorLink(self._open(), CoordinatorType.GROUP, group_id, member), member
        )

    async def _ask_about_group(
        self, group_id: str, request: RequestOf[R], timeout_ms: int | None
    ) -> Answered[R]:
        def subject(code: int) -> str:
            return _refusal(group_id, code)

        link = CoordinatorLink(self._open(), CoordinatorType.GROUP, group_id)
        return await self._ask(ToCoordinator(subject, link=link, api=Api.OFFSETS), request, timeout_ms)


def _refusal(group_id: str, code: int) -> str:
    return _REFUSALS.get(code, "the request about group {!r} failed").format(group_id)


def _description(group: wire.DescribedGroup, coordinator: BrokerId) -> GroupDescription:
    is_of_consumers = group.protocol_type == CONSUMER_PROTOCOL_TYPE
    return GroupDescription(
        group.group_id,
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        coordinator,
        tuple(_member(member, is_of_consumers) for member in group.members),
    )


def _member(member: wire.DescribedGroupMember, is_of_consumers: bool) -> MemberDescription:
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
