"""Measures how a cluster's costs grow with its partitions, connections and segments, and names the exponents.

    python -m benchmarks.growth_curves --quick
    python -m benchmarks.growth_curves --only connections
    python -m benchmarks.growth_curves --only segments-in-few-logs --sizes 5000 10000 20000

Each dimension has a column of nearly nothing, which costs what a cluster costs anyway, and three sizes. The
exponent e is that of "more than the first column ~ n^e", by least squares of the logarithms: 1 is linear. A
figure that hardly grows has none. Wall clock depends on what else the machine does; CPU seconds, of all
brokers together and without ZooKeeper and the clients, hardly do.

    partitions              of three replicas, on three brokers
    connections             idle, to one broker: a half with TLS; of each a half with the native protocol
    segments-in-many-logs   200 of each partition, on one broker
    segments-in-few-logs    in four partitions, on one broker

"Writable" means that every partition has acknowledged a record to acks=all. A failover is the kill -9 of the
controller, until both other brokers name a leader that lives for each partition, and a return is the start of
the killed broker, until all ISRs are whole. Idle is a minute, in which each periodic pass but that of
retention runs at least once by itself, and that of retention is made to. Segments hold one batch each and are
written without a broker.
"""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import signal
import socket
import ssl
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import uvloop

from barnabas.client import ConfigResource, NewTopic
from barnabas.client.admin.admin import Admin
from barnabas.client.producer.producer import Producer
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.ports import ReservedPort
from barnabas.deploy.process import wait_until
from barnabas.deploy.state import SecurityConfiguration
from barnabas.protocol import codec_kafka, codec_msgpack
from barnabas.protocol.ids import Endpoint
from barnabas.protocol.messages.api_versions import ApiVersionsRequest
from benchmarks.controller_failover import wait_for_partitions
from benchmarks.load import Target, encoded_batch, encoded_request, load
from benchmarks.support import (
    Options,
    broker_pids,
    clean_up_on_signals,
    command_for,
    cpu_of_ended_processes,
    cpu_seconds,
    machine,
    memory_mb,
    options_of,
    parser_for,
    tell,
    temporary_folder,
)
from tests.support.defaults import log_config
from tests.support.segments import records_batch, write_segments

_TIMEOUT_S: Final = 600.0
_PARTITIONS_PER_TOPIC: Final = 250
_SEGMENTS_PER_LOG: Final = 200
_FEW_LOGS: Final = 4
_IDLE_S: Final = 60
_LEAST_GROWTH: Final = 1.3
"""A figure that grows by less than this factor has no exponent."""
_ADDRESSES: Final = 8
"""Clients come from so many addresses, so that no address lacks ports."""
_MEANWHILE: Final = 2_000
_ROLLS: Final = 50
_SEGMENT_BYTES: Final = 400
_FOREVER_MS: Final = str(100 * 365 * 24 * 3_600_000)
_SHUT: Final = struct.pack("ii", 1, 0)
"""SO_LINGER that ends a connection with a reset, so that its port is free at once."""


class Values(dict[str, float]):
    """The figures at one size, by name."""

    @contextmanager
    def timed(self, name: str, cluster: LocalCluster) -> Iterator[None]:
        """Time the block and the CPU of all brokers in it, also of those that end or begin there."""
        began, cpu = time.perf_counter(), _brokers_cpu(cluster)
        yield
        self[f"{name}, s"] = time.perf_counter() - began
        self[f"{name}, CPU s"] = _brokers_cpu(cluster) - cpu
        tell(f"  {name}: {self[f'{name}, s']:.2f} s, CPU {self[f'{name}, CPU s']:.2f} s")

    def look_at(self, cluster: LocalCluster, idle_s: float) -> None:
        """The memory, descriptors, mappings and idle CPU of the broker that has most of each."""
        pids = broker_pids(cluster)
        before = [cpu_seconds(pid) for pid in pids]
        time.sleep(idle_s)
        used = [cpu_seconds(pid) - earlier for pid, earlier in zip(pids, before, strict=True)]
        self["idle, % of a core"] = max(used) / idle_s * 100
        self["RssAnon, MB"] = max(memory_mb(pid, "RssAnon") for pid in pids)
        self["descriptors"] = max(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)
        maps = [Path(f"/proc/{pid}/maps").read_bytes().count(b"\n") for pid in pids]
        self["mappings"] = max(maps)
        tell(f"  idle {self['idle, % of a core']:.2f} %, {self['RssAnon, MB']:.0f} MB, {max(maps)} mappings")


