"""Coordinators that die or move while offsets are committed: what was acknowledged is there afterwards."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import pytest

from barnabas.deploy.local import LocalCluster
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import Endpoint
from barnabas.protocol.messages.find_coordinator import FindCoordinatorRequest
from barnabas.protocol.messages.groups import DescribeGroupsRequest, ListGroupsRequest
from barnabas.protocol.messages.join_group import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)

from .raw_client import RawClient
from .tools import ClusterView, eventually

StartCluster = Callable[..., LocalCluster]

OFFSETS_TOPIC = "__consumer_offsets"
GROUPS = tuple(f"group-{number}" for number in range(8))
SETTINGS = {"offsets.topic.num.partitions": "6", "zookeeper.session.timeout.ms": "2000"}
DEADLINE_S = 30.0
PASSING = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
"""What a client comes again after."""


class GroupClient:
    """Asks the coordinator of a group, wherever it is by now; a context manager, for one thread."""

    def __init__(self, cluster: LocalCluster, group: str) -> None:
        self._cluster = cluster
        self.group = group
        self.coordinator = -1
        self._connection: RawClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def ask(self, request: Any, code_of: Callable[[Any], int]) -> Any:
        """The answer once it is none to come again after; AssertionError at the deadline."""
        deadline = time.monotonic() + DEADLINE_S
        last: object = None
        while time.monotonic() < deadline:
            try:
                answer = self._connected().ask(request)
                last = ErrorCode(code_of(answer))
                if last not in PASSING:
                    return answer
            except OSError as error:
                last = error
            self._drop()
            threading.Event().wait(0.02)
        raise AssertionError(f"{type(request).__name__} of {self.group}: {last!r}")

    def _connected(self) -> RawClient:
        if self._connection is None:
            found = self._find()
            self._connection = RawClient(Endpoint(found.host, found.port))
            self.coordinator = found.node_id
        return self._connection

    def _find(self) -> Any:
        """Raises ConnectionError while nobody knows."""
        for broker in self._cluster.brokers:
            if broker.state != "running":
                continue
            try:
                with RawClient(broker.endpoint) as client:
                    request = FindCoordinatorRequest(coordinator_keys=[self.group])
                    found = client.ask(request).coordinators[0]
            except OSError:
                continue
            if found.error_code == ErrorCode.NONE:
                return found
        raise ConnectionError("nobody knows the coordinator")

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.__exit__()
            self._connection = None

    # What groups are asked.

    def commit(self, offset: int) -> None:
        """Acknowledged on return."""
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
        answer = self.ask(
            OffsetCommitRequest(group_id=self.group, topics=[topic]),
            lambda answer: answer.topics[0].partitions[0].error_code,
        )
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE

    def committed(self) -> int:
        topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=self.group, topics=topics)])
        answer = self.ask(request, lambda answer: answer.groups[0].error_code)
        offset: int = answer.groups[0].topics[0].partitions[0].committed_offset
        return offset

    def join(self, member: str = "") -> Any:
        """A member of a stable group of one."""
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=20_000,
            rebalance_timeout_ms=20_000,
            member_id=member,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"sub")],
        )
        joined = self.ask(request, lambda answer: answer.error_code)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            return self.join(joined.member_id)
        assert joined.error_code == ErrorCode.NONE
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")],
        )
        assert self.ask(request, lambda answer: answer.error_code).error_code == ErrorCode.NONE
        return joined


class Committer:
    """Commits ever higher offsets for one group; a context manager that ends it."""

    def __init__(self, cluster: LocalCluster, group: str) -> None:
        self.client = GroupClient(cluster, group)
        self.tried = self.acknowledged = 0
        self.problem: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(DEADLINE_S * 2)
        with self.client:
            pass

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.tried += 1
                self.client.commit(self.tried)
                self.acknowledged = self.tried
        except (AssertionError, OSError) as error:
            self.problem = error


@contextmanager
def committing(cluster: LocalCluster) -> Iterator[list[Committer]]:
    committers = [Committer(cluster, group) for group in GROUPS]
    for committer in committers:
        committer.start()
    try:
        yield committers
    finally:
        for committer in committers:
            committer.stop()


def wait_progress(committers: list[Committer], when: str) -> None:
    """Every group has two more commits acknowledged, of which the second was begun from now on."""
    goals = [committer.acknowledged + 2 for committer in committers]

    def is_so() -> bool:
        assert [c.problem for c in committers if c.problem is not None] == []
        return all(c.acknowledged >= goal for c, goal in zip(committers, goals, strict=True))

    eventually(is_so, DEADLINE_S, lambda: f"{when}: {[(c.acknowledged, c.tried) for c in committers]}")


def check_nothing_lost(cluster: LocalCluster, committers: list[Committer]) -> None:
    """What a group reads now lies between what was acknowledged and what was tried."""
    for committer in committers:
        assert committer.problem is None
        with GroupClient(cluster, committer.client.group) as client:
            found = client.committed()
        assert committer.acknowledged <= found <= committer.tried


@pytest.fixture
def with_topics(start_cluster: StartCluster) -> LocalCluster:
    """Three brokers, the topic "t" and the offsets topic, in sync."""
    cluster = start_cluster(settings=SETTINGS)
    view = ClusterView(cluster)
    view.create_topic("t")
    with GroupClient(cluster, "first") as client:
        client.commit(1)
    view.wait_isr(OFFSETS_TOPIC, 3)
    return cluster


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_coordinator_that_goes_under_commits_costs_none_that_was_acknowledged(
    with_topics: LocalCluster, how: str
) -> None:
    cluster, view = with_topics, ClusterView(with_topics)
    with committing(cluster) as committers:
        wait_progress(committers, "at the start")
        victim = committers[0].client.coordinator
        if how == "killed":
            cluster.kill(victim)
        else:
            cluster.stop_broker(victim)
        wait_progress(committers, f"after the coordinator was {how}")
        assert all(committer.client.coordinator != victim for committer in committers)
        cluster.start_broker(victim)
        view.wait_isr(OFFSETS_TOPIC, 3)
        wait_progress(committers, "after its return")
    check_nothing_lost(cluster, committers)


def test_a_coordinator_that_stood_still_and_wakes_is_one_no_longer(with_topics: LocalCluster) -> None:
    cluster, view = with_topics, ClusterView(with_topics)
    with committing(cluster) as committers:
        wait_progress(committers, "at the start")
        sleeper = committers[0].client.coordinator
        process = cluster.broker(sleeper).running_process.pid
        with view.zookeeper() as zookeeper:
            os.kill(process, signal.SIGSTOP)
            try:
                eventually(
                    lambda: zookeeper.exists(f"/brokers/ids/{sleeper}") is None,
                    DEADLINE_S,
                    "its session does not end",
                )
            finally:
                os.kill(process, signal.SIGCONT)
        wait_progress(committers, "after it woke")
        view.wait_isr(OFFSETS_TOPIC, 3)
        wait_progress(committers, "after it follows again")
    check_nothing_lost(cluster, committers)


def test_offsets_and_members_survive_a_restart_of_all_brokers(with_topics: LocalCluster) -> None:
    cluster = with_topics
    with GroupClient(cluster, "with-member") as member:
        joined = member.join()
        with committing(cluster) as committers:
            wait_progress(committers, "at the start")
            for broker in cluster.brokers:
                cluster.kill(broker.id)
            for broker in cluster.brokers:
                cluster.start_broker(broker.id)
            wait_progress(committers, "after all had been killed")
        check_nothing_lost(cluster, committers)
        beat = HeartbeatRequest(
            group_id="with-member", generation_id=joined.generation_id, member_id=joined.member_id
        )
        assert member.ask(beat, lambda answer: answer.error_code).error_code == ErrorCode.NONE
        described = member.ask(
            DescribeGroupsRequest(groups=["with-member"]), lambda answer: answer.groups[0].error_code
        ).groups[0]
    assert (described.group_state, described.members[0].member_assignment) == ("Stable", b"all")


def test_the_offsets_topic_is_internal_and_its_groups_are_spread_over_the_brokers(
    with_topics: LocalCluster,
) -> None:
    cluster = with_topics
    for group in GROUPS:
        with GroupClient(cluster, group) as committer:
            committer.commit(1)
    with RawClient(cluster.brokers[0].endpoint) as client:
        (topic,) = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=OFFSETS_TOPIC)])).topics
    assert topic.is_internal
    assert len(topic.partitions) == 6
    assert all(len(partition.replica_nodes) == 3 for partition in topic.partitions)
    listed = []
    for broker in cluster.brokers:
        with RawClient(broker.endpoint) as client:
            listed.append({group.group_id for group in client.ask(ListGroupsRequest()).groups})
    assert set().union(*listed) == {*GROUPS, "first"}
    assert sum(len(groups) for groups in listed) == len(GROUPS) + 1
    assert all(listed)
