"""The groups of a `FakeCluster`: looks at them, and disturbs their members.

coordinator = Coordinator(cluster)
coordinator.commit("g", 12)                 # offset 12 of partition 0 of "t"
coordinator.kick("g", member_id)
coordinator.move(2)                         # broker 2 coordinates from now on
assert coordinator.group("g").state == "Stable"
"""

from __future__ import annotations

from barnabas.broker.coordinators.groups.group import Group
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.groups import LeaveGroupRequest, MemberIdentity
from barnabas.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.protocol.topic_names import OFFSETS_TOPIC
from tests.support.fake_broker import FakeBroker, FakeCluster


class Coordinator:
    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster

    @property
    def node_id(self) -> int:
        return self.cluster.coordinator_id

    @property
    def broker(self) -> FakeBroker:
        return self.cluster.brokers[self.node_id]

    def group(self, group_id: str) -> FakeGroup:
        return FakeGroup(self, group_id)

    def move(self, node_id: int) -> None:
        """Make another broker the coordinator; waiting joins and syncs fail with NOT_COORDINATOR."""
        self.cluster.coordinator_id = node_id
        if OFFSETS_TOPIC in self.cluster.topics:
            self.cluster.move_leader(OFFSETS_TOPIC, 0, node_id)

    def kick(self, group_id: str, member_id: str) -> None:
        """Evict a member, as at the end of its session."""
        members = [MemberIdentity(member_id=member_id)]
        self.broker.call(LeaveGroupRequest(group_id=group_id, members=members))

    def commit(self, group_id: str, offset: int, leader_epoch: int = -1, topic: str = "t") -> None:
        """Commit an offset of partition 0 for a group without members."""
        if OFFSETS_TOPIC not in self.cluster.topics:
            self.cluster.add_topic(OFFSETS_TOPIC, leaders=[self.node_id])
        partition = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_leader_epoch=leader_epoch
        )
        answer = self.broker.call(
            OffsetCommitRequest(
                group_id=group_id, topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])]
            )
        )
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE


class FakeGroup:
    """The state of a group at its coordinator, read by each attribute."""

    def __init__(self, coordinator: Coordinator, group_id: str) -> None:
        self._coordinator = coordinator
        self._group_id = group_id

    @property
    def _group(self) -> Group | None:
        groups, _ = self._coordinator.broker.serving.groups.all_machines()
        return next((group for group in groups if group.group_id == self._group_id), None)

    @property
    def state(self) -> str:
        group = self._group
        return "Dead" if group is None else group.state.value

    @property
    def generation(self) -> int:
        group = self._group
        return 0 if group is None else group.generation_id

    @property
    def members(self) -> list[str]:
        group = self._group
        return [] if group is None else [member.member_id for member in group.describe().members]

    @property
    def offsets(self) -> dict[tuple[str, int], tuple[int, str, int]]:
        """Offset, metadata and leader epoch by partition."""
        group = self._group
        committed = {} if group is None else group.offsets.copy()
        return {
            (tp.topic, tp.partition): (value.committed_offset, value.metadata, value.leader_epoch)
            for tp, (value, _) in committed.items()
        }
