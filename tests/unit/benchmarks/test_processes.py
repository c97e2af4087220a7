"""The processes of a cluster: parsing the texts of /proc, and finding this process by its port."""

import os
import socket

import pytest

from benchmarks.peers.processes import (
    PeerError,
    cpu_seconds,
    cpu_seconds_of,
    listening_inodes,
    memory,
    memory_of,
    pids_listening,
    ports_of,
    socket_inode,
)

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:2384 00000000:0000 0A 00000000:00000000 0:0 0 0 0 4001 1 0000 100 0 0 10 0
   1: 0100007F:2384 0100007F:A2C4 01 00000000:00000000 0:0 0 0 0 4002 1 0000 20 4 30 10 -1
   2: 0100007F:2385 00000000:0000 0A 00000000:00000000 0:0 0 0 0 4003 1 0000 100 0 0 10 0
"""


def test_only_sockets_that_listen_on_a_wanted_port_count() -> None:
    assert listening_inodes(TCP, {9092}) == {4001}
    assert listening_inodes(TCP, {9092, 9093}) == {4001, 4003}
    assert listening_inodes(TCP, {9094}) == set()
    assert listening_inodes("", {9092}) == set()


def test_an_ipv6_address_is_read_by_its_port_too() -> None:
    line = (
        "   0: 00000000000000000000000000000000:2384 "
        + "0" * 32
        + ":0000 0A 0:0 0:0 0 0 0 77 1 0 100 0 0 10 0"
    )
    assert listening_inodes("head\n" + line + "\n", {9092}) == {77}


@pytest.mark.parametrize(
    ("link", "inode"), [("socket:[4026]", 4026), ("pipe:[12]", None), ("/tmp/socket:[1]", None), ("", None)]
)
def test_a_descriptor_is_a_socket_only_when_its_link_says_so(link: str, inode: int | None) -> None:
    assert socket_inode(link) == inode


def test_cpu_is_of_user_and_kernel_even_when_the_command_holds_blanks_and_brackets() -> None:
    fields = ["S", *["0"] * 10, "250", "50", "9999", "9999"]
    assert cpu_seconds_of("7 (a) b (c) " + " ".join(fields)) == 300 / os.sysconf("SC_CLK_TCK")


def test_memory_is_read_in_mb() -> None:
    found = memory_of("Name:\tjava\nVmRSS:\t  1000 kB\nRssAnon:\t 500 kB\nRssFile:\t 500 kB\n")
    assert (found.resident_mb, found.anonymous_mb) == (1.024, 0.512)


def test_a_zombie_has_no_memory_to_read() -> None:
    with pytest.raises(LookupError, match="has ended"):
        memory_of("Name:\tjava\nState:\tZ (zombie)\n")


def test_ports_come_in_the_order_of_the_bootstrap() -> None:
    assert ports_of("127.0.0.1:9093,localhost:9092,[::1]:9094") == [9093, 9092, 9094]


@pytest.mark.parametrize("bootstrap", ["", "localhost", "localhost:", ":9092", "a:9092,", "a:b"])
def test_a_bootstrap_that_is_none_is_refused_by_its_part(bootstrap: str) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        ports_of(bootstrap)


def test_this_process_is_found_by_the_ports_that_it_listens_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = [one.getsockname()[1], two.getsockname()[1]]
        assert pids_listening(ports) == [os.getpid()]
    assert cpu_seconds([os.getpid()]) > 0
    found = memory(os.getpid())
    assert found.resident_mb > found.anonymous_mb > 0


def test_a_port_on_which_nobody_listens_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(PeerError, match=str(port)):
        pids_listening([port])
