"""Containers that die or lose their link: how long writes stop. Each node in a network namespace of its own.

ZooKeeper, three brokers and the producer have an address each on one bridge, and know the others by name, as
in a network of containers. A container that dies takes its process, its address and its name with it: its
connections are reset, and from then on nothing refuses, nothing answers, and the name does not resolve. That
is the worst case of an engine; most often a port refuses for some milliseconds more, which brokers detect.

6 partitions, RF 3, min.insync.replicas 2, acks=all, idempotent, 300 records/s; the time-outs are those of the
compose file. A figure is the longest time without an acknowledgement for a partition, in the worst round: of
those that the victim led, and of the others. Needs root, ``ip`` (iproute2) and ``iptables``.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import uvloop

from barnabas.client.admin.admin import Admin, NewTopic
from barnabas.client.metadata import PartitionInfo
from barnabas.client.producer.batch import RecordMetadata
from barnabas.client.producer.producer import Producer
from barnabas.common.properties import to_properties
from barnabas.deploy.health import wait_ready
from barnabas.deploy.local_broker import broker_command
from barnabas.deploy.process import DeployError, ManagedProcess, tail
from barnabas.deploy.zookeeper import ZooKeeper
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.ids import BrokerId, Endpoint
from benchmarks.support import Figure, Options, clean_up_on_signals, run, tell, temporary_folder

_PARTITIONS: Final = 6
_INTERVAL_S: Final = 0.02
_SETTLE_S: Final = 3.0
_TIMEOUT_S: Final = 90.0
_BROKERS: Final = (1, 2, 3)
_PREFIX: Final = "bnb-"
_HUB: Final = f"{_PREFIX}hub"
_ADDRESSES: Final = {
    "zookeeper": "10.213.77.2",
    "client": "10.213.77.3",
    **{f"broker-{broker}": f"10.213.77.{10 + broker}" for broker in _BROKERS},
}
_IN_NAMESPACE: Final = "CONTAINER_DEATH_IN_NAMESPACE"
_ETC: Final = Path("/etc/netns")


class _Case(NamedTuple):
    """A fault of a broker, and how long its effects are watched."""

    name: str
    watched_s: float
    at_most_s: float | None


_DIES: Final = _Case("dies", 6.0, 1.0)
# The process lives and the others get no sign: only the session and the clients' timeouts detect it.
_UNPLUGGED: Final = _Case("is unplugged", 45.0, None)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _in_node(node: str, *words: str) -> list[str]:
    """A command that runs as a node: with its network, and its files of names."""
    return ["ip", "netns", "exec", _netns(node), *words]


def _drop_connection_attempts(node: str, change: str) -> None:
    rule = ["INPUT", "-p", "tcp", "--syn", "-j", "DROP"]
    subprocess.run(_in_node(node, "iptables", change, *rule), check=True, capture_output=True)


def _netns(node: str) -> str:
    return _PREFIX + node


def _plug_in(node: str) -> None:
    """Give a node its address on the bridge."""
    space = _netns(node)
    _ip("-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", f"v-{node}", "netns", _HUB)
    _ip("-n", _HUB, "link", "set", f"v-{node}", "master", "br0", "up")
    _ip("-n", space, "addr", "add", f"{_ADDRESSES[node]}/24", "dev", "eth0")
    _ip("-n", space, "link", "set", "eth0", "up")


def _set_name(node: str, *, is_there: bool) -> None:
    """Let a name resolve for all nodes, or for none. Written in place: the files are mounted one by one."""
    for file in _ETC.glob(f"{_PREFIX}*/hosts"):
        lines = file.read_text().splitlines()
        at = next(i for i, line in enumerate(lines) if line.endswith(f" {node}"))
        lines[at] = (" " if is_there else "#") + lines[at][1:]
        with file.open("r+") as output:
            output.write("\n".join(lines) + "\n")


@contextmanager
def _namespaces() -> Iterator[None]:
    """The bridge and all nodes; raises SystemExit if they cannot be made."""
    if os.geteuid() != 0 or any(shutil.which(tool) is None for tool in ("ip", "iptables")):
        raise SystemExit("needs root, `ip` (iproute2) and `iptables`, for network namespaces")
    _remove_namespaces()
    try:
        _ip("netns", "add", _HUB)
        _ip("-n", _HUB, "link", "add", "br0", "type", "bridge", "forward_delay", "0")
        _ip("-n", _HUB, "link", "set", "br0", "up")
        hosts = "".join(f" {_ADDRESSES[node]} {node}\n" for node in _ADDRESSES)
        for node in _ADDRESSES:
            etc = _ETC / _netns(node)
            etc.mkdir(parents=True, exist_ok=True)
            (etc / "hosts").write_text(f" 127.0.0.1 localhost\n{hosts}")
            # No name server listens there: only the names in the file above resolve.
            (etc / "resolv.conf").write_text("nameserver 127.0.0.1\n")
            _ip("netns", "add", _netns(node))
            _ip("-n", _netns(node), "link", "set", "lo", "up")
            _plug_in(node)
        yield
    finally:
        _remove_namespaces()


def _remove_namespaces() -> None:
    for space in [_HUB, *map(_netns, _ADDRESSES)]:
        with suppress(subprocess.CalledProcessError):
            _ip("netns", "delete", space)
        shutil.rmtree(_ETC / space, ignore_errors=True)


class _Cluster:
    """ZooKeeper and three brokers, each in its namespace."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self.bootstrap = ",".join(f"broker-{broker}:9092" for broker in _BROKERS)
        self._folder = folder
        self._settings = settings
        self._running: dict[str, ManagedProcess] = {}

    def start(self) -> None:
        server = ZooKeeper(self._folder / "zookeeper", host="0.0.0.0", port=2181, tick_time_ms=2000)
        self._spawn("zookeeper", server.command())
        for broker in _BROKERS:
            self.start_broker(broker)
        wait_ready({BrokerId(one): Endpoint(f"broker-{one}", 9092) for one in _BROKERS}, 60, self._check)

    def _check(self) -> None:
        for node, process in self._running.items():
            if not process.is_alive:
                raise DeployError(f"{node} has ended:\n{tail(self._folder / f'{node}.log')}")

    def start_broker(self, broker: int) -> None:
        name = f"broker-{broker}"
        folder = self._folder / name
        (folder / "data").mkdir(parents=True, exist_ok=True)
        settings = {
            "broker.id": str(broker),
            "listeners": "PLAINTEXT://0.0.0.0:9092",
            "advertised.listeners": f"PLAINTEXT://{name}:9092",
            "log.dirs": str(folder / "data"),
            "zookeeper.connect": "zookeeper:2181",
            "min.insync.replicas": "2",
            "group.initial.rebalance.delay.ms": "0",
        }
        (folder / "server.properties").write_text(to_properties(settings | self._settings))
        self._spawn(name, broker_command(folder / "server.properties"))

    def _spawn(self, node: str, command: list[str]) -> None:
        log_file = self._folder / f"{node}.log"
        self._running[node] = ManagedProcess.spawn(node, _in_node(node, *command), log_file=log_file)

    def strike(self, case: _Case, broker: int) -> None:
        """Inject the fault into a broker."""
        node = f"broker-{broker}"
        if case is _UNPLUGGED:
            _ip("-n", _HUB, "link", "set", f"v-{node}", "down")
            return
        # The process goes while its network is there, so that connections are reset; but no port refuses.
        _drop_connection_attempts(node, "-A")
        _set_name(node, is_there=False)
        self._running[node].kill()
        _ip("-n", _netns(node), "link", "delete", "eth0")

    def mend(self, case: _Case, broker: int) -> None:
        """Undo the fault of `strike`."""
        node = f"broker-{broker}"
        if case is _UNPLUGGED:
            _ip("-n", _HUB, "link", "set", f"v-{node}", "up")
            return
        _drop_connection_attempts(node, "-D")
        _plug_in(node)
        _set_name(node, is_there=True)
        self.start_broker(broker)

    def stop(self) -> None:
        for process in self._running.values():
            process.kill()


