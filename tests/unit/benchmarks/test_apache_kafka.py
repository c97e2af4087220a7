"""Reading a Metadata v1 response, from which the reference cluster's readiness follows."""

import socket
import struct

import pytest

from benchmarks.peers.apache_kafka import ApacheKafka, ClusterView, cluster_view, view_of


def broker(node_id: int, host: str, rack: str | None) -> bytes:
    rack_bytes = struct.pack(">h", -1) if rack is None else struct.pack(">h", len(rack)) + rack.encode()
    return struct.pack(">ih", node_id, len(host)) + host.encode() + struct.pack(">i", 9092) + rack_bytes


ANSWER = (
    struct.pack(">ii", 1, 2)
    + broker(1, "localhost", None)
    + broker(7, "h", "west")
    + struct.pack(">ii", 7, 0)
)


def test_brokers_and_controller_are_read_past_hosts_and_racks() -> None:
    assert cluster_view(ANSWER) == ClusterView(frozenset({1, 7}), 7)


def test_a_cluster_without_brokers_is_read_too() -> None:
    assert cluster_view(struct.pack(">iiii", 1, 0, -1, 0)) == ClusterView(frozenset(), -1)


@pytest.mark.parametrize("length", range(len(ANSWER) - 4))
def test_a_cut_answer_is_an_error_and_never_a_view(length: int) -> None:
    with pytest.raises(struct.error):
        cluster_view(ANSWER[:length])


def test_a_port_that_nobody_serves_gives_no_view() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()[:2]
    assert view_of(address) is None


def test_a_cluster_has_at_least_one_broker() -> None:
    with pytest.raises(ValueError, match="brokers=0"):
        ApacheKafka(0)
