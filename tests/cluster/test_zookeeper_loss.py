"""ZooKeeper fails under load: brokers continue with safe requests, refuse the others, and recover."""

from barnabas.chaos.load import Load, stop_and_judge
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.zookeeper import ZooKeeper
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.support.waiting import wait_for

from .raw_client import RawClient, batch_of
from .tools import ClusterView, StartCluster

PARTITIONS = 3
SESSION_TIMEOUT_MS = 18_000
"""Kafka's default; ZooKeeper is away for a small part of it."""


def start(start_cluster: StartCluster, session_timeout_ms: int) -> tuple[LocalCluster, ZooKeeper, Load]:
    cluster = start_cluster(
        own_zookeeper=True, settings={"zookeeper.session.timeout.ms": str(session_timeout_ms)}
    )
    assert isinstance(cluster.zookeeper, ZooKeeper)
    ClusterView(cluster).create_topic("t", PARTITIONS, 3, min_insync_replicas="2")
    ClusterView(cluster).create_topic("probe", 3, 3)
    return cluster, cluster.zookeeper, Load(cluster.bootstrap, "t", PARTITIONS, request_timeout_ms=3_000)


def check_all(cluster: LocalCluster, load: Load) -> None:
    # Ask all of them: a broker whose session ends late still has the former ISR.
    ClusterView(cluster).wait_agreed("t", len(load.partitions))
    verdict = stop_and_judge(cluster, load)
    assert verdict.is_good, str(verdict)
    assert load.problems == []


def pids(cluster: LocalCluster) -> list[int]:
    return [broker.running_process.pid for broker in cluster.brokers]


def leaderships(cluster: LocalCluster) -> list[tuple[int, int]]:
    """Leader and leader epoch of every partition; a partition that moved, even back, has another epoch."""
    return [(p.leader, p.leader_epoch) for p in ClusterView(cluster).partitions("t")]


def is_fenced(cluster: LocalCluster, broker_id: int) -> bool:
    """Whether a broker refuses acks=1, although it leads one of the three partitions of `probe`."""
    with RawClient(cluster.broker(broker_id).endpoint) as client:
        answers = [client.produce(p, bytes(batch_of(b"?")), topic="probe", acks=1) for p in range(3)]
    return {answer.error_code for answer in answers} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_a_short_absence_of_zookeeper_is_not_felt_by_clients(start_cluster: StartCluster) -> None:
    cluster, zookeeper, load = start(start_cluster, SESSION_TIMEOUT_MS)
    before = pids(cluster), leaderships(cluster)
    with load:
        for _ in range(2):
            zookeeper.kill()
            load.wait_progress("without ZooKeeper")
            zookeeper.restart()
            load.wait_progress("with ZooKeeper again")
    # Nobody waited for a session to end, or for anything that comes after it.
    assert load.longest_pause_s < SESSION_TIMEOUT_MS / 1000 / 2
    # The sessions were kept: a topic can be made, and no broker was thought dead.
    ClusterView(cluster).create_topic("another")
    assert (pids(cluster), leaderships(cluster)) == before
    check_all(cluster, load)


def test_without_zookeeper_acks_all_continues_and_all_else_waits(
    start_cluster: StartCluster,
) -> None:
    cluster, zookeeper, load = start(start_cluster, 4_000)
    before = pids(cluster)
    with load:
        zookeeper.pause()
        wait_for(lambda: all(is_fenced(cluster, broker) for broker in cluster.broker_ids), "still not fenced")
        # The followers fetch in the present epochs: there was no election.
        load.wait_progress("with acks=all, without ZooKeeper")
        # Committed records are still served, and so is metadata.
        assert ClusterView(cluster).live_brokers() == {1, 2, 3}
        assert reads_from_a_leader(cluster)
        zookeeper.resume()
        load.wait_progress("after ZooKeeper woke", timeout_s=40)
        ClusterView(cluster).wait_isr("t", 3)
        load.wait_progress("with all in sync")
    assert pids(cluster) == before
    check_all(cluster, load)


def test_zookeeper_that_returns_only_to_go_again_costs_no_broker(start_cluster: StartCluster) -> None:
    cluster, zookeeper, load = start(start_cluster, 4_000)
    before = pids(cluster)
    with load:
        for _ in range(3):
            zookeeper.kill()
            wait_for(lambda: all(is_fenced(cluster, broker) for broker in cluster.broker_ids), "not fenced")
            zookeeper.restart()
        load.wait_progress("after ZooKeeper came back for good", timeout_s=40)
        ClusterView(cluster).wait_isr("t", 3)
    assert pids(cluster) == before
    check_all(cluster, load)


def reads_from_a_leader(cluster: LocalCluster) -> bool:
    for broker in cluster.brokers:
        with RawClient(broker.endpoint) as client:
            partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10_000)
            answer = client.ask(
                FetchRequest(
                    max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic="t", partitions=[partition])]
                )
            )
            if answer.responses[0].partitions[0].error_code == ErrorCode.NONE:
                return len(answer.responses[0].partitions[0].records) > 0
    return False
