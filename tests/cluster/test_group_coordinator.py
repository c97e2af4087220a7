"""Coordinators that die or move while offsets are committed: no acknowledged commit is lost."""

import os
import signal

import pytest

from barnabas.deploy.local import LocalCluster
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.find_coordinator import FindCoordinatorRequest
from barnabas.protocol.messages.groups import DescribeGroupsRequest, HeartbeatRequest, ListGroupsRequest
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.protocol.topic_names import OFFSETS_TOPIC
from tests.support.waiting import wait_for

from .group_client import Committer, GroupClient, committing, wait_progress
from .raw_client import RawClient
from .tools import ClusterView, knows_topic, start_all

GROUPS = tuple(f"group-{number}" for number in range(8))
SETTINGS = {"offsets.topic.num.partitions": "6", "zookeeper.session.timeout.ms": "2000"}

pytestmark = pytest.mark.brokers(settings=SETTINGS)


def check_nothing_lost(cluster: LocalCluster, committers: list[Committer]) -> None:
    """A committed offset is at least the last acknowledged one, and at most the last attempt."""
    for committer in committers:
        assert committer.problem is None
        with GroupClient(cluster, committer.client.group) as client:
            found = client.committed()
        assert committer.acknowledged <= found <= committer.tried


@pytest.fixture
def with_topics(cluster: LocalCluster) -> LocalCluster:
    """Three brokers, the topic "t" and the offsets topic, in sync."""
    view = ClusterView(cluster)
    view.create_topic("t")
    with GroupClient(cluster, "first") as client:
        client.commit(1)
    view.wait_isr(OFFSETS_TOPIC, 3)
    return cluster


def test_the_offsets_topic_waits_for_all_its_replicas(cluster: LocalCluster) -> None:
    """With two of three brokers down at the first request, the topic would have a single replica for good."""
    view = ClusterView(cluster)
    cluster.kill(2)
    cluster.kill(3)
    wait_for(lambda: view.live_brokers() == {1}, "the dead brokers are still listed")
    request = FindCoordinatorRequest(coordinator_keys=["g"])
    with RawClient(cluster.brokers[0].endpoint) as client:
        # Each answer waits three seconds for the topic.
        for _ in range(3):
            (found,) = client.ask(request).coordinators
            assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert "alive are 1" in found.error_message
    for broker in (2, 3):
        cluster.start_broker(broker)
    with GroupClient(cluster, "g") as client:
        client.join()
    view.wait_isr(OFFSETS_TOPIC, 3)


def test_offsets_survive_a_topic_that_is_unreadable_for_a_while(with_topics: LocalCluster) -> None:
    """A topic's znode is corrupted by hand, and the controller changes meanwhile."""
    cluster, view = with_topics, ClusterView(with_topics)
    with GroupClient(cluster, "g") as client:
        client.commit(17)
    with view.zookeeper() as zookeeper:
        whole, _ = zookeeper.get("/brokers/topics/t")
        epoch = zookeeper.get("/controller_epoch")[0]
        zookeeper.set("/brokers/topics/t", b"{oops")
        zookeeper.delete("/controller")
        wait_for(lambda: zookeeper.get("/controller_epoch")[0] != epoch, "no new controller")
        # The new controller sends this after the full metadata.
        view.create_topic("later")
        assert [knows_topic(broker.endpoint, "t") for broker in cluster.brokers] == [True] * 3
        zookeeper.set("/brokers/topics/t", whole)
    with GroupClient(cluster, "g") as client:
        assert client.committed() == 17


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_no_acknowledged_commit_is_lost_with_its_coordinator(with_topics: LocalCluster, how: str) -> None:
    cluster, view = with_topics, ClusterView(with_topics)
    with committing(cluster, GROUPS) as committers:
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


def test_a_paused_coordinator_that_resumes_is_deposed(with_topics: LocalCluster) -> None:
    cluster, view = with_topics, ClusterView(with_topics)
    with committing(cluster, GROUPS) as committers:
        wait_progress(committers, "at the start")
        sleeper = committers[0].client.coordinator
        process = cluster.broker(sleeper).running_process.pid
        with view.zookeeper() as zookeeper:
            os.kill(process, signal.SIGSTOP)
            try:
                wait_for(
                    lambda: zookeeper.exists(f"/brokers/ids/{sleeper}") is None, "its session does not end"
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
        with committing(cluster, GROUPS) as committers:
            wait_progress(committers, "at the start")
            cluster.kill_all()
            start_all(cluster)
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


@pytest.mark.brokers(settings={**SETTINGS, "zookeeper.session.timeout.ms": "30000"})
def test_the_offsets_topic_is_internal_and_its_groups_are_spread_over_the_brokers(
    cluster: LocalCluster,
) -> None:
    # A broker that loses its session does not get its leadership back.
    ClusterView(cluster).create_topic("t")
    for group in GROUPS:
        with GroupClient(cluster, group) as committer:
            committer.commit(1)
    ClusterView(cluster).wait_agreed(OFFSETS_TOPIC, 6)
    with RawClient(cluster.brokers[0].endpoint) as client:
        (topic,) = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=OFFSETS_TOPIC)])).topics
    assert topic.is_internal
    assert len(topic.partitions) == 6
    assert all(len(partition.replica_nodes) == 3 for partition in topic.partitions)
    listed = []
    for broker in cluster.brokers:
        with RawClient(broker.endpoint) as client:
            listed.append({group.group_id for group in client.ask(ListGroupsRequest()).groups})
    assert set().union(*listed) == {*GROUPS}
    assert sum(len(groups) for groups in listed) == len(GROUPS)
    assert all(listed)
