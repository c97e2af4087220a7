"""A producer beside peers that are not known: half-open handshakes, half-finished logins, wrong passwords.

    python -m benchmarks.hostile_logins --quick

One broker with SASL_SSL; a producer sends 200 records/s with acks=1, alone and beside each storm. A storm has
a process of its own with the lowest priority and another address, opens at most 500 connections/s and holds
those that the broker leaves open. Meanwhile good clients log in, one at a time, and the slowest is measured.
On a busy machine the figures say nothing, because broker, producer and storm wait for each other's processor.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import ssl
import statistics
import struct
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import confluent_kafka
from confluent_kafka.admin import AdminClient

from barnabas.client import NewTopic
from barnabas.client.blocking import Admin
from barnabas.common.security.scram import ClientFirst, make_nonce
from barnabas.deploy.client_settings import client_settings
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.security import ClusterSecurity
from barnabas.deploy.state import SecurityConfiguration
from barnabas.protocol import codec_kafka
from barnabas.protocol.ids import Endpoint
from barnabas.protocol.messages.authentication import SaslAuthenticateRequest, SaslHandshakeRequest
from benchmarks.support import Figure, Options, command_for, percentile, run, tell, temporary_folder

_SECURITY: Final = SecurityConfiguration(tls=True, mechanism="SCRAM-SHA-256", acl=True)
_TOPIC: Final = "bench"
_PER_SECOND: Final = 200
_VALUE: Final = bytes(100)
_HOSTILE_ADDRESS: Final = "127.0.0.2"
_OPENED_PER_SECOND: Final = 500
_HALF_OPEN: Final = 2_000
_GUESSING: Final = 200
_LOWEST_PRIORITY: Final = 19
_BEFORE_S: Final = 3.0
"""The storm has this time to reach its strength."""
_TIMEOUT_MS: Final = 20_000

Storm = Callable[["Attacker"], Coroutine[Any, Any, None]]


class Attacker:
    """Opens connections at a bounded rate; runs in the process of a storm."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._next = 0.0
        self._context = ssl.create_default_context()
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE

    def hello(self) -> bytes:
        """The first message of a TLS handshake."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        with suppress(ssl.SSLWantReadError):
            self._context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
        return outgoing.read()

    async def open(self, *, tls: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The next connection, when the rate allows it."""
        now = time.monotonic()
        self._next = max(now, self._next + 1 / _OPENED_PER_SECOND)
        await asyncio.sleep(self._next - now)
        return await asyncio.open_connection(
            self._endpoint.host,
            self._endpoint.port,
            local_addr=(_HOSTILE_ADDRESS, 0),
            ssl=self._context if tls else None,
        )

    async def keep(self, count: int, one: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Keep so many connections busy with calls of `one`, for ever."""

        async def again() -> None:
            while True:
                with suppress(OSError, asyncio.IncompleteReadError):
                    await one()

        await asyncio.gather(*(again() for _ in range(count)))

    async def silent(self) -> None:
        """Connections on which nothing is sent."""
        await self.keep(_HALF_OPEN, lambda: self._hold(b""))

    async def half_open(self) -> None:
        """Handshakes whose second message never comes."""
        hello = self.hello()
        await self.keep(_HALF_OPEN, lambda: self._hold(hello))

    async def _hold(self, data: bytes) -> None:
        reader, writer = await self.open(tls=False)
        try:
            writer.write(data)
            while await reader.read(65_536):
                pass
        finally:
            writer.transport.abort()

    async def fresh(self) -> None:
        """Whole handshakes, one after the other."""

        async def one() -> None:
            _, writer = await self.open(tls=True)
            writer.transport.abort()

        await self.keep(_GUESSING, one)

    async def half_finished(self) -> None:
        """SCRAM after the first of two messages."""
        await self.keep(_HALF_OPEN, lambda: self._scram(proof=None))

    async def wrong_passwords(self) -> None:
        await self.keep(_GUESSING, lambda: self._scram(proof=b"A" * 43 + b"="))

    async def _scram(self, proof: bytes | None) -> None:
        reader, writer = await self.open(tls=True)
        try:
            writer.write(_encoded(SaslHandshakeRequest(mechanism="SCRAM-SHA-256")))
            await _answer(reader)
            first = ClientFirst.make("admin", make_nonce())
            writer.write(_encoded(SaslAuthenticateRequest(auth_bytes=first.encoded)))
            challenge = await _answer(reader)
            if proof is not None:
                nonce = challenge[challenge.index(b"r=") + 2 :].split(b",")[0]
                final = b"c=biws,r=" + nonce + b",p=" + proof
                writer.write(_encoded(SaslAuthenticateRequest(auth_bytes=final)))
            # Until the broker closes.
            await reader.read()
        finally:
            writer.transport.abort()


_STORMS: Final[Mapping[str, Storm]] = {
    "2,000 silent connections": Attacker.silent,
    "2,000 half-open handshakes": Attacker.half_open,
    "2,000 half-finished logins": Attacker.half_finished,
    "wrong passwords": Attacker.wrong_passwords,
    "fresh handshakes": Attacker.fresh,
}


def _encoded(request: Any) -> bytes:
    return b"".join(map(bytes, codec_kafka.encode_request(1, 1, "storm", request)))


async def _answer(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def _rage(storm: str, endpoint: Endpoint) -> None:
    """The process of a storm; it is killed in the end."""
    os.nice(_LOWEST_PRIORITY)
    asyncio.run(_STORMS[storm](Attacker(endpoint)))


class Served(NamedTuple):
    """How a good client was served, in ms."""

    latencies: list[float]
    logins: list[float]


def _log_in(settings: Mapping[str, Any], seconds: float, into: multiprocessing.SimpleQueue[Any]) -> None:
    """The process of good clients that come anew."""
    until, taken = time.monotonic() + seconds, []
    while time.monotonic() < until:
        began = time.perf_counter()
        with suppress(confluent_kafka.KafkaException):
            AdminClient(settings).list_topics(timeout=_TIMEOUT_MS / 1000)
        taken.append((time.perf_counter() - began) * 1000)
        time.sleep(0.1)
    into.put(taken)


def _serve(settings: Mapping[str, Any], seconds: float) -> Served:
    """Open loop: the clock of a record starts when it should have been sent."""
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    logins = context.Process(target=_log_in, args=(settings, seconds, answers), daemon=True)
    producer = confluent_kafka.Producer({**settings, "acks": 1, "linger.ms": 0})
    latencies: list[float] = []

    def send(due: float) -> None:
        def delivered(error: confluent_kafka.KafkaError | None, _: object) -> None:
            latencies.append(_TIMEOUT_MS if error else (time.perf_counter() - due) * 1000)

        producer.produce(_TOPIC, _VALUE, on_delivery=delivered)

    send(time.perf_counter())
    producer.flush(_TIMEOUT_MS / 1000)
    latencies.clear()
    logins.start()
    started = time.perf_counter()
    for number in range(int(seconds * _PER_SECOND)):
        due = started + number / _PER_SECOND
        while (ahead := due - time.perf_counter()) > 0:
            producer.poll(min(ahead, 0.001))
        send(due)
    producer.flush(_TIMEOUT_MS / 1000)
    taken = answers.get()
    logins.join()
    return Served(latencies, taken)


def measure(options: Options) -> list[Figure]:
    seconds = options.amount(20, 5)
    with (
        temporary_folder(options) as folder,
        LocalCluster(
            folder / "cluster",
            brokers=1,
            settings=options.settings,
            command=command_for(options),
            security=_SECURITY,
        ) as cluster,
    ):
        security = ClusterSecurity(cluster.directory, _SECURITY)
        access = security.access(cluster.bootstrap)
        with Admin(**client_settings("barnabas", access)) as admin:
            admin.create_topics([NewTopic(_TOPIC, 1, 1)])
        settings = client_settings("confluent", access)
        figures = []
        for storm in _STORMS:
            alone, beside = [], []
            for number in range(options.rounds):
                tell(f"{storm}, round {number + 1} of {options.rounds}")
                alone.append(_serve(settings, seconds))
                beside.append(_beside(storm, cluster.broker(1).endpoint, settings, seconds))
            figures += _figures(storm, alone, beside)
    return figures


def _beside(storm: str, endpoint: Endpoint, settings: Mapping[str, Any], seconds: float) -> Served:
    attacker = multiprocessing.get_context("spawn").Process(target=_rage, args=(storm, endpoint), daemon=True)
    attacker.start()
    try:
        time.sleep(_BEFORE_S)
        served = _serve(settings, seconds)
        if not attacker.is_alive():
            raise RuntimeError(f"{storm}: the storm ended with {attacker.exitcode}")
        return served
    finally:
        attacker.kill()
        attacker.join()


def _figures(storm: str, alone: list[Served], beside: list[Served]) -> list[Figure]:
    def p99s(served: list[Served]) -> list[float]:
        return [percentile(one.latencies, 99) for one in served]

    times = [after / before for before, after in zip(p99s(alone), p99s(beside), strict=True)]
    return [
        Figure.of(f"{storm}: p50", [statistics.median(one.latencies) for one in beside], "ms"),
        Figure.of(f"{storm}: p99", p99s(beside), "ms"),
        Figure.of(f"{storm}: p99, times that without", times, "", at_most=3),
        Figure.of(f"{storm}: the slowest login", [max(one.logins) for one in beside], "ms"),
        Figure.of(f"{storm}: the slowest login without", [max(one.logins) for one in alone], "ms"),
    ]


if __name__ == "__main__":
    run(__doc__, measure)
