"""The promises of a group, from the offsets log and the answers.

The group's own state is compared too, but decides nothing: the next coordinator loads the log.
"""

from typing import Any

from barnabas.broker.coordinators.group_records import GroupMetadataValue, GroupRecord, OffsetRecord
from barnabas.broker.coordinators.rebalance import GroupState
from barnabas.protocol.consumer_protocol import decode_subscription
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.groups import (
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from barnabas.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchResponse,
)
from barnabas.protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from tests.simulation.broker import SimBroker
from tests.simulation.group_transactions import Commit, effective
from tests.simulation.group_world import TOPICS, GroupWorld
from tests.simulation.promises import Promise, PromiseKeeper
from tests.simulation.timed_world import Token


def partitions_of(assignment: bytes) -> set[TopicPartition]:
    named = [part.split("-") for part in assignment.decode().split(",") if part]
    return {TopicPartition(topic, int(partition)) for topic, partition in named}


class Judge(PromiseKeeper):
    """Checks the promises after every event."""

    promises = frozenset(
        {
            Promise.GENERATIONS,
            Promise.ASSIGNMENTS,
            Promise.COMMITS,
            Promise.COMMITTERS,
            Promise.G1A,
            Promise.REST,
        }
    )

    def __init__(self, world: GroupWorld) -> None:
        super().__init__()
        self.world = world
        self.shares: dict[tuple[int, int], dict[str, bytes]] = {}
        """How often the group has died before, and generation → instance id or member id → assignment."""
        self.acknowledged: dict[TopicPartition, int] = {}
        """The offset of the last record whose commit of the partition was acknowledged."""
        self._join_answers: dict[tuple[int, int], tuple[str, set[str]]] = {}
        """Coordinator's epoch and generation → the leader, and the members with an answer to their join."""
        self.refusals: set[ErrorCode] = set()
        self.read: set[Commit] = set()
        """The offsets that were answered as stable."""
        self.moved_in: set[GroupState] = set()
        """The states of the group when its coordinator moved."""

    def check(self, broker: SimBroker) -> None:
        shard = self.world.shard_of(broker)
        for group in self.world.groups_of(broker):
            assert shard is not None
            rebalance, members = group._rebalance, list(group._members)
            joins = [member for member in members if member.join_token is not None]
            syncs = [member for member in members if member.sync_token is not None]
            self.require(Promise.GENERATIONS, group._members.awaiting_join == len(joins))
            self.require(
                Promise.GENERATIONS,
                (group._members.leader_id in group._members) == bool(members),
                "the leader is not a member",
            )
            deadlines = [member.deadline_ms for member in members] + list(group._members.pending.values())
            self.require(
                Promise.GENERATIONS,
                all(group.next_deadline_ms <= due for due in deadlines),
                "a tick would come too late",
            )
            if group.state is GroupState.EMPTY:
                self.require(Promise.GENERATIONS, not members)
            if group.state is not GroupState.COMPLETING_REBALANCE:
                self.require(Promise.GENERATIONS, not syncs, f"syncs wait while {group.state.value}")
                self.require(Promise.GENERATIONS, not rebalance.is_assigned)
            if group.state is GroupState.COMPLETING_REBALANCE:
                self.require(Promise.GENERATIONS, not joins, "joins wait after a generation has begun")
                leader_id, answered = self._join_answers.get((shard.since, group.generation_id), ("", {""}))
                self.require(
                    Promise.GENERATIONS,
                    leader_id in answered,
                    "the leader of a generation has no answer to its join",
                )
            self.require(
                Promise.GENERATIONS, rebalance.awaited_syncs <= {member.member_id for member in members}
            )

    def check_answer(self, token: Token, response: Any) -> None:
        """Check an answer before it is sent."""
        if isinstance(response, (OffsetCommitResponse, TxnOffsetCommitResponse)):
            self._check_acknowledged(token.request, response)
            return
        if isinstance(response, OffsetFetchResponse):
            self._note_read(response)
            return
        self.refusals.add(ErrorCode(response.error_code))
        if isinstance(response, JoinGroupResponse) and response.error_code == ErrorCode.NONE:
            key = token.since, response.generation_id
            self._join_answers.setdefault(key, (response.leader, set()))[1].add(response.member_id)
        elif isinstance(response, SyncGroupResponse) and response.error_code == ErrorCode.NONE:
            self._check_assignment(token, response)

    def _check_assignment(self, token: Token, response: SyncGroupResponse) -> None:
        """The assignment must be committed in the log, or loaded by the coordinator from it, as in Kafka.

        A loaded assignment may be lost with the coordinator. Then no commit of its generation has been
        acknowledged, because commits follow it in the log, and the generation's number is not used again.
        """
        request: SyncGroupRequest = token.request
        generation_id = request.generation_id
        inherited = self.world.inherited_records(token.broker, token.since)
        deaths, life, stored = 0, 0, None
        for record in self.world.committed_records() + inherited:
            if not isinstance(record, GroupRecord):
                continue
            if record.value is None:
                # The next group of this name begins with generation 1.
                deaths += 1
            elif record.value.generation == generation_id:
                life, stored = deaths, record.value
        self.require(
            Promise.ASSIGNMENTS,
            stored is not None,
            f"generation {generation_id} was handed out but is not in the log",
        )
        subscribed: set[TopicPartition] = set()
        given: list[TopicPartition] = []
        for member in stored.members:
            for topic in decode_subscription(member.subscription).topics:
                subscribed |= {TopicPartition(topic, partition) for partition in range(TOPICS[topic])}
            given += partitions_of(member.assignment)
        self.require(
            Promise.ASSIGNMENTS,
            sorted(given) == sorted(subscribed),
            f"generation {generation_id} misses or repeats partitions",
        )
        owner = request.group_instance_id or request.member_id
        shares = self.shares.setdefault((life, generation_id), {})
        self.require(
            Promise.ASSIGNMENTS,
            shares.setdefault(owner, response.assignment) == response.assignment,
            f"{owner} has two assignments in generation {generation_id}",
        )
        owned = [partition for share in shares.values() for partition in partitions_of(share)]
        self.require(
            Promise.ASSIGNMENTS,
            len(owned) == len(set(owned)),
            f"generation {generation_id} repeats a partition: {shares}",
        )

    def _note_read(self, response: OffsetFetchResponse) -> None:
        (group,) = response.groups
        self.refusals.add(ErrorCode(group.error_code))
        for topic in group.topics:
            for partition in topic.partitions:
                self.refusals.add(ErrorCode(partition.error_code))
                if partition.error_code == ErrorCode.NONE and partition.committed_offset >= 0:
                    name = TopicPartition(topic.name, partition.partition_index)
                    self.read.add((name, partition.committed_offset, partition.metadata or ""))

    def _check_acknowledged(
        self,
        request: OffsetCommitRequest | TxnOffsetCommitRequest,
        response: OffsetCommitResponse | TxnOffsetCommitResponse,
    ) -> None:
        errors = {
            TopicPartition(topic.name, partition.partition_index): ErrorCode(partition.error_code)
            for topic in response.topics
            for partition in topic.partitions
        }
        self.refusals |= set(errors.values())
        for topic in request.topics:
            for partition in topic.partitions:
                name = TopicPartition(topic.name, partition.partition_index)
                if errors[name] is ErrorCode.NONE:
                    commit = partition.committed_offset, partition.committed_metadata
                    place = self._place_of(name, commit)
                    self.require(
                        Promise.COMMITS, place is not None, "a commit was acknowledged but is not in the log"
                    )
                    # In a transaction it counts only if the transaction is committed, see `add_committed`.
                    if isinstance(request, OffsetCommitRequest):
                        self.acknowledged[name] = max(place, self.acknowledged.get(name, -1))

    def add_committed(self) -> None:
        """Add the commits of transactions whose commit was acknowledged."""
        for copier in self.world.copiers.values():
            for name, offset, metadata in copier.committed:
                place = self._place_of(name, (offset, metadata))
                self.require(
                    Promise.COMMITS,
                    place is not None,
                    f"{offset} of {name} was committed and is not in the log",
                )
                self.acknowledged[name] = max(place, self.acknowledged.get(name, -1))

    def check_transactions(self) -> None:
        """Every record in a transaction was decided, as its coordinator did; nothing aborted was read."""
        records = self.world.committed_records()
        outcomes = effective(records, self.world.truth.committed)
        for record, outcome in zip(records, outcomes, strict=True):
            if isinstance(record, OffsetRecord) and record.value is not None:
                self.require(
                    Promise.REST, outcome is not None, f"{record} is in a transaction without an end"
                )
                commit = record.partition, record.value.committed_offset, record.value.metadata
                self.require(
                    Promise.G1A,
                    outcome or commit not in self.read,
                    f"{commit} was read as stable, and is aborted",
                )

    def _place_of(self, name: TopicPartition, commit: tuple[int, str | None]) -> int | None:
        """The offset of the last record of a commit."""
        records = self.world.committed_records()
        for place in range(len(records) - 1, -1, -1):
            record = records[place]
            if not isinstance(record, OffsetRecord) or record.partition != name or record.value is None:
                continue
            if (record.value.committed_offset, record.value.metadata) == commit:
                return place
        return None

    def check_log(self) -> None:
        """The log has no commit after the end of its generation, and one assignment for each generation."""
        current: GroupMetadataValue | None = None
        shares: dict[int, dict[str, bytes]] = {}
        for record in self.world.committed_records():
            if isinstance(record, OffsetRecord):
                if record.value is not None:
                    self._check_commit(record.partition, record.value.metadata, current)
                continue
            if record is None:
                continue
            current = record.value
            if current is None:
                shares.clear()
            for member in () if current is None else current.members:
                assert current is not None
                owner = member.group_instance_id or member.member_id
                former = shares.setdefault(current.generation, {}).setdefault(owner, member.assignment)
                self.require(
                    Promise.ASSIGNMENTS,
                    former == member.assignment,
                    f"generation {current.generation} has two assignments",
                )

    def _check_commit(self, name: TopicPartition, metadata: str, current: GroupMetadataValue | None) -> None:
        owner, generation, _ = metadata.split()
        self.require(Promise.COMMITTERS, current is not None, f"{metadata} committed without a generation")
        self.require(
            Promise.COMMITTERS,
            int(generation) == current.generation,
            f"{metadata} committed in {current.generation}",
        )
        owned = {m.group_instance_id or m.member_id: partitions_of(m.assignment) for m in current.members}
        self.require(
            Promise.COMMITTERS, name in owned[owner], f"{owner} commits for a partition that it does not own"
        )
