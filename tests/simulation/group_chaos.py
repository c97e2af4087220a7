"""Consumers that join, crash, pause, leave and return, and a judge that checks the promises of their group.

The judge works from the offsets log and the answers, not from the group's own state, because the next
coordinator loads the log.
"""

from __future__ import annotations

import random
from typing import Any

from barnabas.broker.coordinators.group_records import GroupMetadataValue, GroupRecord, OffsetRecord
from barnabas.broker.coordinators.rebalance import GroupState
from barnabas.protocol.consumer_protocol import Subscription, decode_subscription, encode_subscription
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from barnabas.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from barnabas.protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from tests.simulation.broker import SimBroker
from tests.simulation.group_transactions import Commit, Copier, effective
from tests.simulation.group_world import GROUP_ID, TOPICS, GroupWorld
from tests.simulation.timed_world import Token

STABLE_OFFSETS = OffsetFetchRequest(
    groups=[OffsetFetchRequestGroup(group_id=GROUP_ID, topics=None)], require_stable=True
)
FAULTS_END_MS = 40_000
CALM_MS = 150_000
TURN_MS = 2_000
MEMBERS_FAULTS = ("start", "crash", "leave", "pause", "return", "twin")
BROKERS_FAULTS = ("move", "there and back", "stall", "stall", "broker crash")


def assignment_of(partitions: set[TopicPartition]) -> bytes:
    return ",".join(map(str, sorted(partitions))).encode()


def partitions_of(assignment: bytes) -> set[TopicPartition]:
    named = [part.split("-") for part in assignment.decode().split(",") if part]
    return {TopicPartition(topic, int(partition)) for topic, partition in named}


