"""Consumers of one group that join, crash, pause, leave and return, while its coordinators move and fail."""

import random
from typing import Any

from barnabas.broker.coordinators.group_records import OffsetRecord
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
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from tests.simulation.broker import SimBroker
from tests.simulation.group_judge import Judge, partitions_of
from tests.simulation.group_transactions import Copier, effective
from tests.simulation.group_world import GROUP_ID, TOPICS, GroupWorld
from tests.simulation.promises import Promise

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
        self.judge.require(
            Promise.REST,
            self.is_at_rest(),
            f"the group is not at rest: {group.state.value if group else None}, {len(self.live)} consumers: "
            f"{[(c.name, c.state, c.generation_id) for c in self.live]}, {len(world.waiting)} wait",
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
        self.judge.require(Promise.ASSIGNMENTS, sorted(owned) == sorted(subscribed))
        self.judge.require(
            Promise.REST, not group.offsets._open, "transactions that have ended have pending offsets"
        )
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
            self.judge.require(Promise.COMMITS, committed in later, f"{name}: {committed}")
