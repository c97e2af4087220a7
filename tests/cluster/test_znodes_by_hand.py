"""Znodes that are deleted or corrupted by hand: no broker ends, nothing is lost, the log names the path."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError

from barnabas.client import ConfigResource
from barnabas.client.blocking import Consumer, Producer
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.ids import TopicPartition
from tests.support.waiting import wait_for

from .tools import ClusterView

MISSING = (
    "/admin/delete_topics",
    "/admin",
    "/isr_change_notification",
    "/log_dir_event_notification",
    "/config/changes",
    "/config/topics",
    "/config/brokers",
    "/config",
    "/controller_epoch",
    "/controller",
    "/latest_producer_id_block",
    "/kafka-acl",
)
KEPT = [b"kept %d" % number for number in range(10)]


def kept(cluster: LocalCluster) -> list[bytes | None]:
    with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        name = TopicPartition("kept", 0)
        consumer.assign([name])
        values: list[bytes | None] = []
        while len(values) < len(KEPT):
            records = consumer.poll(timeout_ms=10_000)
            assert records, f"only {len(values)} records are left"
            values += [record.value for record in records]
        return values


def work(cluster: LocalCluster, number: int) -> None:
    """Create, configure, grow, write and delete a topic, and get a producer id."""
    name = f"made-{number}"
    view = ClusterView(cluster)
    view.create_topic(name, 2, 3)
    with view.admin(20_000) as admin:
        admin.alter_configs({ConfigResource.topic(name): {"retention.ms": "100000"}})
        admin.create_partitions({name: 3})
        with Producer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
            producer.send(name, b"written").result(20)
        admin.delete_topics(name)

    def is_gone() -> bool:
        with view.zookeeper() as zookeeper:
            return zookeeper.exists(f"/brokers/topics/{name}") is None

    wait_for(is_gone, f"{name} is not deleted")


def delete_all(cluster: LocalCluster, path: str) -> None:
    """As zkCli's deleteall does."""
    with ClusterView(cluster).zookeeper() as zookeeper:
        try:
            zookeeper.delete(path, recursive=True)
        except NotEmptyError:
            # The brokers have created something below it meanwhile, which is the aim here.
            return


def depose(zookeeper: KazooClient) -> None:
    """Delete ``/controller``, if it exists, so that the next controller is elected."""
    with suppress(NoNodeError):
        zookeeper.delete("/controller")


def log_of(cluster: LocalCluster) -> str:
    return "".join(
        path.read_text(errors="replace")
        for broker in cluster.brokers
        for path in (broker.log_file, *(broker.directory / "logs").glob("*.log"))
    )


def check_alive(cluster: LocalCluster, pids: list[int]) -> None:
    assert [broker.running_process.pid for broker in cluster.brokers] == pids
    assert kept(cluster) == KEPT


pytestmark = pytest.mark.brokers(settings={"zookeeper.session.timeout.ms": "30000"})


@pytest.fixture
def cluster(cluster: LocalCluster) -> LocalCluster:
    ClusterView(cluster).create_topic("kept", 1, 3)
    ClusterView(cluster).write("kept", KEPT)
    return cluster


def pids_of(cluster: LocalCluster) -> list[int]:
    return [broker.running_process.pid for broker in cluster.brokers]


def test_a_path_deleted_by_hand_is_recreated_and_no_broker_ends(cluster: LocalCluster) -> None:
    pids = pids_of(cluster)
    for number, path in enumerate(MISSING):
        delete_all(cluster, path)
        work(cluster, number)
        check_alive(cluster, pids)
    # The leaders send a notification when a follower leaves the ISR or comes back.
    delete_all(cluster, "/isr_change_notification")
    cluster.kill(3)
    ClusterView(cluster).wait_isr("kept", 2)
    cluster.start_broker(3)
    ClusterView(cluster).wait_isr("kept", 3)
    assert pids_of(cluster)[:2] == pids[:2]


def epochs_of(zookeeper: KazooClient) -> dict[str, int]:
    """The broker epochs of the registered brokers."""
    epochs = {}
    for broker in ("1", "2", "3"):
        node = zookeeper.exists(f"/brokers/ids/{broker}")
        if node is not None:
            epochs[broker] = node.czxid
    return epochs