class Consumer:
    """The client of one member: joins, syncs, sends heartbeats and commits; it knows only the answers."""

    def __init__(self, world: GroupWorld, name: str, instance_id: str | None) -> None:
        draw = world.random
        self.world = world
        self.name = name
        self.instance_id = instance_id
        self.topics = draw.sample(sorted(TOPICS), draw.randint(1, len(TOPICS)))
        # Every member supports both: the log has only the chosen one, so another is refused after a move.
        self.protocols = draw.choice([["range", "sticky"], ["sticky", "range"]])
        # Below 4 no member id is required first, from 9 on an assignment may be kept; None is our own codec.
        self.api_version = draw.choice([3, 8, 9, None])
        # Static members may be away for longer than a rebalance takes.
        self.session_timeout_ms = draw.choice([6_000, 10_000] if instance_id is None else [10_000, 40_000])
        self.member_id = ""
        self.generation_id = -1
        self.state = "out"
        self.owned: set[TopicPartition] = set()
        # It copies in transactions, and commits its offsets with them.
        self.copier = world.start_copier() if draw.random() < 0.5 else None
        self.is_gone = False
        self.paused_until_ms = 0.0
        self._round = 0
        self._commits = 0
        self._joined = JoinGroupResponse(error_code=ErrorCode.NONE)
        self._busy_until_ms = 0.0
        world.at(draw.uniform(0, 500), self.turn)

    # Every answer carries the round of its request: an answer from an earlier round changes nothing.

    def turn(self) -> None:
        """Join, sync or send a heartbeat and commits, as the state demands; then schedule the next turn."""
        if self.is_gone:
            return
        now_ms = self.world.now_ms
        self.world.at(TURN_MS * self.world.random.uniform(0.8, 1.2), self.turn)
        if now_ms < self.paused_until_ms:
            return
        is_late = now_ms >= self._busy_until_ms
        if self.state == "syncing" and is_late and self.world.chance(0.5):
            self.sync(self._joined)
        elif self.state in ("joining", "syncing") and is_late:
            self.state = "out"
        if self.state == "out":
            self.join()
        elif self.state == "in":
            self._send(
                HeartbeatRequest(
                    group_id=GROUP_ID,
                    generation_id=self.generation_id,
                    member_id=self.member_id,
                    group_instance_id=self.instance_id,
                ),
                self.heartbeat_answered,
            )
            if self.copier is not None:
                self.commit_in_transaction(self.copier)
            for _ in range(self.world.random.choice([0, 1, 2, 3]) if self.copier is None else 0):
                self.commit()
            if self.world.random.random() < 0.3:
                self._send(STABLE_OFFSETS, lambda response: None)

    def _send(self, request: Any, answered: Any, api_version: int | None = None) -> None:
        sent_in = self._round

        def reply(response: Any) -> None:
            if self.is_gone or sent_in != self._round:
                return
            if self.world.now_ms < self.paused_until_ms:
                self.world.at(self.paused_until_ms - self.world.now_ms, lambda: reply(response))
            else:
                answered(response)

        self.world.call(request, reply, api_version)

    def _begin(self, state: str, patience_ms: float) -> None:
        self._round += 1
        self.state = state
        if self.world.chance(0.15):
            patience_ms = 0
        self._busy_until_ms = self.world.now_ms + patience_ms

    def join(self) -> None:
        # Longer than any rebalance, as clients wait.
        self._begin("joining", 26_000)
        metadata = encode_subscription(Subscription(tuple(self.topics)))
        request = JoinGroupRequest(
            group_id=GROUP_ID,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=20_000,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name in self.protocols],
        )
        self._send(request, self.joined, self.api_version)

    def joined(self, response: JoinGroupResponse) -> None:
        error = ErrorCode(response.error_code)
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            self.join()
        elif error is not ErrorCode.NONE:
            self._refused(error)
        else:
            self.member_id = response.member_id
            self.generation_id = response.generation_id
            self._joined = response
            self.sync(response)

    def assign(self, response: JoinGroupResponse) -> dict[str, set[TopicPartition]]:
        """Assign each subscribed partition to one of its subscribers."""
        readers: dict[str, list[str]] = {}
        for member in response.members:
            for topic in decode_subscription(member.metadata).topics:
                readers.setdefault(topic, []).append(member.member_id)
        given: dict[str, set[TopicPartition]] = {member.member_id: set() for member in response.members}
        for topic, members in readers.items():
            for partition in range(TOPICS[topic]):
                given[self.world.random.choice(members)].add(TopicPartition(topic, partition))
        return given

    def sync(self, joined: JoinGroupResponse) -> None:
        """A leader that syncs again sends another assignment."""
        self._begin("syncing", 22_000)
        leads = joined.leader == joined.member_id and not joined.skip_assignment
        given = self.assign(joined) if leads else {}
        assignments = [
            SyncGroupRequestAssignment(member_id=member_id, assignment=assignment_of(owned))
            for member_id, owned in given.items()
        ]
        request = SyncGroupRequest(
            group_id=GROUP_ID,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        self._send(request, self.synced)

    def synced(self, response: SyncGroupResponse) -> None:
        if response.error_code != ErrorCode.NONE:
            self._refused(ErrorCode(response.error_code))
            return
        self._begin("in", 0)
        self.owned = partitions_of(response.assignment)

    def heartbeat_answered(self, response: HeartbeatResponse) -> None:
        if response.error_code != ErrorCode.NONE:
            self._refused(ErrorCode(response.error_code))

    def commit_in_transaction(self, copier: Copier) -> None:
        self._commits += 1
        offsets = [(name, self._commits, self._metadata) for name in sorted(self.owned)]
        if offsets:
            member = {
                "generation_id": self.generation_id,
                "member_id": self.member_id,
                "group_instance_id": self.instance_id,
            }
            copier.commit(offsets, member)

    @property
    def _metadata(self) -> str:
        return f"{self.instance_id or self.member_id} {self.generation_id} {self.name}"

    def commit(self) -> None:
        """Commit an offset for each partition that the member owns by its last answer."""
        if not self.owned:
            return
        self._commits += 1
        metadata = self._metadata
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for name in sorted(self.owned):
            topics.setdefault(name.topic, []).append(
                OffsetCommitRequestPartition(
                    partition_index=name.partition,
                    committed_offset=self._commits,
                    committed_metadata=metadata,
                )
            )
        request = OffsetCommitRequest(
            group_id=GROUP_ID,
            generation_id_or_member_epoch=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            topics=[OffsetCommitRequestTopic(name=topic, partitions=each) for topic, each in topics.items()],
        )
        self._send(request, lambda response: None)

    def _refused(self, error: ErrorCode) -> None:
        if error is ErrorCode.FENCED_INSTANCE_ID or error is ErrorCode.GROUP_MAX_SIZE_REACHED:
            self.world.note(f"{self.name} ends: {error.name}")
            self.is_gone = True
            return
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.owned = set()
        self._begin("out", 0)

    def leave(self) -> None:
        self.is_gone = True
        if self.member_id:
            leaving = MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id)
            self.world.call(LeaveGroupRequest(group_id=GROUP_ID, members=[leaving]), lambda response: None)