class _Acknowledgements:
    """Sends to all partitions in turn, and keeps the longest time without an acknowledgement of each."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._last = dict.fromkeys(range(_PARTITIONS), time.perf_counter())
        self._longest = dict.fromkeys(range(_PARTITIONS), 0.0)
        self.failed = 0

    async def run(self) -> None:
        due = time.perf_counter()
        while True:
            for partition in range(_PARTITIONS):
                await self._producer.send(
                    self._topic, b"value", partition=partition, on_delivery=self._delivered
                )
            due += _INTERVAL_S
            await asyncio.sleep(max(0.0, due - time.perf_counter()))

    def begin(self) -> None:
        self._longest = dict.fromkeys(range(_PARTITIONS), 0.0)

    def longest(self, partitions: list[int]) -> float:
        now = time.perf_counter()
        return max(max(self._longest[part], now - self._last[part]) for part in partitions)

    def _delivered(self, metadata: RecordMetadata | None, error: BarnabasError | None) -> None:
        if metadata is None or error is not None:
            self.failed += 1
            return
        now, partition = time.perf_counter(), metadata.partition
        self._longest[partition] = max(self._longest[partition], now - self._last[partition])
        self._last[partition] = now


async def _wait_whole(admin: Admin, topic: str) -> list[PartitionInfo]:
    """The partitions, once all replicas are in sync."""
    async with asyncio.timeout(_TIMEOUT_S):
        while True:
            with suppress(BarnabasError):
                partitions = (await admin.describe_topics(topic))[topic].partitions
                if all(len(one.isr) == len(_BROKERS) for one in partitions):
                    return list(partitions)
            await asyncio.sleep(0.1)


async def _create(admin: Admin, topic: str) -> list[PartitionInfo]:
    """A topic with its leaders spread over all brokers."""
    async with asyncio.timeout(_TIMEOUT_S):
        while True:
            if len((await admin.describe_cluster()).nodes) == len(_BROKERS):
                break
            await asyncio.sleep(0.1)
    await admin.create_topics(NewTopic(topic, _PARTITIONS, len(_BROKERS)))
    return await _wait_whole(admin, topic)


async def _round(cluster: _Cluster, case: _Case, topic: str, *, of_controller: bool) -> tuple[float, float]:
    """The seconds without acknowledgement of the partitions that the victim led, and of the others."""
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        partitions = await _create(admin, topic)
        controller = (await admin.describe_cluster()).controller_id
        victim = controller if of_controller else next(one for one in _BROKERS if one != controller)
        led = [one.partition for one in partitions if one.leader == victim]
        others = [one.partition for one in partitions if one.leader != victim]
        async with Producer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
            load = _Acknowledgements(producer, topic)
            sending = asyncio.create_task(load.run())
            await asyncio.sleep(_SETTLE_S)
            load.begin()
            await asyncio.to_thread(cluster.strike, case, victim)
            await asyncio.sleep(case.watched_s)
            longest = load.longest(led), load.longest(others)
            await asyncio.to_thread(cluster.mend, case, victim)
            await _wait_whole(admin, topic)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        tell(f"{topic}: {longest[0]:.2f} s, others {longest[1]:.2f} s, {load.failed} records failed")
        await admin.delete_topics(topic)
    return longest


async def _measure(cluster: _Cluster, cases: list[tuple[_Case, int]]) -> list[Figure]:
    figures = []
    for case, rounds in cases:
        for who in ("controller", "other broker"):
            gaps = []
            for number in range(rounds):
                # Each round has a topic of its own: a broker that was away does not get its leaders back.
                topic = f"{who} {case.name} {number}".replace(" ", "-")
                gaps.append(await _round(cluster, case, topic, of_controller=who == "controller"))
            for kind, seconds in zip(("led by it", "others"), zip(*gaps, strict=True), strict=True):
                figures.append(
                    Figure(
                        name=f"{who} {case.name}: longest gap, {kind}",
                        measured=max(seconds),
                        unit="s",
                        at_most=case.at_most_s,
                        rounds=list(seconds),
                    )
                )
    return figures


def measure(options: Options) -> list[Figure]:
    cases = [(_DIES, options.rounds)] + ([] if options.quick else [(_UNPLUGGED, 1)])
    with temporary_folder(options) as folder:
        cluster = _Cluster(folder, options.settings)
        try:
            cluster.start()
            return uvloop.run(_measure(cluster, cases))
        finally:
            cluster.stop()


def _run_in_namespaces() -> int:
    """Run this program again as the client's node, because the producer must use the brokers' network."""
    clean_up_on_signals()
    words = _in_node("client", sys.executable, "-m", "benchmarks.container_death", *sys.argv[1:])
    with _namespaces(), subprocess.Popen(words, env={**os.environ, _IN_NAMESPACE: "1"}) as child:
        try:
            return child.wait()
        finally:
            child.terminate()


if __name__ == "__main__":
    if _IN_NAMESPACE in os.environ or {"-h", "--help"} & set(sys.argv):
        run(__doc__, measure)
    else:
        sys.exit(_run_in_namespaces())
