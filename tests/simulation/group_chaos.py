"""Consumers of one group that join, crash, pause, leave and return, while its coordinators move and fail."""

import random
from collections.abc import Generator
from typing import Any, Final

from barnabas.protocol.consumer_protocol import Subscription, decode_subscription, encode_subscription
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
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
from tests.simulation.coordinated_chaos import CoordinatedChaos
from tests.simulation.coordinated_world import CoordinatedWorld, Profile
from tests.simulation.group_judge import GROUP_ID, TOPICS, Judge, partitions_of
from tests.simulation.transactional_client import (
    Commit,
    CommitOffsets,
    Gone,
    Init,
    Sleep,
    TransactionalClient,
)

STABLE_OFFSETS: Final = OffsetFetchRequest(
    groups=[OffsetFetchRequestGroup(group_id=GROUP_ID, topics=None)], require_stable=True
)
_TURN_MS: Final = 2_000
_LEAST_CALM_MS: Final = 45_000
"""The time in which late answers arrive and sessions end."""


def assignment_of(partitions: set[TopicPartition]) -> bytes:
    return ",".join(map(str, sorted(partitions))).encode()


class Copier(TransactionalClient):
    """Commits the offsets that its consumer owns in transactions, as in consume-transform-produce.

    A transaction ends with a commit only if all its offsets were acknowledged.
    """

    def __init__(self, world: CoordinatedWorld, transactional_id: str) -> None:
        super().__init__(
            world, transactional_id, GROUP_ID, version=2, timeout_ms=world.random.choice((4_000, 10_000))
        )
        self.committed: list[Commit] = []
        """The commits of transactions whose end was acknowledged."""
        self._offered: CommitOffsets | None = None
        self.begin()

    def commit(self, commits: list[Commit], member: dict[str, Any]) -> None:
        """Commit offsets in a new transaction, unless one is ongoing."""
        if self._offered is None:
            self._offered = CommitOffsets(tuple(commits), tuple(member.items()))

    def life(self) -> Generator[Any, Any, None]:
        try:
            yield from self._init(Init())
            while True:
                while self._offered is None:
                    yield Sleep(self.world.random.uniform(100, 300))
                error = yield self._offered
                is_commit = error is ErrorCode.NONE and not self.world.chance(0.3)
                yield from self._end(is_commit)
                if is_commit:
                    self.committed += self._offered.commits
                self._offered = None
        except Gone:
            return


class Consumer:
    """The client of one member: joins, syncs, sends heartbeats and commits; it knows only the answers."""

    def __init__(self, world: CoordinatedWorld, name: str, instance_id: str | None) -> None:
        draw = world.random
        self.world = world
        self.judge: Judge = world.judge
        self.judge.consumers.append(self)
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
        self.copies = draw.random() < 0.5
        self._copier: Copier | None = None
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
        self.world.at(_TURN_MS * self.world.random.uniform(0.8, 1.2), self.turn)
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
            if self.copies:
                self.commit_in_transaction()
            else:
                for _ in range(self.world.random.choice([0, 1, 2, 3])):
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

        self.world.request(self.world.group_coordinator_of(GROUP_ID), request, reply, api_version)

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

    def commit_in_transaction(self) -> None:
        if not self.world.is_faulty:
            # The transactions must come to an end.
            return
        if self._copier is None or self._copier.is_gone:
            self._copier = Copier(self.world, self.name)
            self.judge.copiers.append(self._copier)
        self._commits += 1
        commits = [(name, self._commits, self._metadata) for name in sorted(self.owned)]
        if commits:
            member = {
                "generation_id": self.generation_id,
                "member_id": self.member_id,
                "group_instance_id": self.instance_id,
            }
            self._copier.commit(commits, member)

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
            request = LeaveGroupRequest(group_id=GROUP_ID, members=[leaving])
            coordinator = self.world.group_coordinator_of(GROUP_ID)
            self.world.request(coordinator, request, lambda response: None)


class Chaos(CoordinatedChaos):
    """One history, in which the group must become stable at last."""

    faults = dict.fromkeys(("start", "crash_member", "leave", "pause_member", "come_back", "twin"), 4.0)
    faults_end_ms = 40_000
    turn_ms = 1_500
    judge: Judge

    def __init__(self, seed: int, *, pushes: bool = False) -> None:
        draw = random.Random(seed ^ 0x5EED)
        profile = Profile(
            names=TOPICS,
            latest_ms=20_000,
            group_max_size=draw.choice([3, 8, 1_000]),
            group_initial_rebalance_delay_ms=draw.choice([0, 0, 3_000]),
        )
        world = CoordinatedWorld(seed, profile, pushes=pushes)
        super().__init__(world, Judge(world), ())
        for _ in range(draw.randint(1, 5)):
            self.start()

    @property
    def live(self) -> list[Consumer]:
        return [consumer for consumer in self.judge.consumers if not consumer.is_gone]

    # Faults of members

    def start(self) -> None:
        if len(self.live) < 7:
            is_static = self.random.random() < 0.4
            self._start(f"i{len(self.judge.consumers)}" if is_static else None)

    def _start(self, instance_id: str | None) -> None:
        name = f"m{len(self.judge.consumers)}"
        self.world.note(f"start of {name} ({instance_id})")
        Consumer(self.world, name, instance_id)

    def _some_member(self) -> Consumer | None:
        """A live one; if there is none, one starts."""
        if not self.live:
            self.start()
            return None
        consumer = self.random.choice(self.live)
        self.trace[-1] = f"{self.trace[-1]} {consumer.name}"
        return consumer

    def crash_member(self) -> None:
        if (consumer := self._some_member()) is not None:
            consumer.is_gone = True

    def leave(self) -> None:
        if (consumer := self._some_member()) is not None:
            consumer.leave()

    def pause_member(self) -> None:
        if (consumer := self._some_member()) is not None:
            consumer.paused_until_ms = self.world.now_ms + self.random.uniform(1_000, 15_000)

    def twin(self) -> None:
        """Another process has the instance id of a live one."""
        if (consumer := self._some_member()) is not None and consumer.instance_id is not None:
            self._start(consumer.instance_id)

    def come_back(self) -> None:
        """A static member that has ended starts again."""
        held = {consumer.instance_id for consumer in self.live}
        gone = [
            consumer.instance_id
            for consumer in self.judge.consumers
            if consumer.is_gone and consumer.instance_id not in held
        ]
        if gone:
            self._start(self.random.choice(gone))

    # The whole

    def run(self) -> None:
        self.end_faults()
        for consumer in self.judge.consumers:
            consumer.paused_until_ms = 0
        self.come_to_rest()
        self.judge.check_end()

    def is_at_rest(self) -> bool:
        world = self.world
        if world.now_ms < self.faults_end_ms + _LEAST_CALM_MS or not self.is_calm:
            return False
        return next(self.judge.faults_at_rest(), None) is None
