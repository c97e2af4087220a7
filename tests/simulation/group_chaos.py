"""Consumers that join, crash, pause, leave and come back, and a judge who knows what may never happen.

The judge works from the offsets log and from what was answered, not from the group's own state: the log is
what the next coordinator will believe.
"""

from __future__ import annotations

import random
import struct
from typing import Any

from barnabas.broker.coordinators.group_effects import Commit, GroupLimits, JoinOptions
from barnabas.broker.coordinators.group_log import GroupRecord, OffsetAndMetadata, StoredGroup
from barnabas.broker.coordinators.group_state import GroupState
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.join_group import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tests.simulation.group_world import EPOCH_MS, GROUP_ID, Coordinator, Token, World

TOPICS = {"a": 3, "b": 2, "c": 4}
FAULTS_END_MS = 60_000
CALM_MS = 150_000
TURN_MS = 2_000


def subscription(topics: list[str]) -> bytes:
    """As a Kafka consumer writes it, in version 1: with user data and what it owns behind the topics."""
    raw = [topic.encode() for topic in topics]
    named = b"".join(struct.pack(">h", len(topic)) + topic for topic in raw)
    return struct.pack(">hi", 1, len(raw)) + named + struct.pack(">ii", -1, 0)


def topics_in(metadata: bytes) -> list[str]:
    (count,) = struct.unpack_from(">i", metadata, 2)
    found, position = [], 6
    for _ in range(count):
        (length,) = struct.unpack_from(">h", metadata, position)
        found.append(metadata[position + 2 : position + 2 + length].decode())
        position += 2 + length
    return found


def assignment_of(partitions: set[TopicPartition]) -> bytes:
    return ",".join(map(str, sorted(partitions))).encode()


def partitions_of(assignment: bytes) -> set[TopicPartition]:
    named = [part.split("-") for part in assignment.decode().split(",") if part]
    return {TopicPartition(topic, int(partition)) for topic, partition in named}


class Consumer:
    """One member's client: joins, syncs, beats, commits; knows nothing but what it was answered."""

    def __init__(self, world: World, name: str, instance_id: str | None) -> None:
        draw = world.random
        self.world = world
        self.name = name
        self.instance_id = instance_id
        self.topics = draw.sample(sorted(TOPICS), draw.randint(1, len(TOPICS)))
        # All know both: the log has only the one in force, so that after a move others would be refused.
        self.protocols = draw.choice([["range", "sticky"], ["sticky", "range"]])
        self.options = JoinOptions(draw.random() < 0.7, draw.random() < 0.5)
        # Static members may be away for longer than a rebalance takes.
        self.session_timeout_ms = draw.choice([6_000, 10_000] if instance_id is None else [10_000, 40_000])
        self.member_id = ""
        self.generation_id = -1
        self.state = "out"
        self.owned: set[TopicPartition] = set()
        self.is_gone = False
        self.paused_until_ms = 0.0
        self._round = 0
        self._commits = 0
        self._joined = JoinGroupResponse(error_code=ErrorCode.NONE)
        self._busy_until_ms = 0.0
        world.at(draw.uniform(0, 500), self.turn)

    # Every answer carries the round in which it was asked for: one that comes late changes nothing.

    def turn(self) -> None:
        """What the client does every now and then."""
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
            self._ask(
                HeartbeatRequest(
                    group_id=GROUP_ID,
                    generation_id=self.generation_id,
                    member_id=self.member_id,
                    group_instance_id=self.instance_id,
                ),
                self.beaten,
            )
            for _ in range(self.world.random.choice([0, 0, 1, 2])):
                self.commit()

    def _ask(self, what: Any, heard: Any) -> None:
        asked_in = self._round

        def reply(response: Any) -> None:
            if self.is_gone or asked_in != self._round:
                return
            if self.world.now_ms < self.paused_until_ms:
                self.world.at(self.paused_until_ms - self.world.now_ms, lambda: reply(response))
            else:
                heard(response)

        self.world.send(what, reply)

    def _begin(self, state: str, patience_ms: float) -> None:
        self._round += 1
        self.state = state
        if self.world.chance(0.1):
            patience_ms = 0
        self._busy_until_ms = self.world.now_ms + patience_ms

    def join(self) -> None:
        # Longer than any rebalance lasts, as clients wait.
        self._begin("joining", 26_000)
        request = JoinGroupRequest(
            group_id=GROUP_ID,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=20_000,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=subscription(self.topics))
                for name in self.protocols
            ],
        )
        self._ask((request, self.options), self.joined)

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
        """Every partition that somebody subscribes to, to one of those who do."""
        readers: dict[str, list[str]] = {}
        for member in response.members:
            for topic in topics_in(member.metadata):
                readers.setdefault(topic, []).append(member.member_id)
        given: dict[str, set[TopicPartition]] = {member.member_id: set() for member in response.members}
        for topic, members in readers.items():
            for partition in range(TOPICS[topic]):
                given[self.world.random.choice(members)].add(TopicPartition(topic, partition))
        return given

    def sync(self, joined: JoinGroupResponse) -> None:
        """Asked again, a leader assigns otherwise."""
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
        self._ask(request, self.synced)

    def synced(self, response: SyncGroupResponse) -> None:
        if response.error_code != ErrorCode.NONE:
            self._refused(ErrorCode(response.error_code))
            return
        self._begin("in", 0)
        self.owned = partitions_of(response.assignment)

    def beaten(self, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            self._refused(error)

    def commit(self) -> None:
        """What it owns, or owned when it last heard."""
        if not self.owned:
            return
        self._commits += 1
        value = OffsetAndMetadata(self._commits, EPOCH_MS + int(self.world.now_ms), metadata=self.name)
        commit = Commit(
            dict.fromkeys(self.owned, value), self.member_id, self.instance_id, self.generation_id
        )
        self._ask(commit, lambda outcome: None)

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
            self.world.send(
                MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id), lambda _: None
            )