class Judge:
    """Checks the promises after every event."""

    def __init__(self, world: GroupWorld) -> None:
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
            assert group._members.awaiting_join == len(joins)
            assert (group._members.leader_id in group._members) == bool(members), "the leader is not a member"
            deadlines = [member.deadline_ms for member in members] + list(group._members.pending.values())
            assert all(group.next_deadline_ms <= due for due in deadlines), "a tick would come too late"
            if group.state is GroupState.EMPTY:
                assert not members
            if group.state is not GroupState.COMPLETING_REBALANCE:
                assert not syncs, f"syncs wait while {group.state.value}"
                assert not rebalance.is_assigned
            if group.state is GroupState.COMPLETING_REBALANCE:
                assert not joins, "joins wait after a generation has begun"
                leader_id, answered = self._join_answers.get((shard.since, group.generation_id), ("", {""}))
                assert leader_id in answered, "the leader of a generation has no answer to its join"
            assert rebalance.awaited_syncs <= {member.member_id for member in members}

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
        assert stored is not None, f"generation {generation_id} was handed out but is not in the log"
        subscribed: set[TopicPartition] = set()
        given: list[TopicPartition] = []
        for member in stored.members:
            for topic in decode_subscription(member.subscription).topics:
                subscribed |= {TopicPartition(topic, partition) for partition in range(TOPICS[topic])}
            given += partitions_of(member.assignment)
        assert sorted(given) == sorted(subscribed), f"generation {generation_id} misses or repeats partitions"
        owner = request.group_instance_id or request.member_id
        shares = self.shares.setdefault((life, generation_id), {})
        assert shares.setdefault(owner, response.assignment) == response.assignment, (
            f"{owner} has two assignments in generation {generation_id}"
        )
        owned = [partition for share in shares.values() for partition in partitions_of(share)]
        assert len(owned) == len(set(owned)), f"generation {generation_id} repeats a partition: {shares}"

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
                    assert place is not None, "a commit was acknowledged but is not in the log"
                    # In a transaction it counts only if the transaction is committed, see `add_committed`.
                    if isinstance(request, OffsetCommitRequest):
                        self.acknowledged[name] = max(place, self.acknowledged.get(name, -1))

    def add_committed(self) -> None:
        """Add the commits of transactions whose commit was acknowledged."""
        for copier in self.world.copiers.values():
            for name, offset, metadata in copier.committed:
                place = self._place_of(name, (offset, metadata))
                assert place is not None, f"{offset} of {name} was committed and is not in the log"
                self.acknowledged[name] = max(place, self.acknowledged.get(name, -1))

    def check_transactions(self) -> None:
        """Every record in a transaction was decided, as its coordinator did; nothing aborted was read."""
        records = self.world.committed_records()
        outcomes = effective(records, self.world.truth.committed)
        for record, outcome in zip(records, outcomes, strict=True):
            if isinstance(record, OffsetRecord) and record.value is not None:
                assert outcome is not None, f"{record} is in a transaction without an end"
                commit = record.partition, record.value.committed_offset, record.value.metadata
                assert outcome or commit not in self.read, f"{commit} was read as stable, and is aborted"

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
                assert former == member.assignment, f"generation {current.generation} has two assignments"

    def _check_commit(self, name: TopicPartition, metadata: str, current: GroupMetadataValue | None) -> None:
        owner, generation, _ = metadata.split()
        assert current is not None, f"{metadata} committed without a generation"
        assert int(generation) == current.generation, f"{metadata} committed in {current.generation}"
        owned = {m.group_instance_id or m.member_id: partitions_of(m.assignment) for m in current.members}
        assert name in owned[owner], f"{owner} commits for a partition that it does not own"


