"""The promises of a group, from the offsets log and the answers.

The group's own state is compared too, but decides nothing: the next coordinator loads the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.coordinators.groups.group import Group
from barnabas.broker.coordinators.groups.rebalance import GroupState
from barnabas.broker.coordinators.groups.records import (
    GroupMetadataValue,
    GroupRecord,
    OffsetRecord,
    Record,
    from_bytes,
)
from barnabas.broker.coordinators.machine_shard import ShardState
from barnabas.protocol.consumer_protocol import decode_subscription
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.groups import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
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
from tests.simulation.coordinated_judge import CoordinatedJudge
from tests.simulation.coordinated_world import CoordinatedWorld
from tests.simulation.disk import Entry
from tests.simulation.promises import Promise
from tests.simulation.timed_world import Token
from tests.simulation.transactional_client import Commit

if TYPE_CHECKING:
    from tests.simulation.group_chaos import Consumer, Copier

GROUP_ID: Final = "g"
TOPICS: Final = {"a": 3, "b": 2, "c": 4}
"""The topics that the group may read, with their numbers of partitions."""


def partitions_of(assignment: bytes) -> set[TopicPartition]:
    named = [part.split("-") for part in assignment.decode().split(",") if part]
    return {TopicPartition(topic, int(partition)) for topic, partition in named}


_OF_MEMBERS: Final = JoinGroupResponse | SyncGroupResponse | HeartbeatResponse | LeaveGroupResponse


class Judge(CoordinatedJudge):
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

    def __init__(self, world: CoordinatedWorld) -> None:
        super().__init__(world)
        self.consumers: list[Consumer] = []
        self.copiers: list[Copier] = []
        self.shares: dict[tuple[int, int], dict[str, bytes]] = {}
        """(Number of the group's deaths, generation) → instance id or member id → assignment."""
        self.acknowledged: dict[TopicPartition, int] = {}
        """The offset of the last record whose commit of the partition was acknowledged."""
        self._join_answers: dict[tuple[int, int], tuple[str, set[str]]] = {}
        """(Coordinator's epoch, generation) → the leader, and the members whose join was answered."""
        self.read: set[Commit] = set()
        """The offsets that were answered as stable."""
        self._records: list[Record | None] = []

    @property
    def group(self) -> Group | None:
        """The group at the current leader, once its shard serves requests."""
        broker = self.world.brokers.get(self.world.state.leader)
        shard = None if broker is None or not broker.is_up else self.world.group_shard(broker)
        if shard is None or shard.state is not ShardState.SERVING:
            return None
        return next((group for group in shard.machines() if group.group_id == GROUP_ID), None)

    def before_fault(self) -> None:
        super().before_fault()
        if (group := self.group) is not None:
            self.reached.add(group.state)

    def committed_records(self) -> list[Record | None]:
        """The committed records of the log, None for markers; the index of a record is its offset."""
        self.world.check()
        for entry in self.world.truth.committed[len(self._records) :]:
            self._records.append(_record_of(entry))
        return self._records

    def _inherited_records(self, broker: SimBroker, leader_epoch: int) -> list[Record | None]:
        """The records of earlier leader epochs in a coordinator's log that may be uncommitted."""
        view = broker.view
        if view is None:
            return []
        tail = view.between(len(self.world.truth.committed), view.log.log_end_offset)
        return [_record_of(entry) for entry in tail if entry is not None and entry.epoch < leader_epoch]

    def check(self, broker: SimBroker) -> None:
        shard = self.world.group_shard(broker) if broker.is_up else None
        for group in () if shard is None else shard.machines():
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
        if not isinstance(response, _OF_MEMBERS):
            return
        self.reached.add(ErrorCode(response.error_code))
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
        inherited = self._inherited_records(token.broker, token.since)
        deaths, life, stored = 0, 0, None
        for record in self.committed_records() + inherited:
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
        self.reached.add(ErrorCode(group.error_code))
        for topic in group.topics:
            for partition in topic.partitions:
                self.reached.add(ErrorCode(partition.error_code))
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
        self.reached |= set(errors.values())
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
        for copier in self.copiers:
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
        for offset, record in enumerate(self.committed_records()):
            if isinstance(record, OffsetRecord) and record.value is not None:
                outcome = self.world.truth.transactions.outcome(offset)
                text = f"{record} is in a transaction without an end"
                self.require(Promise.REST, outcome is not None, text)
                commit = record.partition, record.value.committed_offset, record.value.metadata
                text = f"{commit} was read as stable, and is aborted"
                self.require(Promise.G1A, outcome or commit not in self.read, text)

    def _place_of(self, name: TopicPartition, commit: tuple[int, str | None]) -> int | None:
        """The offset of the last record of a commit."""
        records = self.committed_records()
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
        for record in self.committed_records():
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

    # The end

    def faults_at_rest(self) -> Iterator[str]:
        """The consumers that live are the members of a stable group; all commits have ended."""
        yield from super().faults_at_rest()
        live, group = [consumer for consumer in self.consumers if not consumer.is_gone], self.group
        state = GroupState.EMPTY if group is None else group.state
        if state is not (GroupState.STABLE if live else GroupState.EMPTY):
            yield f"the group is {state.value}, {len(live)} consumers live"
        if group is None:
            return
        if len(live) != group.member_count:
            yield f"{group.member_count} members, {len(live)} consumers"
        for consumer in live:
            if (consumer.state, consumer.generation_id) != ("in", group.generation_id):
                yield f"{consumer.name} is {consumer.state}, of generation {consumer.generation_id}"
        if group.offsets._open:
            yield "transactions that have ended have pending offsets"

    def check_end(self) -> None:
        self.check_log()
        self.add_committed()
        self.check_transactions()
        if (group := self.group) is None:
            return
        live = [consumer for consumer in self.consumers if not consumer.is_gone]
        owned = [partition for consumer in live for partition in consumer.owned]
        subscribed = {
            TopicPartition(topic, partition)
            for consumer in live
            for topic in consumer.topics
            for partition in range(TOPICS[topic])
        }
        self.require(Promise.ASSIGNMENTS, sorted(owned) == sorted(subscribed))
        transactions, records = self.world.truth.transactions, self.committed_records()
        for name, place in self.acknowledged.items():
            # A commit that timed out but is in the log counts from the next load on, not before.
            later = [
                record.value
                for offset, record in enumerate(records[place:], place)
                if isinstance(record, OffsetRecord) and record.partition == name
                if transactions.outcome(offset)
            ]
            committed = group.offsets.get(name)
            self.require(Promise.COMMITS, committed in later, f"{name}: {committed}")


def _record_of(entry: Entry) -> Record | None:
    if entry.commits is not None:
        return None
    assert entry.key is not None
    assert not isinstance(entry.value, int)
    return from_bytes(entry.key, entry.value)
