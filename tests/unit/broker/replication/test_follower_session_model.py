"""Followers with a session end with all records of their leader, after any random schedule.

The handler of Fetch, the leader's replica manager, and the followers' replicas and `FollowedPartitions` are
real. Partitions are not named periodically here, so the test finds a change that a session does not report.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.broker.handlers import fetch as fetch_handler
from barnabas.broker.log.storage_errors import UnexpectedAppendOffset
from barnabas.broker.replication import fetch_sessions
from barnabas.broker.replication.delayed_fetch import FetchOutcome
from barnabas.broker.replication.fetch_sessions import PartitionListeners, SessionPartition
from barnabas.broker.replication.fetched_answer import apply_answer
from barnabas.broker.replication.fetcher_state import FollowedPartition, FollowedPartitions
from barnabas.broker.replication.partition import Partition
from barnabas.broker.security.broker_principals import BrokerPrincipals
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import BrokerId, LeaderEpoch, Offset, TopicPartition
from barnabas.protocol.messages.fetch import FetchRequest, FetchResponse
from tests.simulation.requests import LISTENER, SimRequest
from tests.support.building import LAG_MS, THREE, TP, TWO, Managed, ends_of, state
from tests.support.compiled import PURE_PYTHON_ONLY
from tests.support.memory_log import MemoryLog, encode

NAMES = [TopicPartition(TP.topic, index) for index in range(4)]
NEVER_MS = 1e15
LONG_POLL_MS = 500
SEEDS = range(150)
ROUNDS = 12


class SimFollower:
    """Broker 2 or 3: its replicas, its side of the session, and its one fetch in flight."""

    def __init__(self, leader: SimLeader, broker_id: BrokerId) -> None:
        self.id = broker_id
        self.leader = leader
        self.replicas = {
            name: Partition(
                name,
                broker_id,
                MemoryLog(name),
                high_watermark=Offset(0),
                max_lag_ms=LAG_MS,
                min_insync_replicas=1,
            )
            for name in NAMES
        }
        self.followed = FollowedPartitions(refresh_ms=NEVER_MS, backoff_ms=100)
        self.answers: list[FetchResponse] | None = None
        for name in NAMES:
            self.follow(name)

    def follow(self, name: TopicPartition) -> None:
        epoch = self.leader.epochs[name]
        self.replicas[name].make_follower(state(epoch=epoch, index=name.partition))
        self.followed.add(name, FollowedPartition(self.replicas[name], LeaderEpoch(epoch)))

    def send(self, *, nudge: bool = False, max_bytes: int = 1 << 20) -> None:
        """Send the next fetch, or the empty one that makes the leader answer at once."""
        answers: list[FetchResponse] = []
        body = FetchRequest(replica_id=self.id, replica_epoch=5, max_wait_ms=0, min_bytes=1, topics=[])
        if not nudge:
            if self.answers is not None:
                return
            fetch = self.followed.next_fetch(self.leader.now_s)
            if fetch.is_empty:
                return
            self.answers = answers
            body = FetchRequest(
                replica_id=self.id,
                replica_epoch=5,
                max_wait_ms=LONG_POLL_MS,
                min_bytes=1,
                max_bytes=max_bytes,
                session_id=fetch.session_id,
                session_epoch=fetch.epoch,
                topics=fetch.topics(max_bytes),
                forgotten_topics_data=fetch.forgotten_topics(),
            )
        request: Any = SimRequest(body, answers.append)
        fetch_handler.handle(self.leader.services, request)

    def lose(self) -> None:
        if self.answers is not None:
            self.answers = None
            self.followed.reset()

    def take(self, *, breaks: bool = False) -> FetchResponse | None:
        """Apply the answer if it has come; with ``breaks``, one partition's part fails."""
        if not self.answers:
            return None
        (response,), self.answers = self.answers, None
        if response.error_code != ErrorCode.NONE:
            self.followed.reset()
            return response
        self.followed.opened(response.session_id)
        for topic in response.responses:
            for data in topic.partitions:
                name = TopicPartition(topic.topic, data.partition_index)
                followed = self.followed.fetched(name)
                if followed is None:
                    continue
                if breaks:
                    breaks = False
                    self.followed.failed(name, followed, self.leader.now_s)
                    continue
                try:
                    apply_answer(followed.partition, followed.leader_epoch, data, wall_clock_ms=0)
                except ApiError:
                    self.followed.failed(name, followed, self.leader.now_s)
                except UnexpectedAppendOffset as error:
                    raise AssertionError("records were sent twice") from error
                else:
                    self.followed.applied(name, followed)
        return response

    def lacks(self) -> list[Any]:
        """Where it differs from its leader."""
        return [
            (name, mine, theirs)
            for name, replica in self.replicas.items()
            if (mine := ends_of(replica)) != (theirs := ends_of(self.leader.manager.partition(name)))
        ]