class Judge:
    """Says no to what must never be, after every event."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.shares: dict[int, dict[str, bytes]] = {}
        """Generation → who (instance or member) → what it was given."""
        self.acknowledged: dict[TopicPartition, int] = {}
        """The last batch of the log whose commit of the partition was acknowledged."""
        self._told: dict[tuple[int, int], tuple[str, set[str]]] = {}
        """Coordinator and generation → the leader that was named, and who was told."""
        self.refusals: set[ErrorCode] = set()
        self.moved_in: set[GroupState] = set()
        """The states in which the group was when its coordinator moved."""

    def check(self, coordinator: Coordinator) -> None:
        group = coordinator.group
        if group is not None:
            core = group._core
            members = list(core.members)
            joins = [member for member in members if member.join_token is not None]
            syncs = [member for member in members if member.sync_token is not None]
            assert core.members.awaiting_join == len(joins)
            assert (core.members.leader_id in core.members) == bool(members), "a leader who is no member"
            deadlines = [member.deadline_ms for member in members] + list(core.members.pending.values())
            assert all(group.next_deadline_ms <= due for due in deadlines), "a tick would come too late"
            if group.state is GroupState.EMPTY:
                assert not members
            if group.state is not GroupState.COMPLETING_REBALANCE:
                assert not syncs, f"syncs wait while {group.state.value}"
                assert core.assignment_append is None
            if group.state is GroupState.COMPLETING_REBALANCE:
                assert not joins, "joins wait while a generation has begun"
                leader_id, told = self._told.get((coordinator.epoch, group.generation_id), ("", {""}))
                assert leader_id in told, "a generation whose leader was not told"
            assert core.awaited_syncs <= {member.member_id for member in members}

    def hears(self, coordinator: Coordinator, token: Token, response: Any) -> None:
        """An answer is about to go out."""
        if not isinstance(response, dict):
            self.refusals.add(ErrorCode(response.error_code))
        if isinstance(response, JoinGroupResponse) and response.error_code == ErrorCode.NONE:
            key = coordinator.epoch, response.generation_id
            self._told.setdefault(key, (response.leader, set()))[1].add(response.member_id)
        elif isinstance(response, SyncGroupResponse) and response.error_code == ErrorCode.NONE:
            self._hands_out(token.what, response)
        elif isinstance(response, dict):
            self._has_committed(token.what, response)

    def _hands_out(self, asked: SyncGroupRequest, response: SyncGroupResponse) -> None:
        generation_id = asked.generation_id
        stored = next(
            (
                record.value
                for entry in reversed(self.world.log[: self.world.high_watermark])
                for record in entry.records
                if isinstance(record, GroupRecord) and record.value is not None
                if record.value.generation_id == generation_id
            ),
            None,
        )
        assert stored is not None, f"generation {generation_id} is handed out and not in the log"
        wanted: set[TopicPartition] = set()
        given: list[TopicPartition] = []
        for member in stored.members:
            for topic in topics_in(member.subscription):
                wanted |= {TopicPartition(topic, partition) for partition in range(TOPICS[topic])}
            given += partitions_of(member.assignment)
        assert sorted(given) == sorted(wanted), f"generation {generation_id} does not cover what it reads"
        owner = asked.group_instance_id or asked.member_id
        shares = self.shares.setdefault(generation_id, {})
        assert shares.setdefault(owner, response.assignment) == response.assignment, (
            f"{owner} has two assignments in generation {generation_id}"
        )
        owned = [partition for share in shares.values() for partition in partitions_of(share)]
        assert len(owned) == len(set(owned)), f"generation {generation_id} gives a partition twice: {shares}"

    def _has_committed(self, commit: Commit, outcome: dict[TopicPartition, ErrorCode]) -> None:
        done = {partition for partition, error in outcome.items() if error is ErrorCode.NONE}
        if done:
            log = self.world.log
            replicated = range(self.world.high_watermark - 1, -1, -1)
            found = next((place for place in replicated if log[place].commit is commit), None)
            assert found is not None, "acknowledged and not in the log"
            for partition in done:
                self.acknowledged[partition] = max(found, self.acknowledged.get(partition, -1))

    def check_log(self) -> None:
        """What was appended: no commit after the end of its generation, one assignment for each."""
        current: StoredGroup | None = None
        shares: dict[int, dict[str, bytes]] = {}
        for entry in self.world.log:
            for record in entry.records:
                if isinstance(record, GroupRecord):
                    current = record.value
                    if current is None:
                        continue
                    for member in current.members:
                        owner = member.instance_id or member.member_id
                        known = shares.setdefault(current.generation_id, {}).setdefault(
                            owner, member.assignment
                        )
                        assert known == member.assignment, f"generation {current.generation_id} has two"
            if entry.commit is not None and entry.commit.generation_id >= 0:
                self._check_commit(entry.commit, current)

    def _check_commit(self, commit: Commit, current: StoredGroup | None) -> None:
        assert current is not None, f"{commit} of no generation"
        assert commit.generation_id == current.generation_id, f"{commit} in {current.generation_id}"
        owner = commit.instance_id or commit.member_id
        owned = {m.instance_id or m.member_id: partitions_of(m.assignment) for m in current.members}
        assert set(commit.offsets) <= owned[owner], f"{owner} commits what it does not own"


class Chaos:
    """One schedule: a minute of faults, then calm, in which the group must come to rest."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed ^ 0x5EED)
        limits = GroupLimits(
            max_size=draw.choice([3, 8, 1_000]), initial_rebalance_delay_ms=draw.choice([0, 0, 3_000])
        )
        self.world = World(seed, limits)
        self.judge = self.world.judge = Judge(self.world)
        self.random = self.world.random
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
        self.world.at(self.random.expovariate(1 / 3_000), self.fault)
        draw, live = self.random, self.live
        what = draw.choice(["start", "crash", "leave", "pause", "return", "move", "stall", "twin"])
        someone = draw.choice(live) if live else None
        if what == "move":
            if self.world.coordinator.group is not None:
                self.judge.moved_in.add(self.world.coordinator.group.state)
            self.world.move()
        elif what == "stall":
            self.world.stalled_until_ms = self.world.now_ms + draw.uniform(0, 9_000)
            self.world.note("stall")
        elif what == "return":
            held = {consumer.instance_id for consumer in live}
            gone = [c.instance_id for c in self.consumers if c.is_gone and c.instance_id not in held]
            if gone:
                self.start(draw.choice(gone))
        elif what == "start" or someone is None:
            if len(live) < 7:
                self.start()
        elif what == "twin":
            if someone.instance_id is not None:
                self.start(someone.instance_id)
        else:
            self.world.note(f"{what} of {someone.name}")
            if what == "crash":
                someone.is_gone = True
            elif what == "leave":
                someone.leave()
            else:
                someone.paused_until_ms = self.world.now_ms + draw.uniform(1_000, 15_000)

    def is_at_rest(self) -> bool:
        world = self.world
        group = world.coordinator.group
        if group is None or world.zombie is not None or world.now_ms < FAULTS_END_MS + 45_000:
            return False
        live = self.live
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
        world.is_faulty = False
        for consumer in self.consumers:
            consumer.paused_until_ms = 0
        world.run_until(FAULTS_END_MS + CALM_MS, self.is_at_rest)
        self.judge.check_log()
        group = world.coordinator.group
        if group is None and not self.live:
            return
        assert self.is_at_rest(), (
            f"no rest: {group.state.value if group else None}, {len(self.live)} consumers: "
            f"{[(c.name, c.state, c.generation_id) for c in self.live]}, {len(world.waiting)} wait"
        )
        self._check_rest()

    def _check_rest(self) -> None:
        world, group = self.world, self.world.coordinator.group
        assert group is not None
        owned = [partition for consumer in self.live for partition in consumer.owned]
        wanted = {
            TopicPartition(topic, partition)
            for consumer in self.live
            for topic in consumer.topics
            for partition in range(TOPICS[topic])
        }
        assert sorted(owned) == sorted(wanted)
        for partition, place in self.judge.acknowledged.items():
            # What timed out and is in the log all the same counts from the next load on, and not before.
            found = group.offsets.get(partition)
            later = [entry.commit for entry in world.log[place:] if entry.commit is not None]
            assert found in [commit.offsets.get(partition) for commit in later], f"{partition}: {found}"
