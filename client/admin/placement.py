"""Where partitions are: elections of leaders and reassignments of replicas, and their results.

Belongs to the event loop of the client.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from barnabas.client.admin.base import AdminBase, error_of
from barnabas.client.arguments import check_mapping, check_member, several
from barnabas.client.offsets import Partition, partitions_in
from barnabas.protocol.errors import ApiError
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages import placement as wire
from barnabas.protocol.messages.partitions import TopicPartitionIndexes, TopicPartitions
from barnabas.protocol.partition_entries import entries, in_topics, numbers_in_topics


class PartitionReassignment(NamedTuple):
    """The replicas of a partition that is being reassigned, and those of them that are added or removed."""

    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...]
    removing: tuple[BrokerId, ...]

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """The replicas after the reassignment."""
        return tuple(replica for replica in self.replicas if replica not in self.removing)


class PlacementAdmin(AdminBase):
    """The methods of `Admin` for elections and reassignments."""

    async def elect_leaders(
        self,
        partitions: Iterable[Partition] | None = None,
        *,
        election_type: wire.ElectionType = wire.ElectionType.PREFERRED,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, ApiError | None]:
        """Let the first replicas of these partitions lead, or of all that need it.

        An unclean election lets any live replica lead a partition without a leader, and loses the records
        that it lacks. All brokers know the leaders when this returns. By partition: None, or an error such
        as ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE or ELIGIBLE_LEADERS_NOT_AVAILABLE.
        """
        check_member("election_type", election_type, wire.ElectionType)
        request = wire.ElectLeadersRequest(
            election_type=int(election_type),
            topic_partitions=None
            if partitions is None
            else numbers_in_topics(TopicPartitions, partitions_in(partitions)),
        )
        response = (await self._ask_controller(request, timeout_ms)).response
        return {tp: error_of(result, "refused") for tp, result in entries(response.replica_election_results)}

    async def alter_partition_reassignments(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, ApiError | None]:
        """Begin to move partitions to these replicas, the preferred leader first; None cancels.

        This returns when the moves have begun: see `list_partition_reassignments`. By partition: None, or an
        error such as INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR or NO_REASSIGNMENT_IN_PROGRESS.
        """
        check_mapping("targets", targets, "partitions to replicas, such as {('orders', 0): [1, 2]}")
        reassigned = {
            tp: wire.ReassignablePartition(
                partition_index=tp.partition,
                replicas=None if target is None else several("targets", target, int),
            )
            for tp, target in zip(partitions_in(targets), targets.values(), strict=True)
        }
        request = wire.AlterPartitionReassignmentsRequest(
            allow_replication_factor_change=allow_replication_factor_change,
            topics=in_topics(wire.ReassignableTopic, reassigned.items()),
        )
        response = (await self._ask_controller(request, timeout_ms)).response
        return {tp: error_of(result, "refused") for tp, result in entries(response.responses)}

    async def list_partition_reassignments(
        self, partitions: Collection[Partition] | None = None, *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """The reassignments under way, of these partitions or of all."""
        request = wire.ListPartitionReassignmentsRequest(
            topics=None
            if partitions is None
            else numbers_in_topics(TopicPartitionIndexes, partitions_in(partitions)),
        )
        response = (await self._ask_controller(request, timeout_ms)).response
        return {
            tp: PartitionReassignment(
                tuple(map(BrokerId, partition.replicas)),
                tuple(map(BrokerId, partition.adding_replicas)),
                tuple(map(BrokerId, partition.removing_replicas)),
            )
            for tp, partition in entries(response.topics)
        }