@pytest.mark.parametrize("path", ["/brokers/ids/1", "/brokers/ids/2", "/brokers/ids/3", "/brokers/ids"])
def test_a_broker_whose_registration_is_deleted_by_hand_registers_again(
    cluster: LocalCluster, path: str
) -> None:
    pids = pids_of(cluster)
    view = ClusterView(cluster)
    deleted = {path[-1]} if path[-1].isdecimal() else {"1", "2", "3"}
    with view.zookeeper() as zookeeper:
        before = epochs_of(zookeeper)
        delete_all(cluster, path)

        def is_back() -> bool:
            now = epochs_of(zookeeper)
            return now.keys() == before.keys() and all(now[broker] > before[broker] for broker in deleted)

        wait_for(is_back, lambda: f"{before} has become {epochs_of(zookeeper)}")
        now = epochs_of(zookeeper)
        assert {broker for broker in before if now[broker] != before[broker]} == deleted
    for broker in deleted:
        assert f"/brokers/ids/{broker} was deleted" in log_of(cluster)
    view.wait_isr("kept", 3)
    work(cluster, 0)
    check_alive(cluster, pids)


GARBLED = {
    "/controller": "/controller holds",
    "/controller_epoch": "/controller_epoch holds",
    "/brokers/ids/2": "/brokers/ids/2 holds",
    "/brokers/topics/kept/partitions/0/state": "/brokers/topics/kept/partitions/0/state holds",
    "/brokers/topics/kept": "/brokers/topics/kept holds",
    "/config/topics/kept": "/config/topics/kept holds",
    "/latest_producer_id_block": None,
    "/config/brokers/2": None,
    "/admin/delete_topics/not-there": "topics that do not exist: ['not-there']",
    "/isr_change_notification/isr_change_0000000007": "isr_change_0000000007 holds",
    "/log_dir_event_notification/log_dir_event_0000000007": "log_dir_event_0000000007 holds",
    "/config/changes/config_change_0000000007": "config_change_0000000007 holds",
}
"""By path, a log text of some broker; None for nodes that are read only on demand."""
COME_AND_GO = ("/controller", "/controller_epoch", "/admin/", "/isr_", "/log_dir_", "/config/changes/")
"""Nodes under these paths are replaced by themselves; the test repairs the others."""


@pytest.mark.parametrize("garbage", [b"{", b'{"version":1,"leader":99999999999,"brokerid":[],"config":7}'])
def test_garbage_in_a_znode_costs_no_broker_and_deletes_nothing(
    cluster: LocalCluster, garbage: bytes
) -> None:
    pids = pids_of(cluster)
    work(cluster, 0)
    for path, text in GARBLED.items():
        with ClusterView(cluster).zookeeper() as zookeeper:
            before = None
            if zookeeper.exists(path):
                before = zookeeper.get(path)[0]
                zookeeper.set(path, garbage)
            else:
                zookeeper.create(path, garbage, makepath=True)
            if path != "/controller":
                # The next controller has to read all of it.
                depose(zookeeper)
        if text is not None:
            wait_for(lambda text=text: text in log_of(cluster), f"no log has {text}")
        if before is not None and not path.startswith(COME_AND_GO):
            with ClusterView(cluster).zookeeper() as zookeeper:
                zookeeper.set(path, before)
                depose(zookeeper)
        check_alive(cluster, pids)
    work(cluster, 1)
    check_alive(cluster, pids)


def tree(zookeeper: KazooClient, path: str) -> dict[str, bytes]:
    """All nodes from a path down, parents first."""
    nodes = {path: zookeeper.get(path)[0]}
    for child in zookeeper.get_children(path):
        nodes |= tree(zookeeper, f"{path}/{child}")
    return nodes


def test_a_topic_that_was_removed_by_hand_has_its_records_when_it_is_put_back(
    start_cluster: Callable[..., LocalCluster],
) -> None:
    cluster = start_cluster()
    view = ClusterView(cluster)
    view.create_topic("kept", 1, 3)
    with Producer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
        for value in KEPT:
            producer.send("kept", value).result(20)

    def strays() -> list[str]:
        return [path.name for path in cluster.directory.glob("**/kept-0.*-stray")]

    with view.zookeeper() as zookeeper:
        nodes = tree(zookeeper, "/brokers/topics/kept")
        zookeeper.delete("/brokers/topics/kept", recursive=True)
        # Each broker gets a full request at its start, and "kept" is not in it.
        for broker in cluster.brokers:
            cluster.restart(broker.id)
        wait_for(lambda: len(strays()) == 3, lambda: f"set aside are {strays()}")
        # In one transaction, or the controller would find a topic without state and create a first one.
        together = zookeeper.transaction()
        for path, data in nodes.items():
            together.create(path, data)
        assert set(together.commit()) == set(nodes)
    wait_for(lambda: strays() == [], lambda: f"set aside are {strays()}")
    view.wait_isr("kept", 3)
    assert kept(cluster) == KEPT
