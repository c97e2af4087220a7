"""The speed of the reactor alone: one process serves, one loads it over loopback, both on this machine.

Run ``python benchmarks/reactor.py``; ``--help`` names the threads and the switch interval that can be varied.
It prints requests/s and the server's CPU per request for small requests, the same for 16 KB requests that the
handler writes to a file, MB/s for 1 MB requests and 1 MB responses, and the latency at 1,000 requests/s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
from typing import Any

import uvloop

from barnabas.broker.config.load import config_from
from barnabas.broker.network.request import Lane, Request
from barnabas.broker.network.server import SocketServer

LENGTH = struct.Struct(">I")
ECHO, APPEND, FETCH = b"e", b"a", b"f"
ANSWER = LENGTH.pack(16) + bytes(16)
LARGE = 1 << 20


def serve(arguments: argparse.Namespace) -> None:
    """The server's process: prints its port, and its CPU seconds whenever SIGUSR1 comes."""
    sys.setswitchinterval(arguments.switch_interval_ms / 1000)
    blob = memoryview(bytes(LARGE))
    blob_answer = (LENGTH.pack(LARGE), blob)
    with tempfile.TemporaryFile() as file:
        descriptor = file.fileno()

        def process(request: Request) -> None:
            kind = request.frame.view[0]
            if kind == FETCH[0]:
                request.respond(blob_answer)
                return
            if kind == APPEND[0]:
                os.pwrite(descriptor, request.frame.view, 0)
            request.release_frame()
            request.respond((ANSWER,))

        config = config_from(
            {
                "broker.id": "1",
                "log.dirs": "/unused",
                "zookeeper.connect": "unused:1",
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "num.network.threads": str(arguments.network_threads),
                "num.io.threads": str(arguments.io_threads),
            }
        )
        server = SocketServer(config, on_fatal=lambda error: os._exit(1))
        server.bind()
        lane = Lane[arguments.lane.upper()]
        server.start(process, lane_of=lambda view: lane, after_run=lambda: None)
        print(server.ports["PLAINTEXT"], flush=True)
        while True:
            caught = signal.sigwait({signal.SIGUSR1, signal.SIGTERM})
            if caught == signal.SIGTERM:
                server.stop()
                return
            used = resource.getrusage(resource.RUSAGE_SELF)
            print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss]), flush=True)


class Load(asyncio.Protocol):
    """One connection that keeps `depth` requests in flight; all answers are `answer_bytes` long."""

    def __init__(self, request: bytes, answer_bytes: int, depth: int) -> None:
        self.request, self.answer_bytes, self.depth = request, answer_bytes, depth
        self.received = 0
        self.answers = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.request * self.depth)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        answers, self.received = divmod(self.received, self.answer_bytes)
        if answers:
            self.answers += answers
            self.transport.write(self.request * answers)


def framed(kind: bytes, size: int) -> bytes:
    return LENGTH.pack(size) + kind.ljust(size, b"\0")


async def connect(port: int, protocol: asyncio.Protocol) -> asyncio.Transport:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(lambda: protocol, "127.0.0.1", port)
    return transport


async def load(
    server: subprocess.Popen[str],
    port: int,
    what: str,
    kind: bytes,
    size: int,
    connections: int,
    depth: int,
    seconds: float,
) -> None:
    answer_bytes = 4 + (LARGE if kind == FETCH else 16)
    protocols = [Load(framed(kind, size), answer_bytes, depth) for _ in range(connections)]
    transports = [await connect(port, protocol) for protocol in protocols]
    await asyncio.sleep(0.5)
    before, cpu_before, started = sum(p.answers for p in protocols), usage(server)[0], time.perf_counter()
    await asyncio.sleep(seconds)
    elapsed = time.perf_counter() - started
    count, cpu = sum(p.answers for p in protocols) - before, usage(server)[0] - cpu_before
    for transport in transports:
        transport.abort()
    moved = count * max(size, answer_bytes) / 1e6
    print(
        f"{what:34} {connections} x {depth:<3} {count / elapsed:10,.0f} requests/s"
        f" {moved / elapsed:8,.0f} MB/s"
        f" {cpu / max(count, 1) * 1e6:7.1f} CPU us/request {cpu / elapsed * 100:5.0f} % CPU"
    )


class Paced(asyncio.Protocol):
    def __init__(self) -> None:
        self.sent: list[float] = []
        self.latencies: list[float] = []
        self.received = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self.received += len(data)
        while self.received >= len(ANSWER):
            self.received -= len(ANSWER)
            self.latencies.append(now - self.sent[len(self.latencies)])


async def paced(port: int, what: str, kind: bytes, size: int, per_second: int, seconds: float) -> None:
    protocol = Paced()
    transport = await connect(port, protocol)
    request = framed(kind, size)
    start = time.perf_counter()
    for number in range(int(per_second * seconds)):
        delay = start + number / per_second - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        protocol.sent.append(time.perf_counter())
        transport.write(request)
    await asyncio.sleep(0.2)
    transport.abort()
    ordered = sorted(protocol.latencies)
    p50, p99, worst = (ordered[int(len(ordered) * part)] * 1000 for part in (0.5, 0.99, 0.9999))
    print(f"{what:34} {per_second:,} requests/s   p50 {p50:.2f} ms  p99 {p99:.2f} ms  worst {worst:.2f} ms")


def usage(server: subprocess.Popen[str]) -> tuple[float, int]:
    """CPU seconds and peak memory in KB of the server so far."""
    server.send_signal(signal.SIGUSR1)
    assert server.stdout is not None
    seconds, peak = json.loads(server.stdout.readline())
    return seconds, peak


async def drive(server: subprocess.Popen[str], port: int, seconds: float) -> None:
    for what, kind, size, connections, depth in (
        ("small requests, one at a time", ECHO, 100, 1, 1),
        ("small requests", ECHO, 100, 1, 32),
        ("small requests", ECHO, 100, 4, 32),
        ("16 KB requests into a file", APPEND, 16_384, 4, 4),
        ("1 MB requests", ECHO, LARGE, 2, 4),
        ("1 MB requests into a file", APPEND, LARGE, 2, 4),
        ("1 MB responses", FETCH, 100, 2, 4),
    ):
        await load(server, port, what, kind, size, connections, depth, seconds)
    await paced(port, "small requests", ECHO, 170, 1000, seconds)
    await paced(port, "requests of 170 bytes into a file", APPEND, 170, 1000, seconds)
    print(f"peak memory of the server {usage(server)[1] / 1024:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description="The reactor alone, loaded over loopback.")
    parser.add_argument("--network-threads", type=int, default=3)
    parser.add_argument("--io-threads", type=int, default=8)
    parser.add_argument("--lane", choices=["network", "general"], default="network", help="who runs requests")
    parser.add_argument("--switch-interval-ms", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
        serve(arguments)
        return
    with subprocess.Popen(
        [sys.executable, __file__, *sys.argv[1:], "--serve"], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            uvloop.run(drive(server, int(server.stdout.readline()), arguments.seconds))
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
