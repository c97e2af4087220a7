"""A small group coordinator for `FakeCluster`: the rules of the classic protocol that a member can observe.

One broker coordinates every group; `move` makes another broker the coordinator, `kick` evicts a member.
Members that do not rejoin are evicted after their rebalance timeout, silent ones after their session timeout.
The coordinator's clock stops while the loop is held up, because the members run on the same loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from barnabas.protocol.messages.groups import (
    HeartbeatResponse,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupResponse,
    MemberResponse,
    SyncGroupResponse,
)
from barnabas.protocol.messages.offsets import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from barnabas.protocol.schema import ApiKey
from tests.support.fake_broker import FakeBroker, FakeCluster

_LONGEST_STEP_S = 0.02


@dataclass
class FakeMember:
    member_id: str
    instance_id: str | None
    protocols: dict[str, bytes]
    session_s: float
    rebalance_s: float
    joining: asyncio.Future[JoinGroupResponse] | None = None
    syncing: asyncio.Future[SyncGroupResponse] | None = None
    assignment: bytes = b""
    heard_at: float = 0.0


@dataclass
class FakeGroup:
    group_id: str
    generation: int = 0
    state: str = "Empty"
    protocol: str = ""
    leader: str = ""
    members: dict[str, FakeMember] = field(default_factory=dict)
    given_ids: set[str] = field(default_factory=set)
    offsets: dict[tuple[str, int], tuple[int, str, int]] = field(default_factory=dict)
    deadline: float = 0.0


class FakeCoordinator:
    """Attach to a cluster before its clients start; see the module."""

    def __init__(self, cluster: FakeCluster, node_id: int = 1) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.groups: dict[str, FakeGroup] = {}
        self.ids = 0
        self.watch: asyncio.Task[None] | None = None
        self.time_s = 0.0
        cluster.more_handlers.update(
            {
                ApiKey.FIND_COORDINATOR: self.find,
                ApiKey.JOIN_GROUP: self.join,
                ApiKey.SYNC_GROUP: self.sync,
                ApiKey.HEARTBEAT: self.heartbeat,
                ApiKey.LEAVE_GROUP: self.leave,
                ApiKey.OFFSET_COMMIT: self.commit,
                ApiKey.OFFSET_FETCH: self.fetch,
            }
        )

    def group(self, group_id: str) -> FakeGroup:
        return self.groups.setdefault(group_id, FakeGroup(group_id))

    def move(self, node_id: int) -> None:
        """Make another broker the coordinator; waiting joins and syncs fail with NOT_COORDINATOR."""
        self.node_id = node_id
        for group in self.groups.values():
            for member in group.members.values():
                self._answer_join(member, JoinGroupResponse(error_code=ErrorCode.NOT_COORDINATOR))
                self._answer_sync(member, SyncGroupResponse(error_code=ErrorCode.NOT_COORDINATOR))

    def kick(self, group_id: str, member_id: str) -> None:
        """Evict a member, as at the end of its session."""
        self._remove(self.groups[group_id], member_id)

    async def find(self, broker: FakeBroker, body: Any) -> Any:
        node = self.cluster.brokers[self.node_id]
        return FindCoordinatorResponse(
            coordinators=[
                Coordinator(key=key, node_id=node.node_id, host="127.0.0.1", port=node.port)
                for key in body.coordinator_keys
            ]
        )

    async def join(self, broker: FakeBroker, body: Any) -> Any:
        group = self.group(body.group_id)
        member_id = body.member_id
        if broker.node_id != self.node_id:
            return JoinGroupResponse(error_code=ErrorCode.NOT_COORDINATOR)
        if not member_id:
            self.ids += 1
            member_id = f"member-{self.ids}"
            if body.group_instance_id is None:
                group.given_ids.add(member_id)
                return JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
            if (old := self._static(group, body.group_instance_id)) is not None:
                group.members.pop(old.member_id)
        elif member_id not in group.members and member_id not in group.given_ids:
            return JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        group.given_ids.discard(member_id)
        member = group.members.get(member_id)
        if member is None:
            member = group.members[member_id] = FakeMember(
                member_id, body.group_instance_id, {}, body.session_timeout_ms / 1000, 0.0
            )
        member.protocols = {found.name: found.metadata for found in body.protocols}
        member.rebalance_s = body.rebalance_timeout_ms / 1000
        loop = asyncio.get_running_loop()
        waiting = member.joining = loop.create_future()
        member.heard_at = self.time_s
        self._prepare(group)
        self._complete_if_all_joined(group)
        return await waiting

    async def sync(self, broker: FakeBroker, body: Any) -> Any:
        group = self.group(body.group_id)
        code = self._check(broker, group, body.member_id, body.generation_id)
        if code or group.state in ("PreparingRebalance", "Empty"):
            return SyncGroupResponse(error_code=code or ErrorCode.REBALANCE_IN_PROGRESS)
        member = group.members[body.member_id]
        member.heard_at = self.time_s
        if group.state == "CompletingRebalance":
            waiting = member.syncing = asyncio.get_running_loop().create_future()
            if body.member_id == group.leader:
                given = {found.member_id: found.assignment for found in body.assignments}
                group.state = "Stable"
                for one in group.members.values():
                    one.assignment = given.get(one.member_id, b"")
                    self._answer_sync(one, SyncGroupResponse(error_code=0, assignment=one.assignment))
            return await waiting
        return SyncGroupResponse(error_code=0, assignment=member.assignment)

    async def heartbeat(self, broker: FakeBroker, body: Any) -> Any:
        group = self.group(body.group_id)
        code = self._check(broker, group, body.member_id, body.generation_id)
        if not code:
            group.members[body.member_id].heard_at = self.time_s
            code = ErrorCode.REBALANCE_IN_PROGRESS if group.state == "PreparingRebalance" else 0
        return HeartbeatResponse(error_code=code)

    async def leave(self, broker: FakeBroker, body: Any) -> Any:
        group = self.group(body.group_id)
        if broker.node_id != self.node_id:
            return LeaveGroupResponse(error_code=ErrorCode.NOT_COORDINATOR)
        answers = []
        for one in body.members:
            code = 0 if one.member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID
            answers.append(MemberResponse(member_id=one.member_id, group_instance_id=None, error_code=code))
            if not code:
                self._remove(group, one.member_id)
        return LeaveGroupResponse(error_code=0, members=answers)

    async def commit(self, broker: FakeBroker, body: Any) -> Any:
        group = self.group(body.group_id)
        code = 0
        if broker.node_id != self.node_id:
            code = ErrorCode.NOT_COORDINATOR
        elif body.generation_id_or_member_epoch >= 0 or group.members:
            code = self._check(broker, group, body.member_id, body.generation_id_or_member_epoch)
            if not code and group.state == "CompletingRebalance":
                code = ErrorCode.REBALANCE_IN_PROGRESS
        topics = []
        for topic in body.topics:
            for one in topic.partitions if not code else ():
                group.offsets[topic.name, one.partition_index] = (
                    one.committed_offset,
                    one.committed_metadata or "",
                    one.committed_leader_epoch,
                )
            answers = [
                OffsetCommitResponsePartition(partition_index=one.partition_index, error_code=code)
                for one in topic.partitions
            ]
            topics.append(OffsetCommitResponseTopic(name=topic.name, partitions=answers))
        return OffsetCommitResponse(topics=topics)

    async def fetch(self, broker: FakeBroker, body: Any) -> Any:
        asked = body.groups[0]
        answer_group = OffsetFetchResponseGroup(group_id=asked.group_id)
        if broker.node_id != self.node_id:
            answer_group.error_code = ErrorCode.NOT_COORDINATOR
            return OffsetFetchResponse(groups=[answer_group])
        offsets = self.group(asked.group_id).offsets
        for topic in asked.topics:
            answers = []
            for index in topic.partition_indexes:
                offset, metadata, epoch = offsets.get((topic.name, index), (-1, "", -1))
                answer = OffsetFetchResponsePartition(partition_index=index, committed_offset=offset)
                answer.metadata, answer.committed_leader_epoch = metadata, epoch
                answers.append(answer)
            answer_group.topics.append(OffsetFetchResponseTopic(name=topic.name, partitions=answers))
        return OffsetFetchResponse(groups=[answer_group])

    # Rules

    def _static(self, group: FakeGroup, instance_id: str) -> FakeMember | None:
        return next((one for one in group.members.values() if one.instance_id == instance_id), None)

    def _check(self, broker: FakeBroker, group: FakeGroup, member_id: str, generation: int) -> int:
        if broker.node_id != self.node_id:
            return ErrorCode.NOT_COORDINATOR
        if member_id not in group.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return 0 if generation == group.generation else ErrorCode.ILLEGAL_GENERATION

    def _prepare(self, group: FakeGroup) -> None:
        loop = asyncio.get_running_loop()
        if group.state != "PreparingRebalance":
            group.state = "PreparingRebalance"
            group.deadline = self.time_s + max((one.rebalance_s for one in group.members.values()), default=0)
            for one in group.members.values():
                self._answer_sync(one, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        if self.watch is None or self.watch.done():
            self.watch = loop.create_task(self._expire())

    async def _expire(self) -> None:
        """Evict late members, as long as there are any."""
        loop = asyncio.get_running_loop()
        before = loop.time()
        while any(group.members for group in self.groups.values()):
            present = self.time_s
            for group in self.groups.values():
                for one in list(group.members.values()):
                    waits = one.joining is not None
                    is_late = group.state == "PreparingRebalance" and present > group.deadline
                    if not waits and (is_late or present > one.heard_at + one.session_s):
                        self._remove(group, one.member_id)
            await asyncio.sleep(0.01)
            after = loop.time()
            self.time_s += min(after - before, _LONGEST_STEP_S)
            before = after

    def _remove(self, group: FakeGroup, member_id: str) -> None:
        member = group.members.pop(member_id)
        self._answer_join(member, JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        self._answer_sync(member, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        if group.members:
            self._prepare(group)
            self._complete_if_all_joined(group)
        else:
            group.state = "Empty"

    def _complete_if_all_joined(self, group: FakeGroup) -> None:
        members = list(group.members.values())
        if any(one.joining is None for one in members):
            return
        group.generation += 1
        group.state = "CompletingRebalance"
        group.protocol = next(
            name for name in members[0].protocols if all(name in one.protocols for one in members)
        )
        if group.leader not in group.members:
            group.leader = members[0].member_id
        everyone = [
            JoinGroupResponseMember(
                member_id=one.member_id,
                group_instance_id=one.instance_id,
                metadata=one.protocols[group.protocol],
            )
            for one in members
        ]
        for one in members:
            answer = JoinGroupResponse(
                error_code=0,
                generation_id=group.generation,
                protocol_type="consumer",
                protocol_name=group.protocol,
                leader=group.leader,
                member_id=one.member_id,
                members=everyone if one.member_id == group.leader else [],
            )
            one.heard_at = self.time_s
            self._answer_join(one, answer)

    def _answer_join(self, member: FakeMember, answer: JoinGroupResponse) -> None:
        waiting, member.joining = member.joining, None
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _answer_sync(self, member: FakeMember, answer: SyncGroupResponse) -> None:
        waiting, member.syncing = member.syncing, None
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def stop(self) -> None:
        if self.watch is not None:
            self.watch.cancel()
            await asyncio.wait((self.watch,))