def _brokers_cpu(cluster: LocalCluster) -> float:
    alive = [one.running_process.pid for one in cluster.brokers if one.is_alive]
    return cpu_seconds(*alive) + cpu_of_ended_processes()


# -- steps that the dimensions share ------------------------------------------------------------------------


@contextmanager
def _cluster(
    options: Options, brokers: int, security: SecurityConfiguration | None = None, **settings: str
) -> Iterator[LocalCluster]:
    """A started cluster; settings with ``_`` for the dots of Kafka's names."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    with (
        temporary_folder(options) as folder,
        LocalCluster(
            folder / "cluster",
            brokers=brokers,
            settings={"auto.leader.rebalance.enable": "false"} | named | options.settings,
            security=security,
            command=command_for(options),
        ) as cluster,
    ):
        yield cluster


def _stop_all(cluster: LocalCluster) -> None:
    """A clean stop of all brokers at once."""
    processes = [broker.running_process for broker in cluster.brokers]
    for process in processes:
        process.send(signal.SIGTERM)
    if not wait_until(lambda: not any(process.is_alive for process in processes), _TIMEOUT_S):
        raise TimeoutError(f"the brokers did not stop within {_TIMEOUT_S:.0f} s")


def _kill_all(cluster: LocalCluster) -> None:
    for broker in cluster.brokers:
        cluster.kill(broker.id)


def _start_all(cluster: LocalCluster) -> None:
    for broker in cluster.brokers:
        cluster.launch_broker(broker.id)
    cluster.wait_ready(_TIMEOUT_S, must_run=cluster.broker_ids)


class _Topics(NamedTuple):
    partitions: dict[str, int]
    replicas: int

    async def create(self, bootstrap: str, **configs: str) -> None:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        asked = [
            NewTopic(name, num_partitions=count, replication_factor=self.replicas, configs=named)
            for name, count in self.partitions.items()
        ]
        async with Admin(bootstrap_servers=bootstrap) as admin:
            await admin.create_topics(asked, timeout_ms=int(_TIMEOUT_S * 1000))

    async def wait_until_led(self, cluster: LocalCluster, dead: int = -1, *, whole: bool = False) -> None:
        """Wait until every broker but a dead one names living leaders, and with `whole` all ISRs.

        Topic by topic: looks at all partitions for as long as it takes would grow with their square.
        """
        isr = self.replicas if whole else 1
        for broker in cluster.brokers:
            if broker.id != dead:
                async with Admin(bootstrap_servers=str(broker.endpoint)) as admin:
                    for topic, count in self.partitions.items():
                        await wait_for_partitions(
                            admin,
                            count,
                            lambda one: one.leader not in (-1, dead) and len(one.isr) >= isr,
                            topic,
                        )

    async def write(self, bootstrap: str, times: int = 1) -> None:
        """One record into each partition, acknowledged by all."""
        async with Producer(bootstrap_servers=bootstrap, acks="all") as producer:
            for _ in range(times):
                sent = [
                    await producer.send(topic, b"value", partition=partition)
                    for topic, count in self.partitions.items()
                    for partition in range(count)
                ]
                for one in sent:
                    await one

    def wait_until_writable(self, cluster: LocalCluster) -> None:
        uvloop.run(self.wait_until_led(cluster))
        uvloop.run(self.write(cluster.bootstrap))


def _stops_and_starts(cluster: LocalCluster, topics: _Topics, found: Values) -> None:
    with found.timed("clean stop", cluster):
        _stop_all(cluster)
    with found.timed("start, until writable", cluster):
        _start_all(cluster)
        topics.wait_until_writable(cluster)
    _kill_all(cluster)
    with found.timed("start after kill -9, until writable", cluster):
        _start_all(cluster)
        topics.wait_until_writable(cluster)


# -- the dimensions -----------------------------------------------------------------------------------------


def _partitions(size: int, options: Options, idle_s: float) -> Values:
    found = Values()
    full, rest = divmod(size, _PARTITIONS_PER_TOPIC)
    counts = [_PARTITIONS_PER_TOPIC] * full + [rest] * bool(rest)
    topics = _Topics({f"growth-{number}": count for number, count in enumerate(counts)}, 3)
    with _cluster(options, 3) as cluster:
        with found.timed("creation, until writable", cluster):
            uvloop.run(topics.create(cluster.bootstrap))
            topics.wait_until_writable(cluster)
        found.look_at(cluster, idle_s)
        victim = uvloop.run(_controller(cluster))
        with found.timed("failover", cluster):
            cluster.kill(victim)
            uvloop.run(topics.wait_until_led(cluster, victim))
        with found.timed("return, until all ISRs are whole", cluster):
            cluster.start_broker(victim, _TIMEOUT_S)
            uvloop.run(topics.wait_until_led(cluster, whole=True))
        _stops_and_starts(cluster, topics, found)
    return found


async def _controller(cluster: LocalCluster) -> int:
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        return (await admin.describe_cluster()).controller_id


def _segments(size: int, logs: int, options: Options, idle_s: float) -> Values:
    found = Values()
    topics = _Topics({"growth": logs}, 1)
    with _cluster(options, 1, log_retention_check_interval_ms=str(_IDLE_S * 1000)) as cluster:
        uvloop.run(
            topics.create(
                cluster.bootstrap,
                segment_bytes=str(_SEGMENT_BYTES),
                retention_ms=_FOREVER_MS,
                cleanup_policy="delete",
            )
        )
        _stop_all(cluster)
        for number in range(logs):
            _fill(cluster.directory / f"broker-1/data/growth-{number}", size // logs)
        # This start finds other segments than the stop has left, and looks into each.
        _start_all(cluster)
        topics.wait_until_writable(cluster)
        found.look_at(cluster, idle_s)
        with found.timed(f"{_ROLLS} rolls of each of four logs", cluster):
            few = _Topics({"growth": _FEW_LOGS}, 1)
            uvloop.run(few.write(cluster.bootstrap, _ROLLS))
        _stops_and_starts(cluster, topics, found)
    return found


def _fill(folder: Path, segments: int) -> None:
    """Replace a partition's log by one of so many segments, as after a clean stop."""
    emptied = folder.with_suffix(".emptied")
    folder.rename(emptied)
    batch = records_batch(200, 100)
    config = log_config(segment_bytes=_SEGMENT_BYTES)
    write_segments(folder, batch, segments * len(batch), len(batch), sealed=config)
    (emptied / "partition.metadata").rename(folder / "partition.metadata")
    shutil.rmtree(emptied)


