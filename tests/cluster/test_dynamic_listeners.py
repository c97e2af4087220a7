"""Listeners that are added, advertised elsewhere and removed while a broker runs."""

import pytest

from barnabas.client import ConfigResource
from barnabas.client.blocking import Admin, Producer
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.ports import ReservedPort
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import Endpoint
from barnabas.zookeeper import znodes
from tests.support.waiting import wait_for

from .tools import ClusterView

PROTOCOLS = "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT"


def alter(cluster: LocalCluster, broker: int | None, **changes: str | None) -> None:
    """Of one broker, or of all brokers."""
    named = {name.replace("_", "."): value for name, value in changes.items()}
    resource = ConfigResource.all_brokers() if broker is None else ConfigResource.broker(broker)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_configs({resource: named})


def registered(cluster: LocalCluster, broker: int) -> znodes.BrokerRegistration:
    path = f"/brokers/ids/{broker}"
    with ClusterView(cluster).zookeeper() as zookeeper:
        data, stat = zookeeper.get(path)
    return znodes.decode_broker(path, data, broker, stat.czxid)


def brokers_at(address: str) -> dict[int, Endpoint]:
    """The brokers as clients of that address see them."""
    with Admin(bootstrap_servers=address) as admin:
        return {node.node_id: node.endpoint for node in admin.describe_cluster().nodes}


def test_a_listener_is_added_advertised_elsewhere_and_removed(cluster: LocalCluster) -> None:
    ClusterView(cluster).create_topic("t", 1, 3)
    before = {broker: registered(cluster, broker) for broker in (1, 2, 3)}
    addresses: dict[int, Endpoint] = {}
    for broker in (1, 2, 3):
        port = ReservedPort.pick("127.0.0.1")
        addresses[broker] = Endpoint("127.0.0.1", port.port)
        port.close()
        plain = f"PLAINTEXT://{cluster.broker(broker).endpoint}"
        alter(
            cluster,
            broker,
            listeners=f"{plain},CLIENTS://{addresses[broker]}",
            listener_security_protocol_map=PROTOCOLS,
        )
    wait_for(lambda: registered(cluster, 3).endpoint("CLIENTS") == addresses[3], "the registration")
    wait_for(lambda: brokers_at(str(addresses[1])) == addresses, "metadata for the new listener")
    assert {broker: registered(cluster, broker).broker_epoch for broker in (1, 2, 3)} == {
        broker: earlier.broker_epoch for broker, earlier in before.items()
    }
    with Producer(bootstrap_servers=str(addresses[2]), acks="all") as producer:
        assert producer.send("t", b"a").result(20).offset == 0

    elsewhere = Endpoint("localhost", addresses[1].port)
    plain = f"PLAINTEXT://{cluster.broker(1).endpoint}"
    alter(cluster, 1, advertised_listeners=f"{plain},CLIENTS://{elsewhere}")
    wait_for(lambda: brokers_at(str(addresses[2]))[1] == elsewhere, "the other address")
    cluster.kill(1)
    cluster.start_broker(1)
    wait_for(lambda: brokers_at(str(addresses[2])).get(1) == elsewhere, "the address after a restart")

    alter(cluster, 1, advertised_listeners=None, listeners=None)
    wait_for(lambda: 1 not in brokers_at(str(addresses[2])), "the removal")
    assert registered(cluster, 1).listeners == before[1].listeners


def test_impossible_listeners_are_refused(cluster: LocalCluster) -> None:
    with pytest.raises(ApiError, match="the listener of the brokers, cannot be") as refusal:
        alter(cluster, 1, listeners="PLAINTEXT://127.0.0.1:1")
    assert refusal.value.code is ErrorCode.INVALID_CONFIG
    with pytest.raises(ApiError, match="has no security protocol"):
        alter(cluster, 1, listeners=f"PLAINTEXT://{cluster.broker(1).endpoint},CLIENTS://127.0.0.1:0")
    with pytest.raises(ApiError, match="default cluster level: listeners") as refusal:
        alter(cluster, None, listeners="PLAINTEXT://127.0.0.1:1")
    assert refusal.value.code is ErrorCode.INVALID_REQUEST