class SimLeader:
    """Broker 1 leads all partitions; 2 and 3 follow."""

    def __init__(self) -> None:
        self.managed = Managed()
        self.manager = self.managed.manager
        self.managed.know({1: 0, 2: 5, 3: 5})
        self.epochs = dict.fromkeys(NAMES, 0)
        for name in NAMES:
            self.lead(name)
        self.services: Any = SimpleNamespace(
            replicas=self.manager,
            metadata=self.managed.metadata,
            config=SimpleNamespace(inter_broker_listener_name=LISTENER, fetch_max_bytes=1 << 20),
            authorizer=None,
            brokers=BrokerPrincipals(),
        )
        self.followers = [SimFollower(self, broker_id) for broker_id in (TWO, THREE)]

    @property
    def now_s(self) -> float:
        return self.managed.clock.now_ms / 1000

    def lead(self, name: TopicPartition) -> None:
        assert self.managed.tell(state(epoch=self.epochs[name], index=name.partition)) == []

    def append(self, name: TopicPartition) -> None:
        self.manager.append(1, 0, [(name, encode(0, 1, 2))], lambda outcomes: None)

    def delete(self, name: TopicPartition) -> None:
        self.manager.deletions.delete(0, [(name, -1)], lambda outcomes: None)

    def begin_epoch(self, name: TopicPartition) -> None:
        self.epochs[name] += 1
        self.lead(name)


class Schedule:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.leader = SimLeader()

    def run(self) -> None:
        for _ in range(120):
            self.random.choice(
                [self.append] * 4 + [self.wake] * 3 + [self.send] * 6 + [self.take] * 6 + self.nuisances
            )()
        self.come_to_rest()

    @property
    def nuisances(self) -> list[Any]:
        return [self.nudge, self.lose, self.delete, self.begin_epoch, self.follow_again, self.pass_time]

    @property
    def name(self) -> TopicPartition:
        return self.random.choice(NAMES)

    @property
    def follower(self) -> SimFollower:
        return self.random.choice(self.leader.followers)

    def append(self) -> None:
        self.leader.append(self.name)

    def wake(self) -> None:
        self.leader.manager.wake_followers()

    def send(self) -> None:
        self.follower.send(max_bytes=self.random.choice([1, 1 << 20]))

    def take(self) -> None:
        self.follower.take(breaks=self.random.random() < 0.1)

    def nudge(self) -> None:
        self.follower.send(nudge=True)

    def lose(self) -> None:
        self.follower.lose()

    def delete(self) -> None:
        self.leader.delete(self.name)

    def begin_epoch(self) -> None:
        """The leader begins it, the followers a little later."""
        name = self.name
        self.leader.begin_epoch(name)
        for follower in self.leader.followers:
            self.random.choice([follower.take, follower.send])()
            follower.follow(name)

    def follow_again(self) -> None:
        """In the same epoch, while an answer may be under way."""
        follower, name = self.follower, self.name
        follower.followed.remove(name)
        self.random.choice([follower.take, follower.send, lambda: None])()
        follower.followed.add(
            name, FollowedPartition(follower.replicas[name], LeaderEpoch(self.leader.epochs[name]))
        )

    def pass_time(self) -> None:
        self.leader.managed.pass_time(self.random.choice([1, 50, LONG_POLL_MS]))

    def come_to_rest(self) -> None:
        self.wake()
        for _ in range(ROUNDS):
            self.leader.managed.pass_time(1_000)
            for follower in self.leader.followers:
                follower.send()
            self.leader.managed.pass_time(1_000)
            for follower in self.leader.followers:
                follower.take()
        assert [follower.lacks() for follower in self.leader.followers] == [[], []]
        # Without changes, a fetch names no partition.
        for follower in self.leader.followers:
            fetch = follower.followed.next_fetch(self.leader.now_s)
            assert (fetch.included, fetch.forgotten) == ({}, [])
            follower.followed.reset()


def test_followers_learn_everything() -> None:
    for seed in SEEDS:
        try:
            Schedule(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def _forgets_high_watermarks(self: SessionPartition, outcome: FetchOutcome) -> bool:
    return bool(outcome.read.error) or outcome.read.diverging is not None or len(outcome.read.records) > 0


@PURE_PYTHON_ONLY
@pytest.mark.parametrize(
    ("owner", "name", "mistake"),
    [
        (SessionPartition, "note", _forgets_high_watermarks),
        (fetch_sessions, "_is_drained", lambda outcome: True),
        (PartitionListeners, "mark", lambda self, name: None),
        (PartitionListeners, "wake", lambda self, names: None),
        (FollowedPartitions, "applied", lambda self, name, followed: None),
        (FollowedPartitions, "reset", lambda self: None),
    ],
    ids=["note", "drained", "mark", "wake", "applied", "reset"],
)
def test_a_mistake_is_found(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, mistake: Any) -> None:
    monkeypatch.setattr(owner, name, mistake)
    with pytest.raises(AssertionError, match="seed"):
        test_followers_learn_everything()