def _connections(size: int, options: Options, idle_s: float) -> Values:
    found = Values()
    with _cluster(options, 1, SecurityConfiguration(tls=True)) as cluster:
        plain = _add_plain_listener(cluster)
        tls = cluster.channel_security().tls
        assert tls is not None
        clients = _Clients(plain, cluster.brokers[0].endpoint, tls())
        with clients:
            with found.timed("all connect", cluster):
                clients.open(size)
            found.look_at(cluster, idle_s)
            batch = [encoded_request("growth", 0, encoded_batch(1_000, 100), 1)]
            uvloop.run(_Topics({"growth": 1}, 1).create(str(plain)))
            with found.timed(f"{_MEANWHILE:,} requests beside them", cluster):
                uvloop.run(load([Target(plain, batch)], _MEANWHILE, 1))
            with found.timed("clean stop", cluster):
                _stop_all(cluster)
        _start_all(cluster)
        with clients:
            clients.open(size)
            _kill_all(cluster)
        with found.timed("start after kill -9, until all are back", cluster), clients:
            _start_all(cluster)
            clients.open(size)
        (pid,) = broker_pids(cluster)
        with clients:
            clients.open(size)
            with found.timed("all disconnect", cluster):
                clients.close()
                wait_until(lambda: len(os.listdir(f"/proc/{pid}/fd")) < 200 + size // 100, _TIMEOUT_S)
    return found


def _add_plain_listener(cluster: LocalCluster) -> Endpoint:
    port = ReservedPort.pick("127.0.0.1")
    plain = Endpoint("127.0.0.1", port.port)
    port.close()
    change = {
        "listeners": f"SSL://{cluster.brokers[0].endpoint},PLAIN://{plain}",
        "listener.security.protocol.map": "SSL:SSL,PLAIN:PLAINTEXT",
    }

    async def alter() -> None:
        async with Admin(**cluster.client_settings()) as admin:
            await admin.alter_configs({ConfigResource.broker(1): change})

    uvloop.run(alter())
    if not wait_until(lambda: _listens(plain), _TIMEOUT_S):
        raise TimeoutError(f"the broker does not listen at {plain}")
    return plain


def _listens(endpoint: Endpoint) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((endpoint.host, endpoint.port)) == 0


class _Clients:
    """Blocking sockets that have sent one request each, and then nothing; a context that closes them."""

    def __init__(self, plain: Endpoint, secured: Endpoint, tls: ssl.SSLContext) -> None:
        self._endpoints = plain, secured
        self._tls = tls
        request = ApiVersionsRequest()
        self._requests = [
            b"".join(codec_msgpack.encode_request(0, "idle", request)),
            b"".join(codec_kafka.encode_request(0, 0, "idle", request)),
        ]
        self._sockets: list[socket.socket] = []

    def open(self, count: int) -> None:
        for number in range(count):
            endpoint = self._endpoints[number % 2]
            source = f"127.0.0.{2 + number % _ADDRESSES}"
            made = socket.create_connection((endpoint.host, endpoint.port), 30, (source, 0))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _SHUT)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if number % 2:
                made = self._tls.wrap_socket(made, server_hostname=endpoint.host)
            made.sendall(self._requests[number // 2 % 2])
            if not made.recv(65_536):
                raise ConnectionResetError(f"{endpoint} ended connection {number}")
            self._sockets.append(made)

    def close(self) -> None:
        for one in self._sockets:
            one.close()
        self._sockets.clear()

    def __enter__(self) -> None:
        self.close()

    def __exit__(self, *_: object) -> None:
        self.close()


class _Dimension(NamedTuple):
    measure: Callable[[int, Options, float], Values]
    least: int
    most: int


_DIMENSIONS: Final = {
    "partitions": _Dimension(_partitions, 6, 5_000),
    "connections": _Dimension(_connections, 4, 10_000),
    "segments-in-many-logs": _Dimension(
        lambda size, options, idle_s: _segments(
            size, max(_FEW_LOGS, size // _SEGMENTS_PER_LOG), options, idle_s
        ),
        100,
        200_000,
    ),
    "segments-in-few-logs": _Dimension(
        lambda size, options, idle_s: _segments(size, _FEW_LOGS, options, idle_s), 100, 200_000
    ),
}


# -- curves -------------------------------------------------------------------------------------------------


class Curve(NamedTuple):
    """One figure at the least size and at three others."""

    name: str
    sizes: Sequence[int]
    values: Sequence[float]

    @property
    def exponent(self) -> float | None:
        """The e of "more than at the least size ~ n^e"; None if it hardly grows, or of one size."""
        base, *grown = self.values
        if len(grown) < 2 or any(one <= base for one in grown) or grown[-1] < _LEAST_GROWTH * base:
            return None
        sizes = [math.log(size - self.sizes[0]) for size in self.sizes[1:]]
        return statistics.linear_regression(sizes, [math.log(one - base) for one in grown]).slope


def curves(name: str, sizes: Sequence[int], options: Options, idle_s: float) -> list[Curve]:
    dimension = _DIMENSIONS[name]
    measured = []
    for size in sizes:
        tell(f"{name}: {size:,}")
        rounds = [dimension.measure(size, options, idle_s) for _ in range(options.rounds)]
        measured.append({key: statistics.median(one[key] for one in rounds) for key in rounds[0]})
    return [Curve(key, sizes, [one[key] for one in measured]) for key in measured[0]]


def _table(name: str, found: Sequence[Curve]) -> str:
    """As in Markdown."""
    lines = [f"| {name} | " + " | ".join(f"{size:,}" for size in found[0].sizes) + " | exponent |"]
    lines.append("| --- |" + " ---: |" * (len(found[0].sizes) + 1))
    for curve in found:
        values = " | ".join(f"{one:,.0f}" if one >= 100 else f"{one:.3g}" for one in curve.values)
        exponent = curve.exponent
        shown = "flat" if exponent is None else f"{exponent:.2f}"
        lines.append(f"| {curve.name} | {values} | {shown} |")
    return "\n".join(lines)


def main() -> int:
    parser = parser_for(__doc__ or "")
    names = tuple(_DIMENSIONS)
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names)
    )
    parser.add_argument(
        "--sizes",
        nargs="+",
        type=int,
        metavar="N",
        help="instead of a quarter, a half and the whole of the most",
    )
    parser.add_argument(
        "--idle-s",
        type=int,
        metavar="S",
        help=f"measure idle brokers for so long (default: {_IDLE_S}; quick: 5)",
    )
    arguments = parser.parse_args()
    if arguments.rounds is None:
        arguments.rounds = 1
    options = options_of(arguments)
    clean_up_on_signals()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(machine(options), flush=True)
    idle_s = arguments.idle_s or options.amount(_IDLE_S, 5)
    for name in arguments.only:
        dimension = _DIMENSIONS[name]
        most = options.amount(dimension.most, dimension.most // 25)
        sizes = arguments.sizes or (most // 4, most // 2, most)
        found = curves(name, [dimension.least, *sizes], options, idle_s)
        if arguments.json:
            listed = [one._asdict() | {"exponent": one.exponent} for one in found]
            print(json.dumps({"dimension": name, "curves": listed}), flush=True)
        else:
            print(f"\n{_table(name, found)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