class Chaos:
    """One schedule: a period of faults, then a calm one, in which the group must become stable."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed ^ 0x5EED)
        self.world = GroupWorld(
            seed, max_size=draw.choice([3, 8, 1_000]), initial_delay_ms=draw.choice([0, 0, 3_000])
        )
        self.judge = self.world.judge = Judge(self.world)
        self.random = self.world.random
        self.trace = self.world.trace
        self.consumers: list[Consumer] = []
        self._names = 0
        for _ in range(draw.randint(1, 5)):
            self.start()
        self.world.at(0, self.fault)

    @property
    def live(self) -> list[Consumer]:
        return [consumer for consumer in self.consumers if not consumer.is_gone]

    def start(self, instance_id: str | None = None) -> None:
        self._names += 1
        if instance_id is None and self.random.random() < 0.4:
            instance_id = f"i{self._names}"
        self.world.note(f"start of m{self._names} ({instance_id})")
        self.consumers.append(Consumer(self.world, f"m{self._names}", instance_id))

    def fault(self) -> None:
        if self.world.now_ms >= FAULTS_END_MS:
            return
        self.world.at(self.random.expovariate(1 / 1_500), self.fault)
        draw, live = self.random, self.live
        fault = draw.choice([*MEMBERS_FAULTS, *BROKERS_FAULTS])
        consumer = draw.choice(live) if live else None
        if fault in BROKERS_FAULTS:
            self.brokers_fault(fault)
        elif fault == "return":
            held = {c.instance_id for c in live}
            gone = [c.instance_id for c in self.consumers if c.is_gone and c.instance_id not in held]
            if gone:
                self.start(draw.choice(gone))
        elif fault == "start" or consumer is None:
            if len(live) < 7:
                self.start()
        elif fault == "twin":
            if consumer.instance_id is not None:
                self.start(consumer.instance_id)
        else:
            self.world.note(f"{fault} of {consumer.name}")
            if fault == "crash":
                consumer.is_gone = True
            elif fault == "leave":
                consumer.leave()
            else:
                consumer.paused_until_ms = self.world.now_ms + draw.uniform(1_000, 15_000)

    def brokers_fault(self, fault: str) -> None:
        """The group gets another coordinator, or its log stalls."""
        world, draw = self.world, self.random
        leader = world.brokers.get(world.state.leader)
        if leader is None or not leader.can_act:
            return
        if (group := world.leading_group) is not None and fault != "stall":
            self.judge.moved_in.add(group.state)
        world.note(f"{fault} at {leader.id}")
        lasts_ms = draw.uniform(0, 9_000)
        if fault == "stall":
            world.cut |= {frozenset((leader.id, other)) for other in world.brokers if other != leader.id}
            world.at(lasts_ms, world.cut.clear)
        elif fault == "there and back":
            others = [
                member for member in world.state.isr if member != leader.id and world.brokers[member].can_act
            ]
            if others:
                # It leads again before it learns that another broker led.
                world.deaf_until_ms[leader.id] = world.now_ms + lasts_ms
                world.move_leadership(draw.choice(others))
                world.at(lasts_ms * draw.random(), lambda: self.lead_again(leader.id))
        elif fault == "move":
            # It is wrongly suspected, and keeps coordinating until the controller reaches it.
            world.deaf_until_ms[leader.id] = world.now_ms + lasts_ms
            world.suspect(leader.id)
            world.at(lasts_ms, lambda: world.clear_suspicion(leader.id))
        else:
            leader.crash()
            world.suspect(leader.id)
            world.at(lasts_ms, lambda: self.restart(leader))

    def lead_again(self, broker: BrokerId) -> None:
        if broker in self.world.state.isr and self.world.brokers[broker].can_act:
            self.world.move_leadership(broker)

    def restart(self, broker: SimBroker) -> None:
        if not broker.is_up:
            broker.start()
            self.world.clear_suspicion(broker.id)

    def is_at_rest(self) -> bool:
        world = self.world
        if world.now_ms < FAULTS_END_MS + 45_000 or not world.is_whole:
            return False
        if any(copier.state != "idle" for copier in world.copiers.values()):
            return False
        world.forget_lost_requests()
        group, live = world.leading_group, self.live
        if group is None:
            return not live
        if not live:
            return group.state is GroupState.EMPTY and not world.waiting
        return (
            group.state is GroupState.STABLE
            and len(live) == group.member_count
            and all(c.state == "in" and c.generation_id == group.generation_id for c in live)
            and not world.waiting
        )

    def run(self) -> None:
        world = self.world
        world.run_until(FAULTS_END_MS)
        world.end_faults()
        for consumer in self.consumers:
            consumer.paused_until_ms = 0
        world.run_until(FAULTS_END_MS + CALM_MS, self.is_at_rest)
        self.judge.check_log()
        self.judge.add_committed()
        self.judge.check_transactions()
        group = world.leading_group
        assert self.is_at_rest(), (
            f"the group is not at rest: {group.state.value if group else None}, {len(self.live)} consumers: "
            f"{[(c.name, c.state, c.generation_id) for c in self.live]}, {len(world.waiting)} wait"
        )
        if group is not None:
            self._check_rest()

    def _check_rest(self) -> None:
        world, group = self.world, self.world.leading_group
        assert group is not None
        owned = [partition for consumer in self.live for partition in consumer.owned]
        subscribed = {
            TopicPartition(topic, partition)
            for consumer in self.live
            for topic in consumer.topics
            for partition in range(TOPICS[topic])
        }
        assert sorted(owned) == sorted(subscribed)
        assert not group.offsets._open, "transactions that have ended have pending offsets"
        records = world.committed_records()
        outcomes = effective(records, world.truth.committed)
        for name, place in self.judge.acknowledged.items():
            # A commit that timed out but is in the log counts from the next load on, not before.
            later = [
                record.value
                for record, outcome in zip(records[place:], outcomes[place:], strict=True)
                if isinstance(record, OffsetRecord) and record.partition == name and outcome
            ]
            committed = group.offsets.get(name)
            assert committed in later, f"{name}: {committed}"
